"""Runs over a grid whose nodes answer in this process; those over a real one are in test_federation.py."""

from functools import partial

import pytest
import torch
from fake_grid import NODES, FakeGrid, run_on, same, tables

import sketchfed
from runs.tiny import ALGORITHMS
from sketchfed.flower.desk import write_identity
from sketchfed.flower.federation import Federation
from sketchfed.flower.state import ClientState
from sketchfed.runs.starting import reopen

pytestmark = pytest.mark.usefixtures("in_a_run")
NOISE = {"noise_multiplier": 1.0, "delta": 1e-4, "insecure_noise_seed": 7}
SECURE = {"privacy": {"name": "discrete_gaussian", **NOISE}, "secure": {}}


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_comes_to_the_bits_of_the_local_engine(kind):
    grid = FakeGrid()
    assert same(run_on(grid, tables(kind)), sketchfed.run(tables(kind)))
    assert set(grid.statuses()) == {"done"}, "nobody forgot what was agreed"


def test_secure_sums_come_to_the_bits_of_the_local_engine():
    layers = {"name": "iterative", "local_steps": 1, "rounds": 2}, {"ratio": 0.3, "blocks": "layer", "plain": ["*.bias"]}
    for chosen in (tables("fedavg", **SECURE), tables(layers[0], sketch=layers[1], **SECURE)):
        made = run_on(FakeGrid(), chosen)
        assert same(made, sketchfed.run({**chosen, "joint": made.config.joint}))


@pytest.mark.parametrize("beside", [{"weighting": "examples"}, {"scaffold": True}, {"feddyn": 0.1}], ids=str)
def test_what_travels_beside_an_update_comes_to_the_bits_of_the_local_engine(beside):
    chosen = tables({"name": "fedavg", "rounds": 3, "local_steps": 2, **beside})
    made = run_on(FakeGrid(), chosen)
    assert same(made, sketchfed.run({**chosen, "joint": made.config.joint}))


LOOP = {"training": {"train": "named_loops:train", "evaluate": "named_loops:evaluate", "lr": 0.05}}


@pytest.mark.parametrize("protection", [{}, {"secure": {"clip": 1.0}}], ids=["clear", "secure sums"])
def test_a_training_loop_of_the_users_own_comes_to_what_the_local_engine_comes_to(protection):
    """Sums without noise are rounded at random, so they are equal up to that."""
    chosen = {**tables(), **LOOP, **protection, "algorithm": {"name": "iterative", "rounds": 3}}
    made = run_on(FakeGrid(), chosen)
    expected = sketchfed.run({**chosen, "joint": made.config.joint})
    torch.testing.assert_close(made.weights, expected.weights, rtol=0, atol=1e-5 if protection else 0)
    assert [line["participants"] for line in made.metrics] == [3, 3, 3]
    assert [line["top3"] for line in made.metrics] == [line["top3"] for line in expected.metrics]


def test_a_training_loop_gets_what_a_nodes_own_function_loads():
    settings = {node: {"partition-id": at, "data": "named_loops:load"} for at, node in enumerate(NODES)}
    chosen = {**tables(), **LOOP, "algorithm": {"rounds": 2}}
    made = run_on(FakeGrid(settings=settings), chosen)
    assert torch.equal(made.weights, sketchfed.run(chosen).weights)


LOSS = {
    "training": {
        "batch_loss": "named_loops:batch_loss",
        "evaluate": "named_loops:evaluate",
        "optimiser": "adam",
        "optimiser_state": "kept",
        "betas": [0.8, 0.99],
        "round_schedule": "linear",
        "proximal": 0.2,
    }
}


@pytest.mark.parametrize("protection", [{}, {"secure": {"clip": 1.0}}], ids=["clear", "secure sums"])
def test_a_loss_of_a_batch_and_an_optimiser_come_to_what_the_local_engine_comes_to(protection):
    """Sums without noise are rounded at random, so they are equal up to that."""
    chosen = {**tables(), **LOSS, **protection, "algorithm": {"name": "iterative", "rounds": 3}}
    made = run_on(FakeGrid(), chosen)
    expected = sketchfed.run({**chosen, "joint": made.config.joint})
    torch.testing.assert_close(made.weights, expected.weights, rtol=0, atol=1e-5 if protection else 0)
    assert [line["loss"] for line in made.metrics] == pytest.approx([line["loss"] for line in expected.metrics], rel=1e-4)


def test_a_loss_of_a_batch_gets_what_a_nodes_own_function_loads():
    settings = {node: {"partition-id": at, "data": "named_loops:load"} for at, node in enumerate(NODES)}
    chosen = {**tables(), **LOSS, "algorithm": {"rounds": 2, "batch": 5}}
    made = run_on(FakeGrid(settings=settings), chosen)
    assert torch.equal(made.weights, sketchfed.run({**chosen, "joint": made.config.joint}).weights)


def test_noise_of_clients_and_of_the_server_comes_to_the_bits_of_the_local_engine():
    for observer in ("server", "public"):
        chosen = tables("fedavg", privacy={"observer": observer, **NOISE})
        made = run_on(FakeGrid(), chosen)
        assert same(made, sketchfed.run({**chosen, "joint": made.config.joint}))


def test_the_agreement_is_sent_once_and_named_by_its_digest_from_then_on():
    grid = FakeGrid()
    run_on(grid, tables("fedavg"))
    for node in NODES:
        sizes = [len(request.agreement) for to, request in grid.requests if to == node and request.stage == "train"]
        assert sizes[0] > 32
        assert sizes[1:] == [32, 32]


def at_request(grid, count, do):
    """Has something done to a grid when it brings the reply to a certain request to train."""

    def tamper(request, reply):
        if request.stage in ("train", "masked") and sum(other.stage == request.stage for _, other in grid.requests) == count:
            do()
        return reply

    grid.tamper = tamper
    return grid


@pytest.mark.parametrize("kind", ["few bits, few participants, momentum", "a subspace that follows", "a centred subspace"])
def test_nodes_that_were_started_anew_are_told_again_and_caught_up_to_the_same_bits(kind, caplog):
    grid = FakeGrid()
    at_request(grid, 6, lambda: [grid.forget(node) for node in NODES])
    result = run_on(grid, tables(kind, rounds=5))
    assert result.weights.equal(sketchfed.run(tables(kind, rounds=5)).weights)
    assert "unset" in grid.statuses()
    assert "lost what it held" in caplog.text


def test_a_node_that_was_started_anew_before_a_secure_sum_is_caught_up_to_the_same_bits():
    chosen = {**tables({"name": "iterative"}, **SECURE), "sketch": {"ratio": 0.5}}
    grid = FakeGrid()
    at_request(grid, 3, lambda: grid.forget(NODES[2]))
    result = run_on(grid, chosen)
    assert result.weights.equal(sketchfed.run({**chosen, "joint": result.config.joint}).weights)


def err(grid, *clients, made=0):
    """The replicas of these clients in a round come to other bits, each to its own, as those of another processor may."""
    for client in clients:
        state = ClientState(grid.contexts[NODES[client]].state, grid.requests[-1][1].session)
        kept = state.settled(made, None)
        kept.replica.weights[0] += 1e-6 * (client + 1)
        state.keep(kept)


def erring(*clients, at):
    """A grid on which replicas err when it brings a certain reply."""
    grid = FakeGrid()
    return at_request(grid, at, lambda: err(grid, *clients))


def test_a_node_whose_replica_is_not_the_servers_is_left_out_of_a_secure_sum_and_sent_the_whole_model(caplog):
    chosen = {**tables({"name": "iterative"}, **SECURE), "secure": {"survivors": 0.6}}
    assert [line["participants"] for line in run_on(erring(2, at=3), chosen).metrics] == [3, 2, 3]
    assert "goes on without client 2: masked: it computed its values from another model" in caplog.text


@pytest.mark.parametrize("erred", [(1, 2), (0, 1, 2)], ids=["most", "all"])
def test_where_most_replicas_are_not_the_servers_the_next_attempt_sends_whole_models(erred, caplog):
    chosen = {**tables({"name": "iterative"}, **SECURE), "secure": {"survivors": 0.6}}
    assert [line["participants"] for line in run_on(erring(*erred, at=3), chosen).metrics] == [3, 3, 3]
    assert "client 0" not in caplog.text or 0 in erred


def test_a_node_whose_replica_always_errs_is_sent_whole_models_after_the_first_time():
    chosen = {**tables({"name": "iterative"}, rounds=6, **SECURE), "secure": {"survivors": 0.6}}
    grid = FakeGrid()

    def tamper(request, reply):
        if (request.stage, request.client) == ("masked", 2):
            masked = [each for _, each in grid.requests if (each.stage, each.client) == ("masked", 2)]
            err(grid, 2, made=len(masked) - 1)
        return reply

    grid.tamper = tamper
    assert [line["participants"] for line in run_on(grid, chosen).metrics] == [3, 2, 3, 3, 3, 3]


STATES = {
    "momentum": {"algorithm": {"name": "fedavg", "global_momentum": 0.5}},
    "momentum of replicas": {
        "algorithm": {"name": "iterative", "global_momentum": 0.5},
        "sketch": {"ratio": 0.5},
    },
    "history of the server": ALGORITHMS["fetchsgd"],
    "sketches of the model": ALGORITHMS["blind clients"] | {"algorithm": {"name": "dbcl", "public_start": True}},
    "a subspace": {"algorithm": {"name": "dome"}, "subspace": {"name": "incremental_svd", "size": 8}},
    "an image": {
        "algorithm": {"name": "dome"},
        "subspace": {"name": "incremental_svd", "size": 6, "image": [2, 2], "frequencies": 3, "centre": True},
    },
}


@pytest.mark.parametrize("kind", STATES)
def test_honest_nodes_compute_from_the_same_whatever_brought_them_there(kind, caplog):
    """Some follow updates, and others lost what they held, before round 1 or later, and are sent the whole model."""
    own, grid = STATES[kind], FakeGrid()
    lost = {1: NODES[2], 3: NODES[1], 6: NODES[0]}

    def tamper(request, reply):
        if request.stage == "masked":
            grid.forget(lost.get(sum(other.stage == "masked" for _, other in grid.requests), NODES[2]))
        return reply

    grid.tamper = tamper
    run_on(grid, {**tables(own["algorithm"], **SECURE), **{key: own[key] for key in own if key != "algorithm"}, "secure": {}})
    assert "another model" not in caplog.text


@pytest.mark.parametrize("kind", ["momentum of replicas", "an image"])
def test_a_server_that_was_interrupted_holds_what_its_nodes_hold(kind, tmp_path, caplog):
    """It reads its replica from the checkpoint, and they from Flower's context. One erred, and is sent the whole model."""
    own, grid = STATES[kind], erring(2, at=3)

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    chosen = {**tables(own["algorithm"], rounds=4, **SECURE), "secure": {"survivors": 0.6}}
    with pytest.raises(KeyboardInterrupt):
        run_on(grid, chosen | {key: own[key] for key in own if key != "algorithm"}, tmp_path / "run", on_round=stop)
    assert caplog.text.count("another model") == 1
    run = reopen(tmp_path / "run", host=partial(Federation, grid=grid)).finish()
    assert [line["participants"] for line in run.metrics] == [3, 2, 3, 3]


def test_a_node_that_loses_flowers_context_goes_on_with_its_part_in_a_secure_sum():
    """The part is in the node's store."""
    chosen = {**tables({"name": "iterative"}, **SECURE), "secure": {"survivors": 0.6}}
    grid = FakeGrid()
    at_request(grid, 1, lambda: grid.forget(NODES[2]))
    assert [line["participants"] for line in run_on(grid, chosen).metrics] == [3, 3, 3]


def test_a_node_that_comes_back_under_another_number_is_the_same_client(tmp_path, caplog):
    keys = {node: tmp_path / f"{node}.key" for node in NODES}
    settings = {node: {"partition-id": at, "identity": str(keys[node])} for at, node in enumerate(NODES)}
    for key in keys.values():
        write_identity(key)
    grid = FakeGrid(settings=settings)
    at_request(grid, 6, lambda: grid.move(NODES[1], to=200))
    chosen = tables({"name": "iterative"}, rounds=4)
    assert run_on(grid, chosen).weights.equal(sketchfed.run(chosen).weights)
    assert "client 1 is back on another node" in caplog.text


def test_an_interrupted_run_goes_on_with_what_its_clients_kept(tmp_path):
    grid, chosen = FakeGrid(), tables("error feedback", rounds=4)

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on(grid, chosen, tmp_path / "run", on_round=stop)
    assert same(reopen(tmp_path / "run", host=partial(Federation, grid=grid)).finish(), sketchfed.run(chosen))
    assert "unset" not in grid.statuses()


def test_clients_that_go_back_with_the_server_forget_the_reply_that_was_not_used(tmp_path):
    """The run is stopped inside a round: after its clients have answered, before the server has used that."""
    grid, chosen = FakeGrid(), tables({"name": "fedavg", "error_feedback": True}, rounds=3, codec={"name": "top_k", "size": 9})

    def interrupt():
        grid.tamper = lambda _, reply: reply
        raise KeyboardInterrupt

    at_request(grid, 6, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_on(grid, chosen, tmp_path / "run")
    assert same(reopen(tmp_path / "run", host=partial(Federation, grid=grid)).finish(), sketchfed.run(chosen))
