"""A module's trainable parameters as one flat vector, and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sketchfed.errors import InputError
from sketchfed.vectors import Layout, adopt, flatten, hollow, load, restored


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4, bias=False))


def test_a_layout_names_each_parameter_in_order():
    layout = Layout.of(convolutional())
    assert layout.names == ("0.weight", "0.bias", "1.weight", "1.bias", "4.weight")
    assert layout.shapes == ((3, 2, 3, 3), (3,), (3,), (3,), (4, 12))
    assert layout.dim == 54 + 3 + 3 + 3 + 48


def test_loading_what_was_flattened_makes_equal_modules():
    one, other, x = convolutional(), convolutional(), torch.ones(1, 2, 4, 4)
    assert not torch.equal(one(x), other(x))
    assert load(other, flatten(one)) is other
    assert torch.equal(one(x), other(x))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5))
def test_views_cut_the_vector_without_gap_or_overlap(shapes):
    module = nn.ParameterList([nn.Parameter(torch.rand(shape)) for shape in shapes])
    layout, flat = Layout.of(module), flatten(module)
    assert flat.shape == (layout.dim,)
    views = layout.views(flat)
    assert torch.equal(torch.cat([view.reshape(-1) for view in views.values()]), flat)
    for view, parameter in zip(views.values(), module, strict=True):
        assert torch.equal(view, parameter)


def test_what_was_flattened_is_a_copy():
    module = nn.Linear(2, 2)
    flatten(module).zero_()
    assert not torch.equal(flatten(module), torch.zeros(6))


def test_a_module_that_adopted_a_vector_follows_it():
    module, flat = nn.Linear(2, 2), torch.arange(6.0)
    adopt(module, flat)
    flat.mul_(2)
    assert torch.equal(module.weight, torch.tensor([[0.0, 2.0], [4.0, 6.0]]))
    assert torch.equal(module.bias, torch.tensor([8.0, 10.0]))
    module.bias.data.zero_()
    assert torch.equal(flat[4:], torch.zeros(2))


def test_tied_parameters_are_one():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert Layout.of(module).dim == 9 + 3 + 3
    load(module, torch.arange(15.0))
    assert torch.equal(module[1].weight, torch.arange(9.0).reshape(3, 3))


def test_frozen_parameters_are_no_part_of_the_vector():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    assert Layout.of(module).names == ("1.weight", "1.bias")
    assert flatten(module).shape == (8,)
    load(module, torch.ones(8))
    adopt(module, torch.zeros(8))
    assert torch.equal(module[0].weight, before)
    assert torch.equal(module[1].weight, torch.zeros(2, 3))


def test_modules_that_cannot_be_trained_are_refused():
    for module in (nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)):
        with pytest.raises(InputError, match=f"{type(module).__name__} has no trainable parameters"):
            Layout.of(module)
    with pytest.raises(InputError, match=r"parameter 'weight' is torch.float64; updates are float32. Convert .*module.float"):
        Layout.of(nn.Linear(2, 2).double())


def test_a_module_without_memory_is_restored_in_memory_of_its_own():
    module = convolutional()
    module[1].weight.requires_grad_(False)
    flat = flatten(module) + 1
    made = restored(hollow(module), flat)
    assert torch.equal(flatten(made), flat)
    assert torch.equal(made[1].weight, module[1].weight)
    flat.zero_()
    assert flatten(made).all()
    assert all(parameter.is_contiguous() for parameter in made.parameters())
