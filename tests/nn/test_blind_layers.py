"""Blind layers: what they hold, what they keep, and what sketched layers say and refuse."""

import copy

import numpy as np
import pytest
import torch
from layer_forms import (
    CONVOLUTIONS,
    SEED,
    both_forms,
    convolution,
    dense_layer,
    every_family,
    folded_or_not,
    in_form,
    modules,
    random,
)
from torch import Tensor, nn

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nn import SketchedConv2d, SketchedLinear, blind_layer, columns, sketch_size
from sketchfed.sketches import make_sketch

# Blindness ------------------------------------------------------------------------------------------------------------


def numbers_within(thing, seen=None):
    """How many numbers each array holds that can be reached from an object by its attributes and items."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | str | bytes):
        return
    seen[id(thing)] = thing
    if isinstance(thing, Tensor):
        yield thing.untyped_storage().nbytes() // thing.element_size()
        yield from numbers_within(thing.grad, seen)
    elif isinstance(thing, np.ndarray):
        yield thing.size
        yield from numbers_within(thing.base, seen)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from numbers_within(value, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for value in thing:
            yield from numbers_within(value, seen)
    elif hasattr(thing, "__dict__"):
        yield from numbers_within(vars(thing), seen)


@every_family
@folded_or_not
def test_nothing_in_a_blind_layer_holds_as_many_numbers_as_the_weights(family, fold_bias):
    for layer, x in (
        (dense_layer(60, outputs=40, size=30, family=family, fold_bias=fold_bias), random(3, 60)),
        (convolution({"kernel_size": 3}, family=family, fold_bias=fold_bias), random(2, 2, 5, 5)),
    ):
        assert max(numbers_within(layer)) >= layer.weight.numel()
        blind = in_form("blind", layer)
        blind(x).sum().backward()
        assert max(numbers_within(blind)) < layer.weight.numel()
        assert sum(value.numel() for value in blind.parameters()) < layer.weight.numel()


def test_a_blind_layer_has_its_own_copies_weight_first():
    layer = dense_layer(10)
    blind = in_form("blind", layer)
    assert [name for name, _ in blind.named_parameters()] == ["weight", "bias"]
    assert torch.equal(blind.weight, layer.sketch.apply(layer.weight))
    blind.bias.data.zero_()
    assert layer.bias.count_nonzero()
    assert [name for name, _ in in_form("blind", dense_layer(10, fold_bias=True)).named_parameters()] == ["weight"]


def test_a_blind_layer_comes_from_a_plain_one_too_and_keeps_what_is_frozen():
    plain = nn.Linear(10, 4)
    plain.weight.requires_grad_(False)
    blind = blind_layer(plain.eval(), make_sketch("balanced", dim=10, size=5, seed=SEED))
    assert [value.requires_grad for value in blind.parameters()] == [False, True]
    assert not blind.training


def test_where_there_is_no_bias_none_is_folded():
    plain = nn.Linear(10, 4, bias=False)
    assert columns(plain, fold_bias=True) == 10
    blind = blind_layer(plain, make_sketch("balanced", dim=10, size=5, seed=SEED), fold_bias=True)
    assert blind.bias is None
    assert blind(torch.zeros(1, 10)).count_nonzero() == 0


@both_forms
def test_copies_and_states_round_trip(form):
    for layer, x in modules():
        module = in_form(form, layer)
        twin = copy.deepcopy(module)
        assert torch.equal(twin(x), module(x))
        for value in twin.parameters():
            nn.init.zeros_(value)
        assert not torch.equal(twin(x), module(x))
        twin.load_state_dict(module.state_dict())
        assert torch.equal(twin(x), module(x))


# What is said and refused ---------------------------------------------------------------------------------------------


def test_layers_describe_themselves():
    dense, folded = SketchedLinear(10, 4), SketchedLinear(10, 4, fold_bias=True)
    assert repr(dense) == "SketchedLinear(in_features=10, out_features=4, bias=True, sketch=balanced, size=5, not drawn)"
    folded.draw(SEED)
    assert repr(folded) == "SketchedLinear(in_features=10, out_features=4, bias=True, sketch=balanced, size=5, folded bias)"
    blind = in_form("blind", folded)
    assert repr(blind) == "BlindLinear(in_features=10, out_features=4, bias=folded, sketch=balanced, size=5)"
    layer = convolution(CONVOLUTIONS["circular"])
    for module, name in ((layer, "SketchedConv2d"), (in_form("blind", layer), "BlindConv2d")):
        for part in (f"{name}(2, 3, kernel_size=(3, 3), stride=(2, 2)", "circular", "sketch=balanced, size=8)"):
            assert part in repr(module)


def test_groups_are_refused():
    with pytest.raises(InputError, match=r"a convolution in 2 groups cannot be sketched.* use groups=1"):
        SketchedConv2d(2, 4, 3, groups=2)
    with pytest.raises(InputError, match=r"in 2 groups"):
        blind_layer(nn.Conv2d(2, 4, 3, groups=2), make_sketch("balanced", dim=9, size=4, seed=SEED))


@folded_or_not
def test_a_sketch_of_another_dim_is_refused(fold_bias):
    sketch = make_sketch("balanced", dim=10 + (not fold_bias), size=4, seed=SEED)
    with pytest.raises(
        InputError, match=r"a sketch of dim 1\d does not fit a layer with 1\d columns: Linear\(.* Make it for dim=1\d"
    ):
        blind_layer(nn.Linear(10, 4), sketch, fold_bias=fold_bias)


@pytest.mark.parametrize(
    ("dim", "choice", "size"),
    [
        (10, {}, 5),
        (9, {}, 4),
        (1, {}, 1),
        (10, {"ratio": 0.01}, 1),
        (10, {"ratio": 1}, 10),
        (10, {"size": 3}, 3),
        (10, {"size": 99}, 10),
    ],
)
def test_sizes_follow_from_a_ratio_or_are_given_and_never_exceed_the_inputs(dim, choice, size):
    assert sketch_size(dim, **choice) == size


@pytest.mark.parametrize(
    "choice", [{"ratio": 0}, {"ratio": 1.5}, {"ratio": "half"}, {"ratio": True}, {"size": 0}, {"size": 2.5}]
)
def test_impossible_sizes_are_refused(choice):
    with pytest.raises(InputError, match=r"(ratio is the share|size must be a positive number)"):
        SketchedLinear(10, 4, **choice)


def test_impossible_families_are_refused_when_the_layer_is_made():
    with pytest.raises(UnknownNameError, match=r"no sketch named 'balance'\. Did you mean 'balanced'"):
        SketchedLinear(10, 4, family="balance")
    with pytest.raises(InputError, match=r"'count' has no option 'block'"):
        SketchedConv2d(1, 4, 3, family="count", options={"block": 4})
    layer = SketchedLinear(64, 4, family="srht", options={"transform": "cosine"})
    layer.draw(SEED)
    assert layer.sketch.transform == "cosine"
