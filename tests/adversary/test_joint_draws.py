"""Seeds that no server chooses: who grinds, equivocates, forges or changes its mind gets nowhere."""

import time
from dataclasses import replace
from hashlib import sha256

import pytest
from fake_grid import NODES, tables
from lying_server import ALL, NOISE, SESSION, SUMS, agreed, asked, grid

from sketchfed.config import load_config
from sketchfed.errors import InputError, WireError
from sketchfed.flower.drawing import drawn
from sketchfed.flower.engine import FlowerEngine
from sketchfed.flower.enrolment import offered
from sketchfed.flower.messages import Reply
from sketchfed.nodes.drawing import SERVER, Committed, Drawn, Opening, commitment, read_roll, settled
from sketchfed.secure import Identity
from sketchfed.seeds import SecretSeed

pytestmark = pytest.mark.usefixtures("in_a_run")
PRIVATE = {"algorithm": {"name": "fedavg", "participation": 0.67}, "privacy": NOISE}
OFFER = tables(**PRIVATE, data={"name": "given", "clients": 3})
OFFERED = load_config(OFFER).to_tables()


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
    again = asked(nodes, NODES[0], "commit", payload=commitment(SESSION, SERVER, bytes(32)) + offered(load_config(OFFER)))
    assert again.status == "refused"
    assert "for the second time in one run" in again.reason


def test_a_client_reveals_for_one_roll_only_and_the_population_is_fixed_with_it():
    """The server leaves client 2 out of a second roll, or puts a client of its own in its place."""
    nodes = grid()
    engine = agreed(nodes, **PRIVATE)
    opening = Opening(commitment(SESSION, SERVER, engine._agreement.nonces[0]), settled(OFFERED))
    payload = opening.commitment + offered(load_config(OFFER))
    said = [Committed.from_bytes(asked(nodes, node, "commit", payload=payload).payload) for node in NODES]
    stranger = Committed.by(Identity.of(SecretSeed()), SESSION, opening, bytes(32))
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
    opening = Opening(commitment(SESSION, SERVER, bytes(32)), settled(OFFERED))
    identities = [Identity.of(SecretSeed()) for _ in range(3)]
    roll = b"".join(Committed.by(identity, SESSION, opening, bytes(32)).to_bytes() for identity in identities)
    assert len(read_roll(roll, SESSION, opening)) == 3
    with pytest.raises(WireError):
        read_roll(ROLLS[forgery](roll), SESSION, opening)
    with pytest.raises(WireError, match="forged or replayed"):
        read_roll(roll, b"another session.", opening)


def test_a_client_that_does_not_reveal_keeps_the_run_from_beginning_and_is_named(monkeypatch):
    monkeypatch.setattr("sketchfed.flower.drawing._SECONDS", 1.0)
    nodes = grid()
    members = agreed(nodes, **PRIVATE).members

    def silent(request, reply):
        return None if request.stage == "reveal" and request.session != SESSION else reply

    nodes.tamper = silent
    with pytest.raises(InputError, match="client 0 takes no part in drawing the run's randomness"):
        drawn(nodes, members, load_config(OFFER), session=b"t" * 16)


def test_two_runs_with_the_same_settings_have_other_seeds_and_so_other_cohorts_and_sums():
    first, second = (agreed(grid(), session=bytes([number]) * 16, **PRIVATE)._agreement.config.joint for number in (1, 2))
    assert first != second


def draw_alone(nodes, session: bytes) -> Reply:
    """What node 0 reveals to a server that says no hello and draws with this node alone."""
    server = commitment(session, SERVER, bytes(32))
    said = asked(nodes, NODES[0], "commit", session=session, payload=server + offered(load_config(OFFER)))
    if said.status != "done":
        return said
    return asked(nodes, NODES[0], "reveal", session=session, payload=said.payload)


def limited(tmp_path, text: str):
    (tmp_path / "policy.toml").write_text(text)
    return grid(policy=str(tmp_path / "policy.toml"))


def test_a_server_draws_no_more_often_than_a_node_may_be_asked_to_join(tmp_path):
    """It draws in one session after the other, and would send the agreement of the one whose cohorts suit it."""
    nodes = limited(tmp_path, "[limits]\nenrolments = 2\n")
    said = [draw_alone(nodes, bytes([number]) * 16) for number in (1, 2, 2, 3, 4)]
    assert [reply.status for reply in said] == ["done", "done", "done", "refused", "refused"]
    assert "line 2 of the node's policy: limits.enrolments" in said[-1].reason


def test_a_node_draws_for_no_run_that_its_policy_refuses(tmp_path):
    reply = draw_alone(limited(tmp_path, "[limits]\nrounds = 2\n"), SESSION)
    assert reply.status == "refused"
    assert "limits.rounds = 2" in reply.reason


@pytest.mark.parametrize("stage", ["commit", "reveal"])
def test_a_node_whose_policy_cannot_be_read_draws_nothing(stage, tmp_path):
    nodes = limited(tmp_path, "")
    server = commitment(SESSION, SERVER, bytes(32)) + offered(load_config(OFFER))
    roll = asked(nodes, NODES[0], "commit", payload=server).payload
    (tmp_path / "policy.toml").write_text("[limits")
    reply = asked(nodes, NODES[0], stage, payload={"commit": server, "reveal": roll}[stage])
    assert reply.status == "refused"
    assert "this node's policy cannot be read" in reply.reason


CHANGES = {
    "participation": {"algorithm": {"name": "fedavg", "participation": 0.34}},
    "rounds": {"algorithm": {"name": "fedavg", "participation": 0.67, "rounds": 1_000}},
    "privacy": {"privacy": {**NOISE, "clip": 50.0}},
    "sums": {"algorithm": {"name": "fedavg", "participation": 1.0}, **SUMS},
}


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_decide_cohorts_are_fixed_before_anything_is_drawn(change):
    """The seed is what was drawn, but the server chooses how many clients a round has when it knows the seed."""
    nodes = grid()
    engine = agreed(nodes, **PRIVATE)
    before = engine._agreement
    later = load_config(tables(**{**PRIVATE, **CHANGES[change]}, data={"name": "given", "clients": 3}))
    config = replace(later, joint=before.config.joint).completed(dim=43, sizes=engine.sizes)
    keys = tuple(member.identity for member in engine.members) if config.secure else ()
    assert other(engine, config=config, identities=keys).ask(ALL) == {}
    assert "are not those for which its randomness was drawn" in engine.complaints[0]
    assert other(engine, config=before.config, identities=()).ask(ALL), "what was offered still is"


def test_clients_that_were_offered_different_settings_do_not_reveal():
    nodes = grid()
    agreed(nodes, **PRIVATE)
    session, server = b"t" * 16, commitment(b"t" * 16, SERVER, bytes(32))
    offers = [tables(**PRIVATE, rounds=rounds, data={"name": "given", "clients": 3}) for rounds in (3, 3, 4)]
    roll = b"".join(
        asked(nodes, node, "commit", session=session, payload=server + offered(load_config(offer))).payload
        for node, offer in zip(NODES, offers, strict=True)
    )
    said = [asked(nodes, node, "reveal", session=session, payload=roll) for node in NODES]
    assert [reply.status for reply in said] == ["refused"] * 3
    assert "is not signed by it for this run" in said[0].reason


def test_draws_of_runs_that_are_over_are_forgotten(monkeypatch):
    """A server cannot collect draws for ever, and the store does not grow with them."""
    nodes, start = grid(), time.time()
    old, alive = agreed(nodes, session=b"o" * 16, **PRIVATE), agreed(nodes, session=b"a" * 16, **PRIVATE)
    monkeypatch.setattr(time, "time", lambda: start + 20 * 86_400)
    first = alive.ask(ALL)
    assert first
    monkeypatch.setattr(time, "time", lambda: start + 31 * 86_400)
    agreed(nodes, session=b"n" * 16, **PRIVATE)
    assert old.ask(ALL) == {}
    assert "had no part in drawing its randomness" in old.complaints[0]
    assert alive.ask(ALL) == first, "a run that is under way goes on"


def test_a_draw_that_is_too_old_is_refused_whether_or_not_anything_was_pruned(monkeypatch):
    """Draws are pruned when a run joins. A server that starts no other run must not keep its draws by that."""
    nodes, start = grid(), time.time()
    old, alive = agreed(nodes, session=b"o" * 16, **PRIVATE), agreed(nodes, session=b"a" * 16, **PRIVATE)
    monkeypatch.setattr("sketchfed.nodes.store.NodeStore.prune", lambda *_: None)
    monkeypatch.setattr(time, "time", lambda: start + 29 * 86_400)
    first = alive.ask(ALL)
    assert first
    monkeypatch.setattr(time, "time", lambda: start + 31 * 86_400)
    assert old.ask(ALL) == {}
    assert "had no part in drawing its randomness" in old.complaints[0]
    assert alive.ask(ALL) == first, "a run that is under way goes on"


@pytest.mark.parametrize("day", [29, 31])
def test_what_was_committed_long_ago_is_not_revealed(day, monkeypatch):
    nodes, start, server = grid(), time.time(), commitment(SESSION, SERVER, bytes(32)) + offered(load_config(OFFER))
    roll = asked(nodes, NODES[0], "commit", payload=server).payload
    monkeypatch.setattr(time, "time", lambda: start + day * 86_400)
    reply = asked(nodes, NODES[0], "reveal", payload=roll)
    assert reply.status == ("done" if day < 30 else "refused")
