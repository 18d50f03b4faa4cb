"""Attacks keep their strength: each must succeed, by a stated margin, where nothing defends."""

import pytest
import torch
from observed import SEED, convolutional, decibels, dense, digits, observed, wide
from torch import nn

from sketchfed.attacks import Matching, first_inputs, inferred, unsketched
from sketchfed.attacks.matching import variation
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import make_sketch
from sketchfed.training import LocalWork
from sketchfed.vectors import flatten

EXACT = Matching(objective="squares", optimiser="lbfgs", variation=0.0, iterations=300, restarts=4)
ROBUST = Matching(iterations=150)


def through(family: str, module: nn.Module, size: int):
    return make_sketch(family, dim=len(flatten(module)), size=size, seed=PublicSeed(3))


def test_a_plain_gradient_gives_the_image_back():
    """40 dB is an error of a hundredth of the range of a pixel."""
    module, (x, y) = convolutional(), digits()
    guess = EXACT.reconstruct(observed(module, x, y), shape=(1, 8, 8), seed=SEED)
    assert guess.y.tolist() == y.tolist()
    assert decibels(guess.x, x) > 40
    assert guess.mismatch < 1e-6


@pytest.mark.parametrize("family", ["srht", "count", "gaussian"])
def test_a_sketch_of_a_tenth_gives_it_back_as_well(family):
    """195 numbers are more than the 64 pixels: sketching alone protects nothing (Song et al. 2023, Thm 7.8)."""
    module, (x, y) = convolutional(), digits()
    seen = observed(module, x, y, known=through(family, module, 195))
    guess = EXACT.reconstruct(seen, shape=(1, 8, 8), seed=SEED, y=y)
    assert decibels(guess.x, x) > 30


def test_far_fewer_numbers_than_pixels_do_not():
    module, (x, y) = convolutional(), digits()
    seen = observed(module, x, y, known=through("srht", module, 10))
    guess = ROBUST.reconstruct(seen, shape=(1, 8, 8), seed=SEED, y=y)
    assert decibels(guess.x, x) < 15


def test_noise_as_long_as_the_gradient_does_not():
    module, (x, y) = convolutional(), digits()
    guesses = {
        noise: decibels(ROBUST.reconstruct(observed(module, x, y, noise=noise), shape=(1, 8, 8), seed=SEED, y=y).x, x)
        for noise in (0.0, 3.0)
    }
    assert guesses[0.0] > 20
    assert guesses[3.0] < 12


@pytest.mark.parametrize(("labels", "iterations"), [("inferred", 100), ("searched", 150), ("tried", 100)])
def test_labels_are_found_in_every_way(labels, iterations):
    module, (x, y) = dense(), digits(first=3)
    attack = Matching(iterations=iterations, labels=labels)
    guess = attack.reconstruct(observed(module, x.flatten(1), y), shape=(64,), seed=SEED)
    assert guess.y.tolist() == y.tolist()
    assert decibels(guess.x, x.flatten(1)) > 30


def test_several_local_steps_are_unrolled():
    module, (x, y) = dense(), digits()
    seen = observed(module, x.flatten(1), y, work=LocalWork(rate=0.1, steps=4))
    guess = ROBUST.reconstruct(seen, shape=(64,), seed=SEED, y=y)
    assert decibels(guess.x, x.flatten(1)) > 30


def test_batches_are_taken_apart():
    """Four images from the mean of their gradients, compared in the order that fits best."""
    module, (x, y) = dense(), digits(4)
    seen = observed(module, x.flatten(1), y)
    guess = Matching(iterations=600).reconstruct(seen, shape=(64,), seed=SEED, count=4, y=y)
    errors = [max(decibels(each, truth) for each in guess.x) for truth in x.flatten(1)]
    assert sum(errors) / 4 > 20


def test_more_restarts_never_match_worse():
    module, (x, y) = convolutional(), digits()
    seen = observed(module, x, y, known=through("srht", module, 64))
    found = [Matching(iterations=30, restarts=n).reconstruct(seen, shape=(1, 8, 8), seed=SEED, y=y).mismatch for n in (1, 3)]
    assert found[1] <= found[0]


def test_equal_seeds_give_equal_guesses_and_others_do_not():
    module, (x, y) = dense(), digits()
    seen = observed(module, x.flatten(1), y, noise=0.5)
    attack = Matching(iterations=20)
    first, again, other = (attack.reconstruct(seen, shape=(64,), seed=PublicSeed(s)).x for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_progress_is_told_step_by_step():
    module, (x, y) = dense(), digits()
    steps = []
    Matching(iterations=7).reconstruct(
        observed(module, x.flatten(1), y), shape=(64,), seed=SEED, on_step=lambda: steps.append(1)
    )
    assert len(steps) == 7


@pytest.mark.parametrize("count", [1, 5])
def test_labels_of_a_plain_gradient_are_read_off_its_last_bias(count):
    module, (x, y) = dense(), digits(count, first=20)
    assert sorted(inferred(observed(module, x, y), count=count).tolist()) == sorted(y.tolist())


def test_labels_are_read_off_the_last_weight_where_there_is_no_bias():
    module, (x, y) = wide(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10, bias=False))), digits()
    assert inferred(observed(module, x, y), count=1).tolist() == y.tolist()


def test_a_first_dense_layer_shows_its_input_without_a_search():
    module, (x, y) = dense(), digits()
    assert torch.allclose(first_inputs(observed(module, x, y)), x.flatten(), atol=1e-4)


def test_sketches_of_an_input_add_up_to_it():
    """Two of half its size tell it all but for what they have in common; three leave nothing open."""
    x = digits()[0].flatten()
    sketches = [make_sketch("balanced", dim=64, size=32, seed=PublicSeed(s)) for s in range(3)]
    errors = [float((unsketched([(r.apply(x), r) for r in sketches[:n]]) - x).norm() / x.norm()) for n in (1, 2, 3)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4


def test_total_variation_is_the_distance_of_neighbours():
    x = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    assert variation(x) == 1.0
    assert variation(torch.ones(2, 3, 4, 4)) == 0.0


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"objective": "l1"}, UnknownNameError, "l1"),
        ({"optimiser": "sgd"}, UnknownNameError, "sgd"),
        ({"labels": "guessed"}, UnknownNameError, "guessed"),
        ({"iterations": 0}, InputError, "iterations"),
        ({"low": 1.0, "high": 0.0}, InputError, "low"),
        ({"rate": float("nan")}, InputError, "rate"),
        ({"variation": -0.1}, InputError, "variation"),
    ],
)
def test_attacks_that_cannot_work_are_refused(settings, error, said):
    with pytest.raises(error, match=said):
        Matching(**settings)


def test_what_an_attack_lacks_is_said():
    module, (x, y) = dense(), digits()
    seen = observed(module, x, y)
    with pytest.raises(InputError, match="1 to 8"):
        ROBUST.reconstruct(seen, shape=(1, 8, 8), seed=SEED, count=9)
    with pytest.raises(InputError, match="one by one"):
        Matching(labels="tried").reconstruct(seen, shape=(1, 8, 8), seed=SEED, count=2)
    with pytest.raises(InputError, match="gradient matching"):
        first_inputs(observed(module, x, y, known=through("srht", module, 40)))
    with pytest.raises(InputError, match="first dense layer"):
        first_inputs(observed(convolutional(), x, y))
    last = wide(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))
    del last[0].bias
    last[0].register_parameter("bias", None)
    with pytest.raises(InputError, match="last dense layer"):
        inferred(observed(last, x, y), count=1)
