"""Sketches on other devices are the same operators: their random integers are drawn on the CPU, and many have the same bits."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.kernels import philox
from sketchfed.sketches import SKETCHES, Block, DirectSum, Sketch
from sketchfed.sketches.columns import _all_codes, _codes_on
from sketchfed.sketches.elsewhere import desketched
from sketchfed.sketches.sampling import _moved as sampled
from sketchfed.sketches.srht import _moved as signed
from sketchfed.testing.devices import pretended

DEVICE = pretended()
COLUMNS = ["count", "balanced", "sparse", "sparse_blocks"]
PORTABLE = {name: SKETCHES[name] for name in ("srht", "sampling", *COLUMNS)} | {
    "srht, blocks": partial(SKETCHES["srht"], block=90),
    "sparse, 3 nonzeros": partial(SKETCHES["sparse"], nonzeros=3),
}


def made(family, *, dim=300, size=70):
    return family(dim=dim, size=size, seed=PublicSeed(7))


@pytest.mark.parametrize("name", COLUMNS)
def test_buckets_and_signs_equal_those_of_the_cpu(name):
    sketch = made(SKETCHES[name])
    codes = _codes_on(sketch, DEVICE, 20, 100)
    assert codes.device == DEVICE
    assert codes.tolist() == sketch._codes(20, 100).astype(np.int64).tolist()


def test_codes_that_fill_32_bits_survive_the_move():
    sketch = SKETCHES["count"](dim=100, size=2**31 - 1, seed=PublicSeed(7))
    assert int(_codes_on(sketch, DEVICE, 0, 100).max()) > 2**31
    assert _codes_on(sketch, DEVICE, 0, 100).tolist() == sketch._codes(0, 100).astype(np.int64).tolist()


def test_signs_and_rows_equal_those_of_the_cpu():
    srht, sampling = made(SKETCHES["srht"]), made(SKETCHES["sampling"])
    signs, rows = signed(srht, DEVICE)
    assert signs[0].tolist() == (1 - 2 * philox.bits(srht._words[0], 300).astype(int)).tolist()
    assert rows.tolist() == srht._rows.tolist()
    found, factors = sampled(sampling, DEVICE)
    assert (found.tolist(), factors.tolist()) == (sampling._rows.tolist(), sampling._signs.tolist())
    assert {each.device for each in (signs, rows, found, factors)} == {DEVICE}


@pytest.mark.parametrize("name", ["gaussian", "ams"])
def test_entries_that_are_made_on_a_device_equal_those_of_the_cpu(name):
    sketch, rows = made(SKETCHES[name]), torch.arange(70)
    assert torch.equal(sketch._rows_twin(rows.to(DEVICE)).cpu(), sketch._rows_twin(rows))
    words = philox.words_twin(sketch.seed.stream, torch.arange(1000, device=DEVICE))
    assert words.reshape(-1).tolist() == philox.words(sketch.seed.stream, 4000).tolist()


def test_what_was_drawn_is_moved_once():
    sketch = made(SKETCHES["count"])
    assert _all_codes(sketch, DEVICE)[0] is _all_codes(made(SKETCHES["count"]), DEVICE)[0]


@pytest.mark.parametrize("name", PORTABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_portable_sketches_are_undone_with_the_same_bits_at_any_size(name, dtype):
    """Numbers of every magnitude, zeros of both signs, and the smallest ones, at 23 sizes."""
    for size in range(5, 69, 3) if "blocks" not in name else range(12, 69, 8):
        sketch = made(PORTABLE[name], size=size)
        assert sketch.portable
        y = torch.randn(4, size, dtype=dtype, generator=torch.Generator().manual_seed(size))
        y[1] *= 10.0 ** torch.randint(-30, 30, (size,), generator=torch.Generator().manual_seed(size))
        y[2, ::2], y[2, 1::2], y[3] = 0.0, -0.0, 1e-41 * y[3]
        found = sketch.adjoint(y.to(DEVICE)).cpu()
        assert torch.equal(found.view(torch.int32), sketch.adjoint(y).view(torch.int32)), size


def test_long_transforms_in_pieces_have_the_same_bits_too():
    sketch = SKETCHES["srht"](dim=2**22 + 77, size=500, seed=PublicSeed(7))
    y = torch.randn(500, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sketch.adjoint(y.to(DEVICE)).cpu().view(torch.int32), sketch.adjoint(y).view(torch.int32))


def test_sketches_side_by_side_are_portable_if_all_of_them_are():
    blocks = (Block(((0, 60),), 20), Block(((60, 100),), 40, plain=True))
    sums = {
        family: DirectSum(dim=100, size=60, seed=PublicSeed(7), family=SKETCHES[family], blocks=blocks)
        for family in ("srht", "gaussian")
    }
    assert sums["srht"].portable
    assert not sums["gaussian"].portable
    y = torch.randn(60)
    assert torch.equal(sums["srht"].adjoint(y.to(DEVICE)).cpu().view(torch.int32), sums["srht"].adjoint(y).view(torch.int32))


def test_products_and_cosine_transforms_are_not_portable():
    others = [made(SKETCHES["gaussian"]), made(SKETCHES["ams"]), made(partial(SKETCHES["srht"], transform="cosine"))]
    assert not any(sketch.portable for sketch in others)


# Undone where the bits are those of the CPU --------------------------------------------------------------------------------


def undone_on(sketch, monkeypatch):
    """The devices on which `desketched` undoes a sketch, and whether its bits are those of the CPU."""
    places, adjoint = [], Sketch.adjoint
    y = torch.randn(sketch.size)
    wanted = sketch.adjoint(y)
    desketched(sketch, y, DEVICE)  # the device shows what it can do
    monkeypatch.setattr(Sketch, "adjoint", lambda self, y: (places.append(y.device), adjoint(self, y))[1])
    found = desketched(sketch, y, DEVICE)
    assert found.device.type == "cpu"
    return places, torch.equal(found.view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("name", PORTABLE)
def test_portable_sketches_are_undone_on_the_device(name, monkeypatch):
    assert undone_on(made(PORTABLE[name]), monkeypatch) == ([DEVICE], True)


@pytest.mark.parametrize("name", ["gaussian", "ams"])
def test_other_sketches_are_undone_on_the_cpu(name, monkeypatch):
    assert undone_on(made(SKETCHES[name]), monkeypatch) == ([torch.device("cpu")], True)


@dataclass(frozen=True, kw_only=True)
class Flushed(SKETCHES["sampling"]):
    """On another device, numbers that are nearly zero become zero, as on some GPUs."""

    def _adjoint(self, y):
        found = super()._adjoint(y)
        return found if y.device.type == "cpu" else torch.where(found.abs() < 1e-38, torch.zeros_like(found), found)


@dataclass(frozen=True, kw_only=True)
class Regrouped(SKETCHES["count"]):
    """Another device rounds otherwise: it divides by a third where the CPU multiplies by three."""

    def _adjoint(self, y):
        return 3 * super()._adjoint(y) if y.device.type == "cpu" else super()._adjoint(y) / (1 / 3)


@pytest.mark.parametrize("family", [Flushed, Regrouped])
def test_a_device_that_comes_to_other_bits_is_not_used_and_the_log_says_so(family, monkeypatch, caplog):
    assert undone_on(made(family), monkeypatch) == ([torch.device("cpu")], True)
    assert len(caplog.records) == 1
    assert "pretend:0 does not compute the bits of the CPU for sketch" in caplog.text
