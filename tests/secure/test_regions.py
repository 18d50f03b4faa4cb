"""A lying server that shows the regions of a ring different lists of survivors, to open a sum of fewer than `least`."""

import pytest
from cohorts import Cohort, small_terms

from sketchfed.errors import SecureSumError
from sketchfed.secure.client import consent_text
from sketchfed.secure.messages import flags, laid_out, message

COLLUDERS_BESIDE = 2
"""Colluders on either side of each border. They sign both lists, so that those who sit there find enough signatures."""


def helped(cohort: Cohort, client: int, body: bytes) -> bool:
    """Whether a client answers this request to unmask."""
    try:
        cohort.clients[client].answer(message("secure.unmask", cohort.terms, body))
    except SecureSumError:
        return False
    return True


@pytest.mark.parametrize("border", [0, 10])
def test_two_regions_that_were_shown_different_lists_do_not_both_help_to_open_a_sum(border):
    """Each list has the 108 clients that must be in a sum. Both regions together would open a sum of 96."""
    terms = small_terms(120, neighbours=20, threshold=13, least=108)
    cohort, half = Cohort(terms), len(terms.clients) // 2
    server = cohort.server()
    while server.stage != "consent":
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    ring = terms._ring[border:] + terms._ring[:border]
    beside = [ring[place + step] for place in (0, half) for step in range(-COLLUDERS_BESIDE, COLLUDERS_BESIDE)]
    transcript, helping = cohort.clients[ring[0]].state.transcript, []
    for region in (ring[:half], ring[half:]):
        survivors = set(terms.clients) - set(region[12:48:3])
        shown = flags(terms.clients, survivors)
        signed = {own: cohort.identities[own].sign(consent_text(transcript, shown)) for own in beside}
        honest = [own for own in region if own in survivors and own not in beside]
        for own in honest:
            reply = cohort.clients[own].answer(message("secure.consent", terms, shown))
            signed[own] = reply.arrays["body"].numpy().tobytes()
        bodies = {
            own: laid_out(terms.witnesses_of(own), {peer: signed[peer] for peer in terms.witnesses_of(own) if peer in signed})
            for own in honest
        }
        helping.append(any(helped(cohort, own, body) for own, body in bodies.items()))
    assert sum(helping) <= 1
