"""Optimisers, schedules, clipping, precision and accumulation of the built-in loop, against plain torch."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn.sharing import shared
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, LocalWork, Turn, make_trainer
from sketchfed.training.recipe import SCHEDULES
from sketchfed.training.settings import TrainingSettings
from sketchfed.vectors import flatten

SEED = PublicSeed(4)
WORK = LocalWork(rate=0.05, steps=6)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def examples(count: int = 12) -> Examples:
    draw = torch.Generator().manual_seed(2)
    return Examples(torch.randn(count, 5, generator=draw), torch.arange(count) % 3)


def trained(work: LocalWork = WORK, turn: Turn | None = None, **settings) -> torch.Tensor:
    recipe = TrainingSettings(**settings).recipe(rounds=10)
    recipe.check(work)
    trainer = make_trainer(net(), "cross_entropy", recipe)
    return trainer.train(flatten(net()), examples(), work, turn or Turn(SEED))


def by_hand(optimiser, *, steps: int = 6, rate=lambda step: 0.05, clip: float | None = None) -> torch.Tensor:
    """An ordinary loop over the whole data."""
    module, (x, y) = net(), examples()
    made = optimiser(module.parameters())
    for step in range(steps):
        for group in made.param_groups:
            group["lr"] = rate(step)
        made.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        made.step()
    return flatten(module)


@pytest.mark.parametrize(
    ("settings", "optimiser"),
    [
        ({"optimiser": "adam"}, torch.optim.Adam),
        ({"optimiser": "adamw", "options": {"betas": [0.8, 0.9]}}, lambda p: torch.optim.AdamW(p, betas=(0.8, 0.9))),
        ({"optimiser": "torch.optim:RMSprop", "options": {"alpha": 0.9}}, lambda p: torch.optim.RMSprop(p, alpha=0.9)),
        ({"options": {"nesterov": False}}, torch.optim.SGD),
    ],
)
def test_an_optimiser_takes_the_steps_that_it_takes_in_a_loop_of_torch(settings, optimiser):
    torch.testing.assert_close(trained(**settings), by_hand(optimiser), rtol=1e-6, atol=1e-7)


def test_momentum_and_weight_decay_of_the_algorithm_reach_the_optimiser():
    work = LocalWork(rate=0.05, steps=6, momentum=0.9, decay=0.01)
    reference = by_hand(lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=0.01), clip=0.1)
    torch.testing.assert_close(trained(work, clip_norm=0.1), reference, rtol=1e-6, atol=1e-7)
    decayed = by_hand(lambda p: torch.optim.AdamW(p, weight_decay=0.3))
    torch.testing.assert_close(
        trained(LocalWork(rate=0.05, steps=6, decay=0.3), optimiser="adamw"), decayed, rtol=1e-6, atol=1e-7
    )


def test_gradients_are_clipped_to_the_norm():
    torch.testing.assert_close(trained(clip_norm=0.05), by_hand(torch.optim.SGD, clip=0.05), rtol=1e-6, atol=1e-7)
    assert not torch.allclose(trained(clip_norm=0.05), by_hand(torch.optim.SGD))


def test_the_rate_follows_both_schedules_and_warms_up():
    found = trained(
        turn=Turn(SEED, round=3), optimiser="adam", round_schedule="cosine", step_schedule="linear", warmup_rounds=8
    )
    over_rounds = 0.5 * (1 + math.cos(math.pi * 0.3))
    reference = by_hand(torch.optim.Adam, rate=lambda step: 0.05 * over_rounds * (4 / 8) * (1 - step / 6))
    torch.testing.assert_close(found, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_built_in_schedules_begin_at_the_full_rate_and_never_grow(name):
    factors = [SCHEDULES[name](place / 20) for place in range(20)]
    assert factors[0] == 1
    assert all(0 <= later <= earlier for earlier, later in pairwise(factors))


def test_state_is_reset_each_round_or_kept():
    turn = Turn(SEED)
    first = trained(turn=turn, optimiser="adam", optimiser_state="kept")
    assert turn.kept
    trainer = make_trainer(net(), "cross_entropy", TrainingSettings(optimiser="adam", optimiser_state="kept").recipe(10))
    second = trainer.train(first, examples(), WORK, turn)
    torch.testing.assert_close(second, by_hand(torch.optim.Adam, steps=12), rtol=1e-5, atol=1e-6)
    fresh = trainer.train(first, examples(), WORK, Turn(SEED))
    assert not torch.allclose(fresh, second)
    reset = Turn(SEED)
    trained(turn=reset, optimiser="adam")
    assert not reset.kept


@pytest.mark.parametrize("parts", [2, 5, 100])
def test_accumulated_parts_have_the_gradient_of_the_batch(parts):
    torch.testing.assert_close(trained(accumulate=parts), by_hand(torch.optim.SGD), rtol=1e-5, atol=1e-6)


def test_accumulation_holds_only_a_part_of_a_batch_at_a_time():
    seen = []

    def loss(outputs, targets):
        seen.append(len(outputs))
        return functional.cross_entropy(outputs, targets)

    make_trainer(net(), loss, TrainingSettings(accumulate=4).recipe(1)).train(
        flatten(net()), examples(), LocalWork(rate=0.1, steps=1), Turn(SEED)
    )
    assert seen == [3, 3, 3, 3]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_computes_outputs_in_few_bits_and_keeps_weights_in_float32(precision):
    seen = []

    def loss(outputs, targets):
        seen.append(outputs.dtype)
        return functional.cross_entropy(outputs.float(), targets)

    recipe = TrainingSettings(precision=precision).recipe(1)
    found = make_trainer(net(), loss, recipe).train(flatten(net()), examples(), WORK, Turn(SEED))
    assert set(seen) == {getattr(torch, precision)}
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, by_hand(torch.optim.SGD), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("size", [1e-7, 1.0, 1e4])
def test_in_float16_gradients_neither_vanish_nor_overflow_and_no_step_is_left_out(size):
    """Losses that are multiplied by `size` and steps that are divided by it are the same training."""

    def loss(outputs, targets):
        return size * functional.cross_entropy(outputs.float(), targets)

    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 3))
    module = shared(module, buffers="average")
    work, found = LocalWork(rate=0.1 / size, steps=4), {}
    for precision in ("float32", "float16"):
        recipe = TrainingSettings(precision=precision, accumulate=2).recipe(1)
        found[precision] = make_trainer(module, loss, recipe).train(flatten(module), examples(), work, Turn(SEED))
    change = found["float32"] - flatten(module)
    assert (found["float16"] - found["float32"]).norm() < 0.02 * change.norm()


@pytest.mark.parametrize(
    ("settings", "work", "said"),
    [
        ({"options": {"betas": [0.9, 0.9]}}, {}, "training.betas is no option of training.optimiser = 'sgd'"),
        ({"optimiser": "adam", "options": {"lr": 0.1}}, {}, "Set algorithm.local_rate"),
        ({"optimiser": "adam"}, {"momentum": 0.9}, "algorithm.local_momentum = 0.9 is nothing"),
        ({"optimiser": "adam", "options": {"betas": [2.0, 0.9]}}, {}, "cannot be made: ValueError: Invalid beta"),
        ({"optimiser": "adam", "options": {"betas": [0.9]}}, {}, "cannot be made: IndexError.*Its options .* betas"),
        ({"options": {"optimizer": "adam"}}, {}, "training.optimizer is no option .*Did you mean training.optimiser"),
        ({"options": {"nestrov": True}}, {}, "Did you mean training.nesterov"),
        ({"optimiser": "torch.optim:LBFGS"}, {}, "cannot take a step from a gradient alone"),
        ({"optimiser": "torch.optim:SparseAdam"}, {}, "cannot take a step from a dense gradient: .*dense gradients"),
        ({"optimiser": "torch.nn:Linear"}, {}, "'torch.nn:Linear'"),
        ({"round_schedule": "math:log1p"}, {}, None),
        ({"round_schedule": "math:expm1", "step_schedule": "cmath:exp"}, {}, "returned"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(settings, work, said):
    recipe = TrainingSettings(**settings).recipe(1)
    if said is None:
        recipe.check(LocalWork(rate=0.1, **work))
        return
    with pytest.raises(InputError, match=said):
        recipe.check(LocalWork(rate=0.1, **work))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"warmup_rounds": -1}, "must not be negative"),
        ({"accumulate": 0}, "at least 1"),
        ({"clip_norm": 0.0}, "above 0"),
        ({"train": "m:f", "optimiser": "adam"}, "training.optimiser is for the built-in loop"),
        ({"train": "m:f", "batch_loss": "m:g"}, "training.batch_loss is for the built-in loop"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        TrainingSettings(**settings)


def test_an_unknown_optimiser_is_named():
    with pytest.raises(UnknownNameError, match="no optimiser named 'adan'"):
        TrainingSettings(optimiser="adan")
