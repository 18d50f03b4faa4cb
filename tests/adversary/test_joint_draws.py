"""Seeds that no server chooses: who grinds, equivocates, forges or changes its mind gets nowhere."""

from dataclasses import replace
from hashlib import sha256

import pytest
from fake_grid import NODES
from lying_server import ALL, NOISE, SESSION, agreed, asked, grid

from sketchfed.errors import InputError, WireError
from sketchfed.flower.drawing import drawn
from sketchfed.flower.engine import FlowerEngine
from sketchfed.nodes.drawing import SERVER, Committed, Drawn, commitment, read_roll
from sketchfed.secure import Identity
from sketchfed.seeds import SecretSeed

pytestmark = pytest.mark.usefixtures("in_a_run")
PRIVATE = {"algorithm": {"name": "fedavg", "participation": 0.67}, "privacy": NOISE}


def other(engine: FlowerEngine, **changes: object) -> FlowerEngine:
    """The same federation, with an agreement that the server changed."""
    engine.agree(replace(engine._agreement, **changes))
    return engine


def test_a_seed_that_the_server_chose_is_refused():
    """The server tries seeds until the cohort suits it. No node takes part in a run with such a seed."""
    engine = agreed(grid(), **PRIVATE)
    assert engine._agreement.config.joint
    chosen = replace(engine._agreement.config, joint=sha256(b"130,504 tries").hexdigest()[:32])
    assert other(engine, config=chosen).ask(ALL) == {}
    assert "the run's seed is not what the server and its clients drew" in engine.complaints[0]


def test_a_run_without_a_joint_draw_is_refused_if_it_hides_anything():
    engine = agreed(grid(), **PRIVATE)
    plain = replace(engine._agreement.config, joint="")
    assert other(engine, config=plain, nonces=()).ask(ALL) == {}
    assert "a draw of 3 clients has 4 parts, 0 arrived" in engine.complaints[0]


def test_the_server_cannot_reveal_something_else_than_it_committed_to():
    engine = agreed(grid(), **PRIVATE)
    nonces = (bytes(32), *engine._agreement.nonces[1:])
    config = replace(engine._agreement.config, joint=Drawn(nonces).joint(SESSION))
    assert other(engine, nonces=nonces, config=config).ask(ALL) == {}
    assert "the server revealed something else than it committed to" in engine.complaints[0]


def test_an_accomplice_cannot_choose_its_part_after_it_has_seen_those_of_the_others():
    """Client 2 and the server try values for its part until the seed suits them. Clients compare it with its commitment."""
    engine = agreed(grid(), **PRIVATE)
    nonces = (*engine._agreement.nonces[:3], bytes(32))
    config = replace(engine._agreement.config, joint=Drawn(nonces).joint(SESSION))
    assert other(engine, nonces=nonces, config=config).ask({0: ALL[0], 1: ALL[1]}) == {}
    assert "what client 2 is said to have revealed is not what it committed to" in engine.complaints[0]


def test_a_client_answers_one_commitment_of_the_server_in_a_run():
    nodes = grid()
    agreed(nodes, **PRIVATE)
    again = asked(nodes, NODES[0], "commit", payload=commitment(SESSION, SERVER, bytes(32)))
    assert again.status == "refused"
    assert "for the second time in one run" in again.reason


def test_a_client_reveals_for_one_roll_only_and_the_population_is_fixed_with_it():
    """The server leaves client 2 out of a second roll, or puts a client of its own in its place."""
    nodes = grid()
    engine = agreed(nodes, **PRIVATE)
    server = commitment(SESSION, SERVER, engine._agreement.nonces[0])
    said = [Committed.from_bytes(asked(nodes, node, "commit", payload=server).payload) for node in NODES]
    stranger = Committed.by(Identity.of(SecretSeed()), SESSION, server, bytes(32))
    for roll in (said[:2], [*said[:2], stranger]):
        reply = asked(nodes, NODES[0], "reveal", payload=b"".join(each.to_bytes() for each in roll))
        assert reply.status == "refused"
        assert "Clients of a run are fixed once they have drawn" in reply.reason
    engine = other(engine, identities=tuple(Identity.of(SecretSeed()).public for _ in range(3)))
    assert engine.ask(ALL) == {}
    assert "the clients of the run are not those that drew its randomness" in engine.complaints[0]


@pytest.mark.parametrize("session", [SESSION, b"another session."])
def test_nothing_is_revealed_to_a_server_that_committed_to_nothing(session):
    reply = asked(grid(), NODES[0], "reveal", session=session, payload=bytes(Committed.size))
    assert reply.status == "refused"
    assert "has committed to nothing in this run" in reply.reason


ROLLS = {
    "empty": lambda roll: b"",
    "cut off": lambda roll: roll[:-1],
    "a commitment twice": lambda roll: roll[: Committed.size] * 2,
    "a forged signature": lambda roll: roll[:-64] + bytes(64),
    "another commitment": lambda roll: roll[:32] + bytes(32) + roll[64:],
}


@pytest.mark.parametrize("forgery", ROLLS)
def test_a_roll_that_was_tampered_with_is_refused(forgery):
    server = commitment(SESSION, SERVER, bytes(32))
    identities = [Identity.of(SecretSeed()) for _ in range(3)]
    roll = b"".join(Committed.by(identity, SESSION, server, bytes(32)).to_bytes() for identity in identities)
    assert len(read_roll(roll, SESSION, server)) == 3
    with pytest.raises(WireError):
        read_roll(ROLLS[forgery](roll), SESSION, server)
    with pytest.raises(WireError, match="forged or replayed"):
        read_roll(roll, b"another session.", server)


def test_a_client_that_does_not_reveal_keeps_the_run_from_beginning_and_is_named():
    nodes = grid()
    members = agreed(nodes, **PRIVATE).members

    def silent(request, reply):
        return None if request.stage == "reveal" and request.session != SESSION else reply

    nodes.tamper = silent
    with pytest.raises(InputError, match="client 0 takes no part in drawing the run's randomness"):
        drawn(nodes, members, session=b"t" * 16)


def test_two_runs_with_the_same_settings_have_other_seeds_and_so_other_cohorts_and_sums():
    first, second = (agreed(grid(), session=bytes([number]) * 16, **PRIVATE)._agreement.config.joint for number in (1, 2))
    assert first != second
