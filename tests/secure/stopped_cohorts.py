"""Cohorts that were stopped before a stage, so that a lying server can ask its victim for something else."""

import pytest
from cohorts import Cohort, small_terms

from sketchfed.errors import SecureSumError
from sketchfed.secure import Done, Terms
from sketchfed.secure.keys import Advertised
from sketchfed.secure.messages import flags, laid_out, message, taken_apart
from sketchfed.secure.transcript import Roll, read_proof
from sketchfed.wire import Packet, unpack

VICTIM = 2


def stopped_before(stage: str, terms: Terms | None = None) -> tuple[Cohort, Packet]:
    """A cohort that has answered all stages before this one, and what an honest server would ask the victim now."""
    cohort = Cohort(terms or small_terms(7, neighbours=6, threshold=5, least=5))
    server = cohort.server()
    while server.stage != stage:
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    cohort.now = server
    return cohort, unpack(server.requests[VICTIM])


def refused(cohort: Cohort, request: Packet, saying: str) -> None:
    """The victim refuses, and answers nothing from then on."""
    client = cohort.clients[VICTIM]
    with pytest.raises(SecureSumError, match=saying):
        client.answer(request, cohort.values[VICTIM])
    assert type(client.state) is Done
    with pytest.raises(SecureSumError, match="finished"):
        client.answer(request, cohort.values[VICTIM])


def survivor_list(cohort: Cohort, without: set[int]) -> bytes:
    return flags(cohort.terms.clients, set(cohort.terms.clients) - without)


def shown_keys(cohort: Cohort, request: Packet) -> dict[int, Advertised]:
    body = request.arrays["body"].numpy().tobytes()
    _, rest = read_proof(body, cohort.terms, VICTIM, cohort.clients[VICTIM].state.shown)
    parts = taken_apart(rest, cohort.terms.neighbours_of(VICTIM), Advertised.size)
    return {peer: Advertised.from_bytes(part) for peer, part in parts.items()}


def with_keys(cohort: Cohort, keys: dict[int, Advertised]) -> Packet:
    """A request that shows the victim these keys of its neighbours, and a proof that its own are on the roll with them."""
    parts = {peer: own.to_bytes() for peer, own in keys.items()}
    proof = Roll({**parts, VICTIM: cohort.clients[VICTIM].state.shown}).proof(VICTIM)
    return message("secure.shares", cohort.terms, proof + laid_out(cohort.terms.neighbours_of(VICTIM), parts))
