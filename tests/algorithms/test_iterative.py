"""Iterative sketching against Algorithm 1 of Song et al. 2023, written out with dense matrices."""

import pytest
import torch
from torch import nn

from federation import CONTEXT, SEED, advanced, data_of, federation, weights_of
from odds import mean_interval
from problems import dense_model
from sketchfed import PublicSeed
from sketchfed.algorithms import Change, Iterative, RoundContext
from sketchfed.algorithms.settings import SketchSettings, default_global_rate
from sketchfed.errors import InputError, WireError
from sketchfed.sketches import SKETCHES, dense, make_sketch
from sketchfed.training import LOSSES, Examples
from sketchfed.vectors import Layout, flatten
from sketchfed.wire import Packet, pack, unpack


def gradient(module: nn.Module, loss: str, w: torch.Tensor, data: Examples) -> torch.Tensor:
    """∇f_c(w) in float64, by autograd on the module as a function of its parameters."""
    w = w.clone().requires_grad_(True)
    outputs = torch.func.functional_call(module, Layout.of(module).views(w), (data.x.double(),))
    y = data.y.double() if data.y.is_floating_point() else data.y
    return torch.autograd.grad(LOSSES[loss](outputs, y), w)[0]


def matrix(family: str, dim: int, size: int, round_index: int) -> torch.Tensor:
    """R_t: everyone derives it from the run's seed and the round."""
    seed = SEED.child("round", round_index).child("sketch")
    return dense(make_sketch(family, dim=dim, size=size, seed=seed))


def algorithm_1(module, loss, clients, algorithm: Iterative, rounds: int) -> torch.Tensor:
    """Song et al. 2023, Alg. 1, line by line, with momentum on either side where the algorithm has it."""
    w = flatten(module).double()
    dim, size = len(w), algorithm.sketch.size_for(len(w))
    velocity = torch.zeros_like(w)
    for t in range(rounds):
        r = matrix(algorithm.sketch.name, dim, size, t)
        sketched_changes = []
        for data in clients:
            u, local_velocity = w, torch.zeros_like(w)
            for _ in range(algorithm.local_steps):
                local_velocity = algorithm.local_momentum * local_velocity + gradient(module, loss, u, data)
                u = u - algorithm.local_rate * local_velocity  # line 13
            sketched_changes.append(r @ (u - w))  # lines 15 and 16
        average = torch.stack(sketched_changes).mean(0)  # line 19
        velocity = algorithm.global_momentum * velocity + r.T @ average
        w = w + algorithm.global_rate * velocity  # line 9 of the next round
    return w


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("family", SKETCHES)
def test_rounds_are_those_of_algorithm_1_for_every_sketch(family):
    algorithm = Iterative(local_steps=3, local_rate=0.1, global_rate=0.3, sketch=SketchSettings(name=family, size=12))
    server = advanced(federation(algorithm, data_of(4)), 4)
    wanted = algorithm_1(dense_model("linear"), "squares", data_of(4), algorithm, 4)
    assert relative(weights_of(server), flatten(dense_model("linear")).double()) > 0.05, "nothing was learned"
    assert relative(weights_of(server), wanted) < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"local_steps": 1, "global_rate": 1.0},
        {"local_steps": 5, "global_momentum": 0.9, "global_rate": 0.1},
        {"local_steps": 5, "local_momentum": 0.8, "global_rate": 0.4},
        {"local_steps": 4, "local_momentum": 0.5, "global_momentum": 0.5, "global_rate": 0.3},
    ],
)
@pytest.mark.parametrize(("model", "loss"), [("logistic", "cross_entropy"), ("mlp", "cross_entropy"), ("mlp", "squares")])
def test_rounds_are_those_of_algorithm_1_with_momentum_and_other_models(model, loss, settings):
    algorithm = Iterative(local_rate=0.2, sketch=SketchSettings(ratio=0.4), **settings)
    module = dense_model(model, **({"hidden": [7]} if model == "mlp" else {}))
    data = data_of(3, loss=loss)
    server = advanced(federation(algorithm, data, module=module, loss=loss), 5)
    assert relative(weights_of(server), algorithm_1(module, loss, data, algorithm, 5)) < 1e-4


def test_sketches_are_the_same_for_all_clients_of_a_round_and_others_in_the_next():
    algorithm, change = Iterative(sketch=SketchSettings(size=12)).resolved(28), torch.ones(28)

    def sent(round_index: int, client: int) -> bytes:
        return pack(algorithm.client(Change(change), None, RoundContext(round=round_index, seed=SEED, client=client))[0])

    assert sent(0, 0) == sent(0, 1)
    assert len({sent(round_index, 0) for round_index in range(20)}) == 20


@pytest.mark.parametrize(("bits", "down"), [(32, None), (4, None), (1, 8), (32, 2)])
def test_both_directions_carry_size_numbers(bits, down):
    sketch = SketchSettings(size=500, bits=bits, bits_down=down)
    server = federation(Iterative(sketch=sketch), data_of(3), module=dense_model("mlp", hidden=[64, 64]))
    advanced(server, 3)
    for task in server.engine.tasks[-1].values():
        assert 0 < len(task) - 500 * (down or bits) // 8 < 100
    for reply in server.engine.replies[-1].values():
        assert 0 < len(reply) - 500 * bits // 8 < 100


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_few_bits_change_the_course_only_a_little(bits):
    """The rounding of one round moves the weights by no more than its levels allow, Rᵀ applied to half a step each way."""
    module, data = dense_model("linear"), data_of(4)
    exact = Iterative(local_steps=3, global_rate=1.0, sketch=SketchSettings(size=12))
    rounded = Iterative(local_steps=3, global_rate=1.0, sketch=SketchSettings(size=12, bits=bits))
    one, other = (advanced(federation(algorithm, data), 1) for algorithm in (exact, rounded))
    up = max(float(unpack(reply).scalars["step"]) for reply in other.engine.replies[0].values())
    down = float(unpack(other.tally.updates[0]).scalars["step"])
    r = matrix("srht", 28, 12, 0)
    assert not torch.equal(weights_of(one), weights_of(other))
    assert (weights_of(one) - weights_of(other)).abs().max() <= r.abs().sum(0).max() * (up + down) / 2
    assert relative(weights_of(other), flatten(module).double()) > 0


def projection(dim: int, **sketch: object) -> Iterative:
    return Iterative(form="projection", sketch=SketchSettings(**sketch)).resolved(dim)


@pytest.mark.parametrize("bits", [32, 4])
@pytest.mark.parametrize("family", ["srht", "count", "gaussian"])
def test_projection_what_got_across_and_what_is_kept_are_what_was_wanted(family, bits):
    algorithm = projection(64, name=family, size=16, bits=bits)
    memory, generator = None, torch.Generator().manual_seed(1)
    state = algorithm.begin(torch.zeros(64))
    for round_index in range(5):
        change = torch.randn(64, generator=generator)
        wanted = change if memory is None else change + memory
        packet, memory = algorithm.client(Change(change), memory, RoundContext(round=round_index, seed=SEED, client=3))
        r = matrix(family, 64, 16, round_index)
        sketch = algorithm.sketch.codec(64).read(packet, SEED.child("round", round_index)).double()
        across = 16 / 64 * r.T @ sketch
        assert relative(memory + across, wanted.double()) < 1e-5
        if bits == 32:
            before = state.replica.weights
            state, _ = algorithm.server(state, [packet], SEED)
            assert relative(state.replica.weights - before, across) < 1e-4, "the server moves by what got across"


def test_projection_with_orthogonal_rows_splits_a_change_at_right_angles():
    algorithm, change = projection(64, size=16), torch.randn(64, generator=torch.Generator().manual_seed(1))
    for round_index in range(20):
        _, kept = algorithm.client(Change(change), None, RoundContext(round=round_index, seed=SEED, client=0))
        across = change - kept
        assert float(kept @ across) == pytest.approx(0, abs=1e-3)
        assert kept.norm() < change.norm()


@pytest.mark.parametrize("family", SKETCHES)
def test_projection_keeps_less_than_was_wanted(family):
    """E‖x − cRᵀRx‖² = 1 − 2c + c²(1 + α) < 1 for unit x, c = size/dim. False alarm below 1e-6 a family, by Student's t."""
    algorithm, change = projection(64, name=family, size=16), torch.randn(64, generator=torch.Generator().manual_seed(1))
    kept = []
    for trial in range(300):
        context = RoundContext(round=0, seed=PublicSeed(1).child("trial", trial), client=0)
        kept.append(float((algorithm.client(Change(change), None, context)[1].norm() / change.norm()).square()))
    alpha = make_sketch(family, dim=64, size=16, seed=SEED).exact_alpha
    low, high = mean_interval(kept, false_alarm=1e-6)
    assert low <= 1 - 2 / 4 + (1 + alpha) / 16 + 1e-6
    assert high < 1


def test_projection_memories_stay_bounded():
    """E‖e‖² ≤ 4(1 − δ)/δ²·max‖change‖² with δ = size/dim (Karimireddy et al. 2019, Lemma 3).

    False alarm below 1e-6, by Student's t.
    """
    algorithm, generator = projection(64, size=16), torch.Generator().manual_seed(1)
    kept = []
    for client in range(20):
        memory = None
        for round_index in range(50):
            change = nn.functional.normalize(torch.randn(64, generator=generator), dim=0)
            context = RoundContext(round=round_index, seed=SEED.child("client", client), client=client)
            _, memory = algorithm.client(Change(change), memory, context)
        kept.append(float(memory.square().sum()))
    assert mean_interval(kept, false_alarm=1e-6)[0] <= 4 * (1 - 1 / 4) * 4**2


def test_only_the_projection_form_keeps_something_for_each_client():
    for form, kept in (("unbiased", 0), ("projection", 3)):
        server = advanced(federation(Iterative(form=form, sketch=SketchSettings(size=12)), data_of(3)), 2)
        assert len(server.engine.inner.memories) == kept


@pytest.mark.parametrize("bits", [32, 4])
def test_updates_that_do_not_fit_are_refused(bits):
    algorithm = Iterative(sketch=SketchSettings(size=12, bits=bits)).resolved(28)
    state = algorithm.begin(torch.zeros(28))
    packet = algorithm.client(Change(torch.ones(28)), None, RoundContext(round=0, seed=SEED, client=0))[0]
    _, update = algorithm.server(state, [packet], SEED)
    other = Iterative(sketch=SketchSettings(size=13, bits=bits)).resolved(28)
    wider = Iterative(sketch=SketchSettings(size=12, bits=8)).resolved(28)
    for follower, bad in ((other, update), (wider, update), (algorithm, packet), (algorithm, Packet(kind="mean", arrays={}))):
        with pytest.raises(WireError):
            follower.follow(state.replica, bad, SEED)
    with pytest.raises(WireError):
        other.check(packet, 28, CONTEXT)


def test_settings_that_cannot_work_are_refused_before_the_first_round():
    with pytest.raises(InputError, match=r"algorithm\.form must be 'unbiased' or 'projection', got 'biased'"):
        Iterative(form="biased")
    for bits in ({"bits": 5}, {"bits_down": 5}):
        with pytest.raises(InputError, match="got bits = 5"):
            Iterative(sketch=SketchSettings(**bits)).resolved(100)
    with pytest.raises(InputError, match="size 200 exceeds dim 100"):
        Iterative(sketch=SketchSettings(size=200)).resolved(100)


def test_the_global_rate_defaults_to_what_fits_the_compression():
    small = SketchSettings(ratio=0.01)
    rate = default_global_rate(0.01)
    assert 0 < rate < default_global_rate(0.1) <= default_global_rate(1.0) == 1
    assert Iterative(sketch=small).resolved(1_000).global_rate == rate
    assert Iterative(sketch=small, global_momentum=0.9).resolved(1_000).global_rate == pytest.approx(rate / 10)
    assert Iterative(sketch=small, form="projection").resolved(1_000).global_rate == 1
    assert Iterative(sketch=small, global_rate=0.7).resolved(1_000).global_rate == 0.7


def test_one_bit_is_refused_where_what_is_lost_accumulates():
    with pytest.raises(InputError, match="error feedback grows without bound"):
        Iterative(form="projection", sketch=SketchSettings(ratio=0.1, bits=1))
