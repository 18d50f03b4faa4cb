"""Runs over a grid whose nodes answer in this process; those over a real one are in test_federation.py."""

from functools import partial

import pytest
from fake_grid import NODES, FakeGrid, run_on, same, tables

import sketchfed
from runs.tiny import ALGORITHMS
from sketchfed.flower.desk import write_identity
from sketchfed.flower.federation import Federation
from sketchfed.flower.state import ClientState
from sketchfed.runs.loop import reopen

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


def test_a_node_whose_replica_is_not_that_of_the_others_is_left_out_of_a_secure_sum_and_sent_the_whole_model(caplog):
    chosen = {**tables({"name": "iterative"}, **SECURE), "secure": {"survivors": 0.6}}
    grid = FakeGrid()

    def err():
        state = ClientState(grid.contexts[NODES[2]].state, grid.requests[-1][1].session)
        kept = state.settled(0, None)
        kept.replica.weights[0] += 1e-6
        state.keep(kept)

    at_request(grid, 4, err)
    assert [line["participants"] for line in run_on(grid, chosen).metrics] == [3, 2, 3]
    assert "goes on without client 2: masked: it computed its values from another model" in caplog.text


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
