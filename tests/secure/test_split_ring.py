"""A lying server that chooses whom it calls gone, so that the ring falls into two arcs and the sum into two sums."""

import pytest
from cohorts import Cohort, small_terms

from sketchfed.errors import SecureSumError
from sketchfed.secure.messages import flags, message
from sketchfed.wire import pack, unpack


def cut(terms, at: tuple[int, int]) -> set[int]:
    """The clients between two arcs: neighbours/2 places in a row at each cut."""
    ring, width = terms._ring, terms.neighbours // 2
    return {ring[(place + step) % len(ring)] for place in at for step in range(width)}


def test_a_server_that_cuts_the_ring_in_two_opens_neither_part():
    """All clients sent their values. The server claims that those at two cuts left, which is within the assumed dropouts."""
    terms = small_terms(40, neighbours=8, threshold=6, least=20)
    cohort = Cohort(terms)
    server = cohort.server()
    while server.stage != "consent":
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    gone = cut(terms, (0, 20))
    claimed = message("secure.consent", terms, flags(terms.clients, set(terms.clients) - gone))
    for client in set(terms.clients) - gone:
        with pytest.raises(SecureSumError, match=r"might fall into two parts|neighbours sent values"):
            cohort.clients[client].answer(claimed)


def test_an_honest_server_abandons_a_sum_whose_ring_fell_apart_before_anything_is_revealed():
    terms = small_terms(40, neighbours=8, threshold=5, least=20)
    cohort, gone = Cohort(terms), cut(small_terms(40, neighbours=8, threshold=5, least=20), (0, 20))
    with pytest.raises(SecureSumError, match=r"might fall apart\. The sum is abandoned and nothing was revealed"):
        cohort.run(lambda stage, client: stage == "masked" and client in gone)
    assert "consent" not in cohort.sent


def test_a_list_that_keeps_the_ring_together_is_signed():
    terms = small_terms(40, neighbours=8, threshold=5, least=20)
    cohort = Cohort(terms)
    server = cohort.server()
    while server.stage != "consent":
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    some = set(terms._ring[:3])
    claimed = pack(message("secure.consent", terms, flags(terms.clients, set(terms.clients) - some)))
    for client in set(terms.clients) - some:
        cohort.clients[client].answer(unpack(claimed))
