"""Vectors as they are: exact in float32, as near as their digits allow in half of that."""

from dataclasses import replace

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import Dense
from sketchfed.errors import InputError, SketchfedError, UnknownNameError, WireError
from sketchfed.wire import pack, unpack

SEED = PublicSeed(7)
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

every_half = pytest.mark.parametrize("precision", UNIT)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def through(codec: Dense, x: torch.Tensor) -> torch.Tensor:
    """The mean of rows that went over the wire."""
    return codec.decode([unpack(pack(codec.encode(row, SEED, client))) for client, row in enumerate(x)], SEED)


def test_float32_is_exact():
    x = normal(1, 1_000) * torch.logspace(-38, 38, 1_000)
    assert torch.equal(through(Dense(dim=1_000), x), x[0])
    assert Dense(dim=1_000, clients=3).mse(1.0) == 0


@every_half
def test_a_half_is_off_by_at_most_its_last_digit(precision):
    """Below 6e-5, the least number that float16 holds in full, its digits end at 2⁻²⁴."""
    x = normal(1, 1_000) * torch.logspace(-6, 3, 1_000)
    got = through(Dense(dim=1_000, precision=precision), x)
    assert got.dtype == torch.float32
    assert ((got - x[0]).abs() <= (UNIT[precision] * x[0].abs()).clamp(min=2.0**-25)).all()
    assert Dense(dim=1_000, precision=precision, clients=3).mse(1.0) is None


@every_half
def test_what_halves_hold_arrives_exactly_and_the_mean_is_taken_in_float32(precision):
    x = torch.tensor([[1.0, 0.5, -128.0], [1.0078125, -0.25, 64.0]])
    assert torch.equal(through(Dense(dim=3, precision=precision), x), x.mean(0))


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_bytes_a_number(precision, size):
    codec = Dense(dim=1_000, precision=precision)
    assert 0 < len(pack(codec.bare(codec.encode(normal(1_000), SEED)))) - 1_000 * size < 50


@pytest.mark.parametrize(("precision", "value"), [("float16", 65_536.0), ("float16", -1e6), ("bfloat16", 3.4e38)])
def test_numbers_that_a_half_cannot_hold_are_refused(precision, value):
    with pytest.raises(InputError, match=f"{precision} holds numbers up to .* this vector has larger ones"):
        Dense(dim=2, precision=precision).encode(torch.tensor([0.0, value]), SEED)


def test_the_largest_numbers_that_a_half_holds_arrive():
    assert through(Dense(dim=2, precision="float16"), torch.tensor([[65_504.0, -65_504.0]])).tolist() == [65_504, -65_504]


@pytest.mark.parametrize("precision", ["float32", *UNIT])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_refused(precision, bad):
    with pytest.raises(SketchfedError):
        Dense(dim=2, precision=precision).encode(torch.tensor([1.0, bad]), SEED)


def test_only_sums_of_float32_decode():
    assert Dense(dim=3).linear(SEED).additive
    assert not Dense(dim=3, precision="float16").linear(SEED).additive
    packet = Dense(dim=3).encode(torch.tensor([2.0, 4.0, 6.0]), SEED)
    assert Dense(dim=3).decode([replace(packet, clients=2)], SEED).tolist() == [1, 2, 3]
    half = Dense(dim=3, precision="float16")
    with pytest.raises(WireError, match="stands for 2 clients, but packets of codec 'dense' cannot be added"):
        half.decode([replace(half.encode(torch.ones(3), SEED), clients=2)], SEED)


def test_packets_of_another_precision_are_refused():
    packet = Dense(dim=3).encode(torch.ones(3), SEED, 1)
    with pytest.raises(WireError, match=r"array 'values' of float16\[3\], it is float32\[3\]"):
        Dense(dim=3, precision="float16").check(packet, 1)


def test_precisions_that_do_not_exist_are_refused():
    with pytest.raises(UnknownNameError, match="no precision named 'float8'"):
        Dense(dim=3, precision="float8")
