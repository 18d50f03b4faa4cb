"""What a client makes of all broadcasts: the mean that Gaussian weights would have, and with it the steps of a run.

Seeds are fixed. Where a bound is on a cosine, its test says how far it is from what 300 other seeds gave.
"""

import math
from itertools import pairwise, product

import pytest
import torch
from torch import nn

from federation import advanced, federation, weights_of
from odds import mean_interval
from problems import examples
from sketchfed import PublicSeed
from sketchfed.algorithms import Dbcl
from sketchfed.attacks import ESTIMATES, Seen, cosine, relative_error, smoothing
from sketchfed.attacks.smoothing import ROUNDING, UNKNOWN_MOVEMENT, estimated_movement, smoothed_steps, smoothed_weights
from sketchfed.errors import InputError
from sketchfed.rounds.server import Server
from sketchfed.sketches import SKETCHES, Sketch, dense, make_sketch
from sketchfed.wire import unpack

every_family = pytest.mark.parametrize("family", SKETCHES)
LENGTH = 0.1


def sketch_of(round_index: int, *, dim: int = 64, size: int = 32, family: str = "balanced", seed: int = 1) -> Sketch:
    return make_sketch(family, dim=dim, size=size, seed=PublicSeed(seed).child("round", round_index))


def run_of(sketches: list[Sketch], *, out: int = 8, length: float = LENGTH, seed: int = 1) -> torch.Tensor:
    """The weights before each round (rounds, out, dim): normal at first, then moved along each sketch by normal U."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(out, sketches[0].dim, generator=generator, dtype=torch.float64)]
    for sketch in sketches[:-1]:
        change = length * torch.randn(out, sketch.size, generator=generator, dtype=torch.float64)
        weights.append(weights[-1] + sketch.adjoint(change))
    return torch.stack(weights)


def seen_of(weights: torch.Tensor, sketches: list[Sketch], *, missed: tuple[int, ...] = ()) -> list[Seen | Sketch]:
    pairs = enumerate(zip(weights, sketches, strict=True))
    return [sketch if t in missed else Seen(rows=sketch.apply(w), sketch=sketch) for t, (w, sketch) in pairs]


def steps_of(weights: torch.Tensor) -> torch.Tensor:
    return weights[:-1] - weights[1:]


def cosines(found: torch.Tensor, truth: torch.Tensor) -> list[float]:
    return [cosine(a, b) for a, b in zip(found, truth, strict=True)]


# Against the posterior with everything written out.


def written_out(rounds: list[Seen | Sketch], *, movement: float) -> torch.Tensor:
    """E[weights | all that was seen] by the joint covariance of the weights of all rounds and of all numbers seen.

    A row of weights in round t is (w₀, u₀, u₁, …)·A_t with A_t = [I; S₀ᵀ; …; S_{t−1}ᵀ; 0; …].
    """
    matrices = [dense(each.sketch if isinstance(each, Seen) else each) for each in rounds]  # Sᵀ
    dim, unknowns = matrices[0].shape[1], sum(len(matrix) for matrix in matrices)
    stacked = torch.cat([torch.eye(dim, dtype=torch.float64), *matrices])
    ends = [dim + sum(len(matrix) for matrix in matrices[:t]) for t in range(len(rounds))]
    states = [torch.cat([stacked[:end], stacked.new_zeros(dim + unknowns - end, dim)]) for end in ends]
    prior = torch.cat([torch.ones(dim, dtype=torch.float64), torch.full((unknowns,), movement, dtype=torch.float64)]).diag()
    told = [
        (state @ matrix.T, each.rows)
        for state, matrix, each in zip(states, matrices, rounds, strict=True)
        if isinstance(each, Seen)
    ]
    maps, rows = torch.cat([map_ for map_, _ in told], 1), torch.cat([rows for _, rows in told], 1)
    covariance = maps.T @ prior @ maps + ROUNDING * torch.eye(maps.shape[1], dtype=torch.float64)
    unknown = torch.linalg.solve(covariance, rows.T).T @ maps.T @ prior
    return torch.stack([unknown @ state for state in states])


@every_family
@pytest.mark.parametrize("missed", [(), (2,), (0, 3), (5,)])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_it_is_the_posterior_mean(family, missed, size):
    sketches = [sketch_of(t, dim=7, size=size, family=family) for t in range(6)]
    rounds = seen_of(run_of(sketches, out=3), sketches, missed=missed)
    found = smoothed_weights(rounds, movement=0.02)
    torch.testing.assert_close(found, written_out(rounds, movement=0.02), rtol=0, atol=1e-6)


def test_steps_lie_along_the_sketches_and_weights_explain_what_was_seen():
    sketches = [sketch_of(t, size=(32, 20, 45)[t % 3]) for t in range(9)]
    rounds = seen_of(run_of(sketches), sketches)
    weights, steps = smoothed_weights(rounds), smoothed_steps(rounds)
    for each, found in zip(rounds, weights, strict=True):
        torch.testing.assert_close(each.sketch.apply(found), each.rows, rtol=0, atol=1e-8)
    for sketch, step in zip(sketches, steps, strict=False):
        onto = dense(sketch).T @ torch.linalg.pinv(dense(sketch).T)
        torch.testing.assert_close(step @ onto, step)
    torch.testing.assert_close(steps, steps_of(weights))


# On runs whose steps are random.

TWENTY = [sketch_of(t) for t in range(20)]


def test_steps_in_the_middle_are_recovered_where_two_broadcasts_tell_next_to_nothing():
    """The first half of 20 rounds at half the size.

    Over 300 seeds log₁₀(1 − cosine) of the worst step was −3.33 ± 0.12, eleven deviations from the bound of −2, and the best
    cosine of either option at any step 0.15 ± 0.023, ten below the other.
    """
    weights = run_of(TWENTY)
    rounds, truth = seen_of(weights, TWENTY), steps_of(weights)
    assert min(cosines(smoothed_steps(rounds), truth)[:10]) > 0.99
    for estimate in ESTIMATES.values():
        assert max(cosine(estimate(old, new), step) for (old, new), step in zip(pairwise(rounds), truth, strict=True)) < 0.4


def test_broadcasts_in_float32_and_short_steps_do_as_well():
    """Steps of a thousandth, of weights that are themselves rounded in each round: the bound is that of the test before."""
    weights = run_of(TWENTY, length=1e-3).float()
    found = smoothed_steps(seen_of(weights, TWENTY))
    assert found.dtype == torch.float64
    assert min(cosines(found, steps_of(weights.double()))[:10]) > 0.99


@every_family
def test_above_half_the_size_all_families_tell_nearly_everything(family):
    """At three quarters of it. Over 60 seeds of each family the worst cosine of ten steps was 0.9996, with `count`."""
    sketches = [sketch_of(t, size=48, family=family) for t in range(20)]
    weights = run_of(sketches)
    assert min(cosines(smoothed_steps(seen_of(weights, sketches)), steps_of(weights))[:10]) > 0.99


def test_the_last_steps_are_the_least_known():
    """Only later broadcasts tell what a step was. Over 300 seeds the cosine of the last was 0.70 ± 0.03."""
    weights = run_of(TWENTY)
    found = cosines(smoothed_steps(seen_of(weights, TWENTY)), steps_of(weights))
    assert found[0] > found[10] > found[14] > found[16] > found[18]
    assert found[18] < 0.9


def test_errors_do_not_build_up_in_long_runs():
    sketches = [sketch_of(t, dim=32, size=16) for t in range(300)]
    weights = run_of(sketches).float()
    rounds = seen_of(weights, sketches)
    found = smoothed_weights(rounds)
    assert min(cosines(steps_of(found), steps_of(weights.double()))[:-12]) > 0.99
    for each, weight in zip(rounds, found, strict=True):
        torch.testing.assert_close(each.sketch.apply(weight), each.rows.double(), rtol=0, atol=1e-6)


def test_a_slice_of_a_run_will_do():
    sketches = [sketch_of(t) for t in range(35)]
    weights = run_of(sketches)
    rounds = seen_of(weights, sketches)
    assert min(cosines(smoothed_steps(rounds[-20:]), steps_of(weights[-20:]))[:10]) > 0.99


def test_square_balanced_sketches_hide_nothing():
    sketches = [sketch_of(t, size=64) for t in range(3)]
    weights = run_of(sketches)
    torch.testing.assert_close(smoothed_weights(seen_of(weights, sketches)), weights)


# Variances.


@pytest.mark.parametrize("factor", [0.01, 100])
def test_a_movement_that_is_wrong_by_100_hardly_matters(factor):
    """Over 300 seeds the relative error in the first half of the run was at most 0.021, with the worse factor."""
    weights = run_of(TWENTY)
    found = smoothed_steps(seen_of(weights, TWENTY), movement=factor * LENGTH**2)
    assert relative_error(found[:10], steps_of(weights)[:10]) < 0.1


@pytest.mark.parametrize(("family", "missed"), [*product(SKETCHES, [(0, 1, 3, 4)]), ("srht", ()), ("count", (1,))])
def test_the_movement_is_estimated_by_moments(family, missed):
    """Times the moment of the weights it is that of U, which is unbiased. False alarm below 1e-6 by Student's t, each."""
    samples = []
    for trial in range(100):
        sketches = [sketch_of(t, dim=24, size=12, family=family, seed=trial) for t in range(8)]
        rounds = seen_of(run_of(sketches, seed=trial), sketches, missed=missed)
        seen = [each for each in rounds if isinstance(each, Seen)]
        told, unit = (
            sum(float(matrix.square().sum()) for matrix in matrices)
            for matrices in ([each.rows for each in seen], [dense(each.sketch) for each in seen])
        )
        samples.append(estimated_movement(rounds) * told / (8 * unit))
    low, high = mean_interval(samples, false_alarm=1e-6)
    assert low <= LENGTH**2 <= high
    assert high - low < 0.4 * LENGTH**2


def test_the_movement_is_a_ratio_and_knows_no_scale():
    weights = run_of(TWENTY)
    small, large = (seen_of(scale * weights, TWENTY) for scale in (1e-3, 1e3))
    assert estimated_movement(small) == pytest.approx(estimated_movement(large))
    torch.testing.assert_close(1e3 * smoothed_weights(small), 1e-3 * smoothed_weights(large))


def test_too_few_broadcasts_to_tell_steps_from_weights_get_a_guess():
    sketches = TWENTY[:3]
    weights = run_of(sketches)
    assert estimated_movement(seen_of(weights, sketches)[:1]) == UNKNOWN_MOVEMENT
    assert estimated_movement(seen_of(weights, sketches, missed=(1, 2))) == UNKNOWN_MOVEMENT
    zeros = seen_of(torch.zeros_like(weights), sketches)
    assert estimated_movement(zeros) == UNKNOWN_MOVEMENT
    assert smoothed_weights(zeros).eq(0).all()


def test_weights_that_do_not_move_are_found_to_stay():
    sketches = TWENTY[:5]
    weights = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).expand(5, 8, 64)
    rounds = seen_of(weights, sketches)
    assert estimated_movement(rounds) == pytest.approx(ROUNDING)
    torch.testing.assert_close(smoothed_weights(rounds), weights.double(), rtol=0, atol=1e-5)


# Missed rounds.


def test_a_missed_round_blurs_the_steps_up_to_it_and_no_others():
    """As if the run ended there and began anew.

    Over 100 seeds the worst cosine far before or after it was 0.9986, and the better one at it 0.865 ± 0.019.
    """
    sketches = [sketch_of(t) for t in range(40)]
    weights = run_of(sketches)
    found = cosines(smoothed_steps(seen_of(weights, sketches, missed=(20,))), steps_of(weights))
    assert min(found[:10] + found[21:30]) > 0.99
    assert max(found[19:21]) < 0.97


def test_the_sketch_of_a_missed_round_is_worth_knowing():
    """Than with a wrong one, errors of the weights of that round were 0.76 ± 0.027 times as large over 100 seeds."""
    weights = run_of(TWENTY)
    rounds = seen_of(weights, TWENTY, missed=(8,))
    wrong = [*rounds[:8], sketch_of(99), *rounds[9:]]
    right, other = (relative_error(smoothed_weights(each)[8], weights[8]) for each in (rounds, wrong))
    assert right < 0.95 * other


def test_nothing_is_known_of_steps_after_the_last_round_that_was_seen():
    rounds = seen_of(run_of(TWENTY), TWENTY, missed=(18, 19))
    steps = smoothed_steps(rounds)
    assert steps[17:].eq(0).all()
    assert steps[16].ne(0).any()


# On a federation, from what one client was sent.

LAYER = "0.weight"


def federated(*, clients: int = 2, rounds: int = 20, **settings) -> tuple[Server, torch.Tensor]:
    """A run, and the weights of its sketched layer before each round, which no client was sent."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))
    algorithm = Dbcl(local_epochs=2, batch=6, local_rate=0.1, **settings)
    data = [examples(14 + client, shape=(48,)) for client in range(clients)]
    server, weights = federation(algorithm, data, module=module, loss="cross_entropy"), []
    for _ in range(rounds):
        layout = server.algorithm.given(server.seed, server.round).sketch.layout
        weights.append(layout.views(weights_of(server))[LAYER].double())
        advanced(server, 1)
    return server, torch.stack(weights)


def received(server: Server, client: int) -> list[Seen | Sketch]:
    """What the tasks of a client, and the public seed, tell it of the layer."""
    rounds: list[Seen | Sketch] = []
    for index, tasks in enumerate(server.engine.tasks):
        form = server.algorithm.given(server.seed, index).sketch
        sketch = form.sketches[LAYER]
        if client in tasks:
            rows = form.seen.views(unpack(tasks[client]).arrays["weights"])[LAYER]
            rounds.append(Seen(rows=rows, sketch=sketch))
        else:
            rounds.append(sketch)
    return rounds


@pytest.mark.parametrize("settings", [{}, {"vary": 0.3}], ids=str)
def test_a_client_recovers_the_updates_of_a_real_federation(settings):
    """Double-blind learning hides neither the weights nor the mean update from a client that keeps what it is sent."""
    server, weights = federated(**settings)
    rounds, truth = received(server, client=0), steps_of(weights)
    assert min(cosines(smoothed_steps(rounds), truth)[:9]) > 0.99
    assert relative_error(smoothed_weights(rounds)[:9], weights[:9]) < 0.05
    for estimate in ESTIMATES.values():
        assert max(cosine(estimate(old, new), step) for (old, new), step in zip(pairwise(rounds), truth, strict=True)) < 0.4


def test_of_two_clients_one_recovers_what_the_other_said():
    """The mean less its own share."""
    server, _ = federated()
    steps = smoothed_steps(received(server, client=0))
    for index in range(9):
        form = server.algorithm.given(server.seed, index).sketch
        own, other = (
            form.sketches[LAYER].adjoint(form.seen.views(unpack(server.engine.replies[index][client]).arrays["values"])[LAYER])
            for client in (0, 1)
        )
        assert cosine(-2 * steps[index] - own, other) > 0.99


def test_a_client_that_was_not_always_asked_recovers_less():
    """With three of four clients a round, it still knows the long stretches of rounds in which it took part."""
    server, weights = federated(clients=4, rounds=30, participation=0.75)
    rounds = received(server, client=0)
    found = cosines(smoothed_steps(rounds), steps_of(weights))
    there = "".join("x" if isinstance(each, Seen) else "." for each in rounds)
    start = there.index("x" * 10)
    assert "." in there
    assert found[start] > 0.99
    assert sum(found) / len(found) > 0.6


# What is refused.


def test_what_is_no_round_is_refused():
    rounds = seen_of(run_of(TWENTY), TWENTY)
    with pytest.raises(InputError, match=r"round 1 is of type NoneType.*if it was missed, its sketch"):
        smoothed_weights([rounds[0], None, rounds[2]])
    with pytest.raises(InputError, match=r"nothing was seen in any of the 0 rounds"):
        smoothed_weights([])
    with pytest.raises(InputError, match=r"nothing was seen in any of the 20 rounds.*at least one"):
        smoothed_steps(TWENTY)


def test_rounds_of_different_layers_are_refused():
    seen = Seen(rows=torch.zeros(8, 32), sketch=sketch_of(0))
    for other in (Seen(rows=torch.zeros(7, 32), sketch=sketch_of(1)), sketch_of(1, dim=65)):
        with pytest.raises(InputError, match=r"not of 8 outputs and 64 inputs.*rounds of one layer only"):
            smoothed_weights([seen, other])


def test_a_run_that_diverged_is_refused():
    rows = torch.zeros(8, 32)
    rows[3, 4] = math.nan
    with pytest.raises(InputError, match=r"NaN or infinite.*Give the rounds before"):
        smoothed_weights([Seen(rows=rows, sketch=sketch_of(0))])


@pytest.mark.parametrize("movement", [0, -1.0, math.inf, math.nan])
def test_a_movement_that_is_no_ratio_is_refused(movement):
    with pytest.raises(InputError, match=r"above 0 and finite, got .*Leave it out"):
        smoothed_weights(seen_of(run_of(TWENTY), TWENTY), movement=movement)


def test_what_does_not_fit_into_memory_is_refused_with_what_would(monkeypatch):
    rounds = seen_of(run_of(TWENTY), TWENTY)
    monkeypatch.setattr(smoothing, "MOST_NUMBERS", 64 * (4 * 64 + 12 * (32 + 3 * 8)))
    with pytest.raises(InputError, match=r"20 rounds of 8 outputs and 64 inputs, sketched to 32.*Give 12 rounds at most"):
        smoothed_weights(rounds)
    assert smoothed_weights(rounds[-12:]).shape == (12, 8, 64)


def test_a_layer_that_is_too_wide_is_refused_before_anything_is_made():
    sketch = sketch_of(0, dim=1_000_000, size=10)
    with pytest.raises(InputError, match=r"1,000,000 inputs.*Choose a layer of fewer inputs"):
        smoothed_weights([Seen(rows=torch.zeros(2, 10), sketch=sketch)])
