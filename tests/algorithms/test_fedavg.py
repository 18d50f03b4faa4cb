"""Federated averaging: the mean of the clients' changes, whatever carries them."""

import pytest
import torch

from federation import CONTEXT, SEED, advanced, data_of, federation, weights_of
from problems import by_torch, dense_model
from sketchfed.algorithms import Change, FedAvg, RoundContext
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, default_global_rate
from sketchfed.errors import WireError
from sketchfed.sketches import dense, make_sketch
from sketchfed.training import LOSSES, LocalWork
from sketchfed.vectors import flatten
from sketchfed.wire import Packet

SKETCHED = {"codec": CodecSettings(name="sketched"), "sketch": SketchSettings(size=16)}


def trained_by_all(weights: torch.Tensor, clients: int, work: LocalWork) -> torch.Tensor:
    """The weights of each client after its local work, by torch.optim.SGD."""
    loss = LOSSES["squares"]
    return torch.stack([by_torch(dense_model("linear"), loss, weights, data, work) for data in data_of(clients)])


@pytest.mark.parametrize("clients", [1, 5])
def test_a_round_is_the_mean_of_the_clients_weights(clients):
    server, weights = federation(FedAvg(local_steps=3), data_of(clients)), flatten(dense_model("linear"))
    for _ in range(4):
        server.advance()
        weights = trained_by_all(weights, clients, LocalWork(rate=0.1, steps=3)).mean(0)
        assert torch.allclose(weights_of(server), weights, atol=1e-5)


def test_clients_weigh_the_same_whatever_data_they_have():
    """As in Song et al. 2023; McMahan et al. 2017 weigh by examples, which differ here."""
    server = advanced(federation(FedAvg(local_steps=1), data_of(3)), 1)
    assert len({len(data.x) for data in data_of(3)}) == 3
    wanted = trained_by_all(flatten(dense_model("linear")), 3, LocalWork(rate=0.1, steps=1)).mean(0)
    assert torch.allclose(weights_of(server), wanted, atol=1e-6)


def test_the_server_steps_with_a_rate_and_momentum_of_its_own():
    """Reddi et al. 2021: v ← momentum·v + mean change, w ← w + rate·v."""
    algorithm = FedAvg(local_steps=2, global_rate=0.3, global_momentum=0.8)
    server, weights = federation(algorithm, data_of(3)), flatten(dense_model("linear"))
    velocity = torch.zeros_like(weights)
    for _ in range(5):
        server.advance()
        velocity = 0.8 * velocity + trained_by_all(weights, 3, LocalWork(rate=0.1, steps=2)).mean(0) - weights
        weights = weights + 0.3 * velocity
        assert torch.allclose(weights_of(server), weights, atol=1e-5)


def test_sketched_updates_move_the_server_by_their_desketched_mean():
    server = federation(FedAvg(local_steps=2, global_rate=0.5, **SKETCHED), data_of(3))
    weights = weights_of(server)
    for round_index in range(3):
        server.advance()
        r = dense(
            make_sketch("srht", dim=28, size=16, seed=SEED.child("round", round_index).child("sketch")), dtype=torch.float32
        )
        change = trained_by_all(weights, 3, LocalWork(rate=0.1, steps=2)).mean(0) - weights
        assert torch.allclose(weights_of(server), weights + 0.5 * r.T @ r @ change, atol=1e-5)
        weights = weights_of(server)


def test_models_go_down_whole_and_updates_up_as_small_as_the_codec_makes_them():
    server = federation(FedAvg(**SKETCHED), data_of(3), module=dense_model("mlp"))
    dim = len(weights_of(server))
    advanced(server, 3)
    for task in server.engine.tasks[-1].values():
        assert 0 < len(task) - 4 * dim < 100
    for reply in server.engine.replies[-1].values():
        assert 0 < len(reply) - 4 * 16 < 100
    assert server.tally.updates == []


def test_feedback_what_got_across_and_what_is_kept_are_what_was_wanted():
    algorithm = FedAvg(error_feedback=True, **SKETCHED).resolved(64)
    memory, generator = None, torch.Generator().manual_seed(1)
    state, wanted_so_far = algorithm.begin(torch.zeros(64)), torch.zeros(64)
    for round_index in range(6):
        change = torch.randn(64, generator=generator)
        wanted_so_far += change
        packet, memory = algorithm.client(Change(change), memory, RoundContext(round=round_index, seed=SEED, client=0))
        state, _ = algorithm.server(state, [packet], SEED)
        assert torch.allclose(state.replica.weights + memory, wanted_so_far, atol=1e-4)


def test_feedback_does_not_feed_on_itself():
    """An unbiased sketch of a quarter of the size loses three times what it gets: kept as it is, that would grow √3-fold."""
    algorithm = FedAvg(error_feedback=True, **SKETCHED).resolved(64)
    memory, change = None, torch.ones(64) / 8
    for round_index in range(100):
        _, memory = algorithm.client(Change(change), memory, RoundContext(round=round_index, seed=SEED, client=0))
    assert memory.norm() < 4 * 64 / 16


def test_feedback_through_a_codec_without_loss_keeps_nothing_back():
    feedback, plain = (advanced(federation(FedAvg(error_feedback=on), data_of(3)), 3) for on in (True, False))
    assert torch.equal(weights_of(feedback), weights_of(plain))
    assert all(not memory.owed.any() for memory in feedback.engine.inner.memories.values())
    assert plain.engine.inner.memories == {}


def test_the_global_rate_defaults_to_what_fits_the_compression():
    assert FedAvg().resolved(28).global_rate == 1
    assert FedAvg(global_momentum=0.9).resolved(28).global_rate == pytest.approx(0.1)
    assert FedAvg(**SKETCHED).resolved(1_600).global_rate == default_global_rate(0.01)
    assert FedAvg(error_feedback=True, **SKETCHED).resolved(1_600).global_rate == 1
    assert FedAvg(global_rate=0.7, **SKETCHED).resolved(1_600).global_rate == 0.7


def test_replies_that_do_not_fit_are_refused():
    algorithm = FedAvg().resolved(28)
    algorithm.check(Packet(kind="dense", arrays={"values": torch.ones(28)}), 28, CONTEXT)
    for bad in (
        Packet(kind="dense", arrays={"values": torch.ones(27)}),
        Packet(kind="sketched", arrays={"values": torch.ones(28)}),
        Packet(kind="dense", arrays={}),
    ):
        with pytest.raises(WireError):
            algorithm.check(bad, 28, CONTEXT)
