"""All clients in one process: the same bits for any number of workers, and nothing kept that need not be."""

import gc

import pytest
import torch
from torch import nn

from federation import SEED, advanced, data_of, federation, unprotected, weights_of
from problems import dense_model
from sketchfed.algorithms import Dbcl, FedAvg, FetchSgd, Iterative, Replica
from sketchfed.algorithms.forms import unified
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.errors import InputError, NoReplyError, SecureSumError
from sketchfed.protection import SecureSettings
from sketchfed.rounds import LocalEngine, Participant
from sketchfed.rounds.server import Server
from sketchfed.training import Examples, make_trainer
from sketchfed.vectors import flatten

SKETCH = SketchSettings(ratio=0.2, bits=4)
FEEDBACK = FedAvg(codec=CodecSettings(name="sketched"), sketch=SketchSettings(size=9), error_feedback=True)


def seeded(*layers: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(*[layer() for layer in layers])


MODELS = {
    "mlp": (lambda: dense_model("mlp", hidden=[16, 16]), (6,)),
    "convolution": (lambda: seeded(lambda: nn.Conv2d(1, 4, 3), nn.ReLU, nn.Flatten, lambda: nn.Linear(64, 4)), (1, 6, 6)),
    "dropout": (lambda: seeded(lambda: nn.Linear(6, 30), nn.ReLU, nn.Dropout, lambda: nn.Linear(30, 4)), (6,)),
}


@pytest.mark.parametrize(
    "algorithm",
    [
        Iterative(sketch=SKETCH, participation=0.6, batch=3, local_momentum=0.5, global_momentum=0.5),
        FEEDBACK,
        Dbcl(vary=0.3, participation=0.6, batch=3),
    ],
    ids=["iterative", "feedback", "dbcl"],
)
@pytest.mark.parametrize("model", MODELS)
def test_the_number_of_workers_does_not_change_a_bit(model, algorithm):
    make, shape = MODELS[model]
    data = data_of(8, loss="cross_entropy", shape=shape)

    def run(workers: int) -> Server:
        return advanced(federation(algorithm, data, module=make(), loss="cross_entropy", workers=workers), 4)

    alone, together = run(1), run(3)
    assert torch.equal(weights_of(together), weights_of(alone))
    assert together.engine.replies == alone.engine.replies
    assert together.tally == alone.tally


@pytest.mark.parametrize(
    "algorithm",
    [
        Iterative(sketch=SKETCH, participation=0.4),
        Iterative(sketch=SKETCH, participation=0.4, global_momentum=0.9),
        Iterative(sketch=SKETCH, participation=0.4, form="projection"),
        FetchSgd(sketch=SketchSettings(name="count", size=15), rows=3, participation=0.4),
        FedAvg(participation=0.4),
    ],
    ids=["iterative", "momentum", "projection", "fetchsgd", "fedavg"],
)
@pytest.mark.parametrize("shared_start", [True, False])
def test_one_replica_for_all_is_as_good_as_one_for_each(algorithm, shared_start):
    """Clients that share nothing, and were absent most rounds, send the very same bytes."""
    shared, apart = (
        advanced(federation(algorithm, data_of(6), apart=apart, shared_start=shared_start), 12) for apart in (False, True)
    )
    assert shared.engine.tasks == apart.engine.tasks
    assert shared.engine.replies == apart.engine.replies
    assert torch.equal(weights_of(shared), weights_of(apart))
    held = {replica.round for replica in apart.engine.inner.replicas.values() if replica}
    assert len(held) > 1, "all were at one round, so nothing was replayed"


def test_blind_clients_need_nothing_but_their_tasks():
    """Clients that share nothing are sent the same, and what they hold is a sketch of some round."""
    algorithm = Dbcl(output="sketched", participation=0.4, vary=0.4)
    shared, apart = (advanced(federation(algorithm, data_of(6), apart=apart), 8) for apart in (False, True))
    assert shared.engine.replies == apart.engine.replies
    assert torch.equal(weights_of(shared), weights_of(apart))
    for replica in apart.engine.inner.replicas.values():
        if replica is not None:
            assert len(replica.weights) == shared.algorithm.given(SEED, replica.round).sketch.size < len(weights_of(shared))


def test_dropout_gets_one_worker():
    server = federation(
        FedAvg(), data_of(2, loss="cross_entropy"), module=MODELS["dropout"][0](), loss="cross_entropy", workers=8
    )
    assert server.engine.inner._pool._max_workers == 1


def test_memories_are_kept_only_where_an_algorithm_has_them():
    for algorithm, kept in (
        (FedAvg(), False),
        (Iterative(sketch=SKETCH), False),
        (FetchSgd(sketch=SketchSettings(name="count", size=15), rows=3), False),
        (FEEDBACK, True),
        (Iterative(sketch=SKETCH, form="projection"), True),
    ):
        engine = advanced(federation(algorithm, data_of(4)), 2).engine.inner
        assert set(engine.memories) == engine.changed == (set(range(4)) if kept else set())


def test_a_client_that_was_absent_keeps_its_memory():
    server = federation(Iterative(sketch=SKETCH, form="projection", participation=0.5), data_of(4))
    for _ in range(6):
        before = dict(server.engine.inner.memories)
        server.advance()
        for client, memory in server.engine.inner.memories.items():
            took_part = client in server.engine.tasks[-1]
            assert took_part != (client in before and torch.equal(memory.owed, before[client].owed))


def test_a_client_that_fails_is_left_out_with_its_reason_and_the_others_go_on():
    data = data_of(4)

    def served(client: int) -> Examples:
        if client == 2:
            raise InputError("the disk of client 2 is gone")
        return data[client]

    server = federation(FedAvg(), data)
    server.engine.inner._examples = served
    server.advance()
    assert set(server.engine.replies[0]) == {0, 1, 3}
    assert server.engine.complaints == {2: "the disk of client 2 is gone"}
    three = advanced(federation(FedAvg(), [data[0], data[1], data[3]]), 1)
    assert torch.allclose(weights_of(server), weights_of(three), atol=1e-6)
    server.engine.inner._examples = data.__getitem__
    server.advance()
    assert server.engine.complaints == {}


class DiskError(Exception):
    """An exception of somebody's own."""


ERRORS = [ValueError("9 is no digit"), KeyError("label"), RuntimeError("out of memory"), ZeroDivisionError(), DiskError("gone")]


def failing(data: list[Examples], error: BaseException, *clients: int) -> object:
    """Where examples come from, if reading those of some clients raises."""

    def served(client: int) -> Examples:
        if client in clients:
            raise error
        return data[client]

    return served


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_leaves_out_the_client_that_raised_it(error, caplog):
    data = data_of(4)
    server, three = federation(FedAvg(), data, workers=2), federation(FedAvg(), [data[0], data[1], data[3]])
    server.engine.inner._examples = failing(data, error, 2)
    server.advance()
    assert set(server.engine.replies[0]) == {0, 1, 3}
    assert server.engine.complaints == {2: f"it raised {type(error).__name__}: {error}".rstrip(": ")}
    assert f"round 1 goes on without client 2: it raised {type(error).__name__}" in caplog.text
    assert torch.allclose(weights_of(server), weights_of(advanced(three, 1)), atol=1e-6)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_leaves_its_client_out_of_a_secure_sum(error, caplog):
    data, secure = data_of(5), SecureSettings(clip=10.0, survivors=0.6)
    server = federation(FedAvg(), data, secure=secure)
    server.engine.inner._secure._examples = failing(data, error, 2)
    server.advance()
    assert server.tally.replies == 4
    assert f"goes on without client 2: masked: it raised {type(error).__name__}" in caplog.text
    four = federation(FedAvg(), [data[0], data[1], data[3], data[4]], secure=SecureSettings(clip=10.0, survivors=0.6))
    assert torch.allclose(weights_of(server), weights_of(advanced(four, 1)), atol=1e-3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("secure", [None, SecureSettings(clip=10.0)])
def test_who_wants_the_process_to_end_is_heard(error, secure):
    data = data_of(4)
    server = federation(FedAvg(), data, secure=secure)
    server.engine.inner._examples = server.engine.inner._secure._examples = failing(data, error(), 2)
    with pytest.raises(error):
        server.advance()


def test_where_every_client_fails_the_first_reason_is_told():
    data = data_of(3)
    server = federation(FedAvg(), data)
    server.engine.inner._examples = failing(data, KeyError("label"), 0, 1, 2)
    with pytest.raises(NoReplyError, match=r"all 3 clients of round 1 failed.*it raised KeyError: 'label'"):
        server.advance()


def test_where_every_client_fails_a_secure_sum_the_first_reason_is_told():
    data = data_of(4)
    server = federation(FedAvg(), data, secure=SecureSettings(clip=10.0))
    server.engine.inner._secure._examples = failing(data, KeyError("label"), 0, 1, 2, 3)
    with pytest.raises(SecureSumError, match=r"round 1 was abandoned.*client 0.*it raised KeyError: 'label'"):
        server.advance()


def test_a_task_that_is_none_is_a_complaint_and_the_others_go_on():
    server = federation(FedAvg(), data_of(3))
    tasks = server._tasks([0, 1, 2]) | {1: b"noise, and more noise"}
    assert set(server.engine.ask(tasks)) == {0, 2}
    assert "truncated" in server.engine.complaints[1]


def test_only_participants_data_is_touched():
    server, asked = federation(FedAvg(participation=0.25), data_of(8)), []
    data = data_of(8)
    server.engine.inner._examples = lambda client: asked.append(client) or data[client]
    server.advance()
    assert sorted(asked) == sorted(server.engine.tasks[0])
    assert len(asked) == 2


@pytest.mark.parametrize("algorithm", [Iterative(sketch=SKETCH, participation=0.002), FedAvg(participation=0.002)])
def test_a_population_of_ten_thousand_costs_what_its_participants_cost(algorithm):
    module = dense_model("mlp", hidden=[30])
    trainer, data = make_trainer(module, "cross_entropy"), data_of(7, loss="cross_entropy")
    algorithm = algorithm.resolved(trainer.dim)
    state = algorithm.begin(flatten(module))
    protection = unprotected(algorithm, trainer.dim, clients=10_000)
    participant = Participant(trainer=trainer, seed=SEED, protection=protection)
    engine = LocalEngine(participant, lambda client: data[client % 7], clients=10_000, start=state.replica, workers=1)
    server = Server(protection, engine, state, SEED, shared_start=True)
    del state
    before = _large_tensors(trainer.dim)
    advanced(server, 5)
    assert server.tally.replies == 100
    assert engine.memories == {}
    assert _large_tensors(trainer.dim) <= before + 3, "tensors of the model's size are kept for clients"
    assert sum(map(len, server.tally.updates)) <= 4 * trainer.dim + 100
    assert len(server.tally.known) <= 100


def _large_tensors(dim: int) -> int:
    gc.collect()
    return sum(1 for item in gc.get_objects() if type(item) is torch.Tensor and item.numel() >= dim)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAvg(global_momentum=0.5), Iterative(sketch=SKETCH)])
def test_a_whole_model_that_equals_the_servers_shares_its_memory(algorithm):
    server = federation(algorithm, data_of(3), shared_start=False)
    engine = server.engine.inner
    engine.held_by_server = lambda: server.state.replica
    before = server.state.replica
    server.advance()
    assert engine.replica.weights is before.weights
    assert (engine.replica is before) == (not isinstance(algorithm, FedAvg) or not algorithm.global_momentum)
    alone = advanced(federation(algorithm, data_of(3), shared_start=False), 2)
    assert advanced(server, 1).engine.replies == alone.engine.replies


def test_a_replica_that_differs_in_a_bit_stays_apart():
    held = Replica(round=1, weights=torch.zeros(3))
    minus_zero, later = Replica(round=1, weights=-torch.zeros(3)), Replica(round=2, weights=torch.zeros(3))
    assert unified(minus_zero, held) is minus_zero
    assert unified(later, held) is later
    assert unified(Replica(round=1, weights=torch.zeros(3)), held) is held


def test_only_the_engines_own_requests_are_emptied():
    server = federation(FedAvg(), data_of(3), shared_start=False)
    tasks = server._tasks([0, 1, 2])
    kept = dict(tasks)
    first = server.engine.inner.ask(kept)
    assert len(kept) == 3
    assert server.engine.inner.ask(tasks) == first
    assert not tasks
