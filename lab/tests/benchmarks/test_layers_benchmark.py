"""The benchmark of layers runs, records and draws. How fast anything is, is not for a test to say."""

from xml.etree import ElementTree

import pytest
import torch
from quick import load, run_quickly
from torch import nn

from sketchfed import PublicSeed
from sketchfed.sketches import make_sketch


@pytest.fixture(scope="module")
def benchmark():
    module = load("layers", shapes=(), rounds=1, turn=1e-5)
    shapes = (module.Shape(inputs=11, outputs=3, batch=2), module.Shape(inputs=2, outputs=3, side=6, batch=2))
    module.QUICK = module.Plan(shapes=shapes, rounds=1, turn=1e-5)
    return module


@pytest.fixture(scope="module")
def run(benchmark, tmp_path_factory):
    return run_quickly(benchmark, tmp_path_factory.mktemp("bench"))


def test_every_family_is_raced_against_torchs_layer(run, benchmark):
    passes = [row for row in run.rows if row["topic"] == "passes"]
    for plain in ("Linear", "Conv2d"):
        assert {row["what"] for row in passes if row.get("over") == plain} == {*benchmark.FAMILIES, "balanced, full form"}
    assert len({row["layer"] for row in run.rows}) == 2


def test_targets_are_asked_of_balanced_sketches_and_of_loops(run):
    asked = {(row["topic"], row["what"], row["over"]) for row in run.rows if "met" in row}
    assert asked == {
        ("passes", "balanced", "Linear"),
        ("passes", "balanced", "Conv2d"),
        ("sketching", "a loop over buckets", "balanced"),
        ("looped", "a loop over buckets", "balanced"),
    }
    assert "6 targets met" in run.printed


def test_a_picture_is_drawn(run):
    assert ElementTree.parse(run.folder / "layers.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("family", ["balanced", "count"])
def test_the_loop_computes_what_the_sketch_does(benchmark, family):
    sketch = make_sketch(family, dim=11, size=4, seed=PublicSeed(7))
    buckets, x, y = benchmark.Buckets.of(sketch), torch.randn(3, 11), torch.randn(3, 4)
    torch.testing.assert_close(buckets.apply(x), sketch.apply(x))
    torch.testing.assert_close(buckets.adjoint(y), sketch.adjoint(y))


@pytest.mark.parametrize("plain", [nn.Linear(11, 3), nn.Conv2d(2, 3, 5, padding=2)], ids=["dense", "convolution"])
def test_layers_by_loops_have_the_gradients_of_the_full_form(benchmark, plain):
    shape = benchmark.Shape(inputs=11, outputs=3, batch=2)
    if isinstance(plain, nn.Conv2d):
        shape = benchmark.Shape(inputs=2, outputs=3, side=6, batch=2)
    ours, x = shape.full_form(plain), shape.examples()
    loop = benchmark.Looped(plain, ours.sketch)
    found = []
    for layer in (ours, loop):
        inputs = x.clone().requires_grad_()
        layer(inputs).sin().sum().backward()
        found.append([inputs.grad, layer.weight.grad.flatten(1), layer.bias.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
