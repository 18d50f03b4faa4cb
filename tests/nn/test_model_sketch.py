"""The sketches of all layers as one operator on flat weights."""

import pytest
import torch
from torch import nn

from problems import SEED
from sketchfed.algorithms import Dbcl
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.codecs.linear import LinearCode
from sketchfed.training.blind import client_form
from sketchfed.vectors import Layout, flatten, load

FAMILIES = ("balanced", "count", "sampling", "srht", "gaussian")
OPTIONS = [{}, {"biases": "sketched", "output": "sketched"}, {"biases": "withheld", "output": "withheld"}]
every_form = pytest.mark.parametrize("options", OPTIONS, ids=["default", "all sketched", "withheld"])
every_family = pytest.mark.parametrize("family", FAMILIES)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, (2, 3)), nn.Flatten(), nn.Linear(9, 7, bias=False), nn.ReLU(), nn.Linear(7, 3))


def form_of(family, options):
    return Dbcl(sketch=SketchSettings(name=family, ratio=0.5), **options).resolved(1, module=model()).given(SEED, 0).sketch


def numbers(count, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_family
@every_form
def test_it_is_linear_and_its_adjoint_is_the_transpose(family, options):
    form = form_of(family, options)
    dense = torch.stack([form.apply(row) for row in torch.eye(form.dim, dtype=torch.float64)], 1)
    transposed = torch.stack([form.adjoint(row) for row in torch.eye(form.size, dtype=torch.float64)], 1)
    torch.testing.assert_close(transposed, dense.T)
    x, y = numbers(form.dim), numbers(form.size, 1)
    torch.testing.assert_close(form.apply(x), dense @ x)
    torch.testing.assert_close(form.apply(x) @ y, x @ form.adjoint(y))
    torch.testing.assert_close(form.gram(y), dense @ dense.T @ y)


@every_family
def test_buckets_have_loads_where_rows_are_orthogonal(family):
    form = form_of(family, {})
    if family in ("srht", "gaussian"):
        assert form.loads is None
        return
    ones = torch.ones(form.size)
    torch.testing.assert_close(form.loads, form.apply(form.adjoint(ones)))
    for name, sketch in form.layers:
        torch.testing.assert_close(sketch.loads.sum(), torch.tensor(float(sketch.dim)))
        assert form.seen.views(form.loads)[name].shape == (form.seen.views(ones)[name].shape[0], sketch.size)


@every_family
@every_form
def test_the_client_form_of_a_model_has_the_flat_weights_that_the_operator_makes(family, options):
    form, module = form_of(family, options), model()
    client = client_form(module, form)
    assert Layout.of(client) == form.seen
    torch.testing.assert_close(flatten(client), form.apply(flatten(module)))


@every_family
@every_form
def test_the_client_form_computes_what_weights_through_the_sketch_compute(family, options):
    """Rᵀ·R·w as weights of the whole model, what is withheld as it is fixed: the same outputs."""
    form, module = form_of(family, options), model()
    client, x = client_form(module, form), numbers(2 * 12).float().view(2, 1, 4, 3)
    whole = form.adjoint(form.apply(flatten(module)))
    views = form.layout.views(whole)
    for name, values in form.fixed().items():
        views[name].copy_(values)
    torch.testing.assert_close(client(x), load(model(), whole)(x), rtol=1e-4, atol=1e-5)


def test_what_is_withheld_can_be_rebuilt_by_anyone():
    first, second = (form_of("balanced", OPTIONS[2]).fixed() for _ in range(2))
    assert first.keys() == second.keys() == {"0.bias", "4.weight", "4.bias"}
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_model_may_be_a_single_layer():
    layer = nn.Linear(8, 2)
    form = Dbcl(output="sketched").resolved(1, module=layer).given(SEED, 0).sketch
    assert dict(zip(form.seen.names, form.seen.shapes, strict=True)) == {"weight": (2, 4), "bias": (2,)}
    torch.testing.assert_close(flatten(client_form(layer, form)), form.apply(flatten(layer)))


def test_parameters_that_do_not_train_are_part_of_the_model_and_not_of_what_travels():
    module = model()
    module[0].bias.requires_grad_(False)
    module[2].weight.requires_grad_(False)
    form = Dbcl(biases="sketched").resolved(1, module=module).given(SEED, 0).sketch
    assert form.layout == Layout.of(module)
    assert list(form.sketches) == ["0.weight"]
    assert not form.folded
    torch.testing.assert_close(flatten(client_form(module, form)), form.apply(flatten(module)))


def test_codes_of_several_sizes_are_padded_to_one():
    code = LinearCode(kind="dbcl", shape=(5,), map=None, padding=3)
    values = torch.arange(5.0)
    assert code.size == 8
    assert code.apply(values.expand(2, 5)).tolist() == [[0, 1, 2, 3, 4, 0, 0, 0]] * 2
    packet = code.packet(code.apply(values))
    assert packet.arrays["values"].tolist() == values.tolist()  # zeros do not travel
    assert code.values(packet).tolist() == code.apply(values).tolist()
    assert code.adjoint(code.values(packet)).tolist() == values.tolist()
