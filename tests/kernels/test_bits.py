import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sketchfed.kernels.bits import pack_bits, unpack_bits

widths = st.integers(1, 63)


def reference(values: list[int], bits: int) -> bytes:
    """One big integer: value i shifted to bit i * bits."""
    whole = sum((value & (2**bits - 1)) << (i * bits) for i, value in enumerate(values))
    return whole.to_bytes((len(values) * bits + 7) // 8, "little")


@st.composite
def integers_of_a_width(draw):
    bits, signed = draw(widths), draw(st.booleans())
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return draw(st.lists(st.integers(low, high), max_size=200)), bits, signed


@given(integers_of_a_width())
@settings(deadline=None)  # the first call compiles
def test_packing_is_one_little_endian_bit_string_and_comes_back(case):
    values, bits, signed = case
    packed = pack_bits(torch.tensor(values, dtype=torch.int64), bits)
    assert packed == reference(values, bits)
    assert unpack_bits(packed, len(values), bits, signed=signed).tolist() == values


@pytest.mark.parametrize("bits", range(1, 64))
@pytest.mark.parametrize("signed", [False, True])
def test_the_ends_of_every_width_come_back_across_word_boundaries(bits, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = [low, high, high, low, *([high, low, low] * 50)]
    packed = pack_bits(torch.tensor(values), bits)
    assert packed == reference(values, bits)
    assert unpack_bits(packed, len(values), bits, signed=signed).tolist() == values


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_the_dtype_of_the_input_does_not_matter(dtype):
    values = [0, 1, 5, 7, 127] if dtype == torch.uint8 else [-8, 7, -1, 0, 3]
    assert pack_bits(torch.tensor(values, dtype=dtype), 7) == reference(values, 7)


def test_strided_and_shaped_tensors_are_packed_row_by_row():
    grid = torch.arange(24).reshape(4, 6).T[::2]
    assert pack_bits(grid, 5) == reference(grid.flatten().tolist(), 5)


def test_the_input_is_left_alone():
    values = torch.arange(-50, 50)
    pack_bits(values, 9)
    assert torch.equal(values, torch.arange(-50, 50))
