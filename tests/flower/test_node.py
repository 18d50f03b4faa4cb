"""What a node does with requests that no honest server sends."""

from dataclasses import replace

import own_data
import pytest
import torch
from fake_grid import NODES, FakeGrid, run_on, tables, together

import sketchfed
from sketchfed.config import load_config
from sketchfed.errors import InputError, SketchfedError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.engine import FlowerEngine
from sketchfed.flower.enrolment import enrolled
from sketchfed.secure import Terms
from sketchfed.secure.messages import message
from sketchfed.wire import Packet, pack

pytestmark = pytest.mark.usefixtures("in_a_run")
SESSION = b"s" * 16
BEGIN = pack(Packet(kind="begin", arrays={}, scalars={"round": 0}))
ALL = dict.fromkeys(range(3), BEGIN)
SECURE = {"privacy": {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-4}, "secure": {}}


def engine(grid: FakeGrid | None = None, *, agreed: bool = True, **others: object) -> FlowerEngine:
    """An engine over three nodes that agreed to `iterative`, or to something else."""
    config = load_config(tables(**{"algorithm": {"name": "iterative"}, **others}))
    grid = grid or FakeGrid()
    members = enrolled(grid, config, session=SESSION, clients=3, wait=1)
    config, nonces = together(grid, config, members, SESSION)
    made = FlowerEngine(grid, session=SESSION, members=members, deadline=1)
    completed = config.completed(dim=43, sizes=made.sizes)
    if agreed:
        keys = tuple(member.identity for member in members) if config.secure else ()
        made.agree(Agreement(config=completed, sizes=made.sizes, identities=keys, shape=(4,), outputs=3, nonces=nonces))
    return made


def terms(asked: FlowerEngine) -> Terms:
    """The terms of the first secure sum."""
    config = asked._agreement.config
    (found,) = config.protection(dim=43, sizes=asked.sizes).terms(config.shared_seed, 0, 1)
    return found


def test_clients_must_know_what_they_agree_to():
    with pytest.raises(InputError, match="call `agree`"):
        engine(agreed=False).ask(ALL)


def test_a_task_that_makes_no_sense_is_refused_and_the_others_answer():
    asked = engine()
    assert asked.ask({**ALL, 1: b"junk"}).keys() == {0, 2}
    assert asked.complaints.keys() == {1}
    assert asked.unheard == set(), "who refuses sends nothing"
    assert asked.ask({**ALL, 2: b""}).keys() == {0, 1}
    assert "empty" in asked.complaints[2]


def test_a_stage_without_a_secure_sum_is_refused():
    asked, own = engine(), terms(engine(**SECURE))
    for stage in ("shares", "masked", "consent", "unmask", "recover"):
        packet = pack(message(f"secure.{stage}", own, b""))
        assert asked.ask(dict.fromkeys(range(3), packet), stage) == {}
        assert set(asked.complaints.values()) == {
            "this client has not joined a secure sum, or lost what it held of it: it joins the next one."
        }
        assert asked.ask(dict.fromkeys(range(3), packet), "dance") == {}
        assert f"carries a packet 'secure.{stage}' of another stage" in asked.complaints[0]
    assert asked.ask(ALL, "shares") == {}
    assert "holds no packet of a secure sum" in asked.complaints[0]


def test_a_client_that_did_not_agree_to_evaluate_only_trains():
    asked = engine()
    assert asked.ask(ALL, "evaluate") == {}
    assert "this run does not evaluate on clients" in asked.complaints[0]


def test_what_is_hidden_is_not_evaluated():
    asked = engine(algorithm={"name": "fedavg"}, privacy={"noise_multiplier": 1.0, "delta": 1e-4})
    assert asked.ask(ALL, "evaluate") == {}
    assert "must not ask for it" in asked.complaints[0]


def test_where_noise_protects_a_client_answers_in_its_own_rounds_only():
    asked = engine(algorithm={"name": "iterative", "participation": 0.67}, privacy={"noise_multiplier": 1.0, "delta": 1e-4})
    assert len(asked.ask(ALL)) == 2
    (reason,) = asked.complaints.values()
    assert "not among those whom the public seed chooses for round 1" in reason


def test_a_server_that_asks_more_often_than_the_budget_allows_is_refused_by_the_nodes():
    asked = engine(algorithm={"name": "fedavg"}, privacy={"noise_multiplier": 2.0, "epsilon": 5.0, "delta": 1e-4})
    answers = 0
    while asked.ask({0: model(answers)}) and answers < 20:
        answers += 1
    assert 1 <= answers < 20
    assert "by its own books" in asked.complaints[0]
    assert asked.ask({1: BEGIN}), "others have budgets of their own"
    assert asked.ask({0: model(0)}), "what was answered before is there, with the same noise"


def model(value: float) -> bytes:
    """The task to start round 1 from a model in which every weight has one value."""
    return pack(Packet(kind="snapshot", arrays={"weights": torch.full((43,), float(value))}, scalars={"round": 0}))


def test_a_task_that_is_sent_again_gets_the_same_noise():
    asked = engine(algorithm={"name": "fedavg"}, privacy={"noise_multiplier": 2.0, "delta": 1e-4})
    first = asked.ask(ALL)
    assert asked.ask(ALL) == first
    assert asked.ask(dict.fromkeys(range(3), model(0))) != first


@pytest.mark.parametrize("later", [{"noise_multiplier": 1.0, "delta": 1e-4}, None], ids=["less noise", "none"])
def test_a_server_cannot_have_less_noise_than_its_run_began_with(later):
    grid = FakeGrid()
    first = engine(grid, algorithm={"name": "fedavg"}, privacy={"noise_multiplier": 2.0, "delta": 1e-4})
    second = engine(grid, algorithm={"name": "fedavg"})
    if later is not None:  # with the same draw: clients take part in one only
        config = load_config({**first._agreement.config.to_tables(), "privacy": later, "joint": first._agreement.config.joint})
        second.agree(replace(first._agreement, config=config.completed(dim=43, sizes=first.sizes)))
    assert len(first.ask(ALL)) == 3
    assert second.ask(ALL) == {}
    assert "changed the run's settings" in second.complaints[0]
    assert len(first.ask(ALL)) == 3
    assert "unset" not in grid.statuses(), "what was agreed before still is"


def test_a_client_number_beyond_the_agreement_is_refused():
    grid = FakeGrid()
    asked = engine(grid)
    asked._members.append(asked._members[0])
    assert asked.ask({3: BEGIN}) == {}
    assert asked.complaints[3] == "the run has 3 clients, and this one is asked as client 3."


def test_a_node_whose_key_changed_joins_no_secure_sum(tmp_path):
    asked = engine(**SECURE)
    (tmp_path / f"flwr/sketchfed/node-{NODES[1]}/identity.key").unlink()
    asked.ask(dict.fromkeys(range(3), pack(terms(asked).packet)), "keys")
    assert "had no part in drawing its randomness" in asked.complaints[1]


def test_a_node_with_a_directory_of_its_own_joins_only_with_those_keys(tmp_path):
    settings = {node: {"partition-id": client} for client, node in enumerate(NODES)}
    settings[NODES[1]]["directory"] = str(tmp_path / "directory")
    (tmp_path / "directory").write_text("".join(f"{client} {'ab' * 32}\n" for client in range(3)))
    asked = engine(FakeGrid(settings=settings), **SECURE)
    asked.ask(dict.fromkeys(range(3), pack(terms(asked).packet)), "keys")
    assert "has another identity than" in asked.complaints[1]


def test_a_node_that_has_fewer_examples_than_any_had_when_they_joined_does_not_train(monkeypatch):
    settings = {node: {"partition-id": client, "data": "own_data:load"} for client, node in enumerate(NODES)}
    asked = engine(FakeGrid(settings=settings))
    monkeypatch.setattr(own_data, "of_client", lambda client: own_data.points(9 if client == 2 else 20))
    assert asked.ask(ALL).keys() == {0, 1}
    assert "Its data changed since it joined" in asked.complaints[2]


@pytest.mark.parametrize("training", [{}, {"training": {"batch_loss": "named_loops:batch_loss"}}], ids=["loss", "batch_loss"])
def test_a_node_whose_passes_would_be_cut_anew_does_not_train(training, monkeypatch):
    """An example could be in two batches of a pass, and a pass is charged once."""
    settings = {node: {"partition-id": client, "data": "own_data:load"} for client, node in enumerate(NODES)}
    noise = {"unit": "example", "batches": "passes", "placement": "sent", "noise_multiplier": 1.0, "delta": 1e-3}
    once = {"name": "fedavg", "local_steps": 1, "batch": 5}
    asked = engine(FakeGrid(settings=settings), algorithm=once, privacy=noise, **training)
    monkeypatch.setattr(own_data, "of_client", lambda client: own_data.points(40))
    assert asked.ask(ALL) == {}
    assert "this node has others" in asked.complaints[0]


OWN = {node: {"partition-id": client, "data": "own_data:load"} for client, node in enumerate(NODES)}


def fails_at_client_1(client):
    if client == 1:
        raise KeyError("patient 4711")
    return own_data.points(20 + client)


def test_a_client_that_raises_is_left_out_with_type_and_message(monkeypatch):
    asked = engine(FakeGrid(settings=OWN))
    monkeypatch.setattr(own_data, "of_client", fails_at_client_1)
    assert asked.ask(ALL).keys() == {0, 2}
    assert asked.complaints == {1: "it raised KeyError: 'patient 4711'"}
    assert asked.unheard == set(), "nothing left the client"


def test_where_updates_are_hidden_the_server_learns_the_type_of_an_exception_only(monkeypatch, caplog):
    """What an exception says may be a piece of the data. The node's own log has it."""
    asked = engine(FakeGrid(settings=OWN), algorithm={"name": "fedavg"}, privacy={"noise_multiplier": 1.0, "delta": 1e-4})
    monkeypatch.setattr(own_data, "of_client", fails_at_client_1)
    assert asked.ask(ALL).keys() == {0, 2}
    assert asked.complaints[1].startswith("it raised KeyError; ")
    assert "4711" not in asked.complaints[1]
    assert "it raised KeyError: 'patient 4711'" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_wants_a_node_to_end_is_heard(monkeypatch, error):
    def leave(client):
        raise error

    asked = engine(FakeGrid(settings=OWN))
    monkeypatch.setattr(own_data, "of_client", leave)
    with pytest.raises(error):
        asked.ask(ALL)


def test_random_transforms_on_nodes_are_those_of_the_local_engine():
    settings = {node: {"partition-id": client, "data": "own_scans:load"} for client, node in enumerate(NODES)}
    chosen, frozen = (
        tables("fedavg") | {"data": {"name": f"own_scans:{name}", "partition": "natural"}} for name in ("data", "once")
    )
    there, here = run_on(FakeGrid(settings=settings), chosen), sketchfed.run(chosen)
    assert torch.equal(there.weights, here.weights)
    assert not torch.equal(sketchfed.run(frozen).weights, here.weights)


def test_a_node_can_have_its_dataset_read_once():
    settings = {node: {"partition-id": client, "data": "own_scans:load"} for client, node in enumerate(NODES)}
    for own in settings.values():
        own["redraw"] = False
    first, again = (engine(FakeGrid(settings=settings)).ask(ALL) for _ in range(2))
    assert first == again
    for own in settings.values():
        own["redraw"] = True
    assert engine(FakeGrid(settings=settings)).ask(ALL) != first
    settings[NODES[1]]["redraw"] = "never"
    with pytest.raises(SketchfedError, match="redraw must be true or false, got 'never'"):
        engine(FakeGrid(settings=settings))


def test_runs_one_after_the_other_do_not_mix():
    grid = FakeGrid()
    first = engine(grid)
    reply = first.ask(ALL)
    second = FlowerEngine(grid, session=b"t" * 16, members=first.members, deadline=1)
    second.agree(first._agreement)
    assert second.ask(ALL) == reply
    assert grid.statuses().count("unset") == 0
    assert first.ask(ALL) == reply
    assert grid.statuses().count("unset") == 3, "nodes serve one run at a time"
