"""What a packet carries: tensors of plain dtypes, and `Bits`. Here both become little-endian bytes, and come back."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import WireError

PLAIN = {
    1: torch.float32,
    2: torch.float64,
    3: torch.float16,
    4: torch.bfloat16,
    5: torch.int8,
    6: torch.int16,
    7: torch.int32,
    8: torch.int64,
    9: torch.uint8,
}
CODES = {dtype: code for code, dtype in PLAIN.items()}
UNSIGNED, SIGNED = 32, 33
MAX_DIMS, MAX_ELEMENTS, MAX_WIDTH = 8, 2**48, 63

# NumPy has no bfloat16, so tensors cross to and from it as integers of the same size.
_CARRIER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)


def elements(shape: tuple[int, ...]) -> int:
    """How many elements a shape holds, in Python integers: they do not overflow, so no lie about size slips through."""
    if len(shape) == 1 and 0 <= shape[0] < MAX_ELEMENTS:
        return shape[0]
    if len(shape) > MAX_DIMS:
        raise WireError(f"an array has at most {MAX_DIMS} dimensions, got {len(shape)}. Flatten it first.")
    if any(dim < 0 for dim in shape) or math.prod(max(dim, 1) for dim in shape) >= MAX_ELEMENTS:
        raise WireError(
            f"the shape {shape} is absurd: dimensions are not negative and multiply to less than 2^48, "
            "zeros left out. Nothing that large is ever sent; check what made it."
        )
    return math.prod(shape)


class Spec(NamedTuple):
    """What the header says about one array. `bits` is 0 for plain dtypes."""

    code: int
    bits: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: "Tensor | Bits") -> "Spec":
        if isinstance(array, Bits):
            return cls(SIGNED if array.signed else UNSIGNED, array.bits, array.shape)
        return cls(CODES[array.dtype], 0, tuple(array.shape))

    def __str__(self) -> str:
        kind = f"{self.bits}-bit" if self.bits else str(PLAIN[self.code]).removeprefix("torch.")
        return f"{kind}{list(self.shape)}"

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return _whole_bytes(elements(self.shape) * (self.bits or 8 * PLAIN[self.code].itemsize))


@dataclass(frozen=True, init=False)
class Bits:
    """Integers of 1 to 63 bits each, held and sent with no gap: a thousand 13-bit coordinates are 1,625 bytes.

    Signed values are in two's complement. What arrives stays packed until `values` is read.

    >>> Bits(torch.tensor([3, 0, 2, 1, 3]), bits=2).values
    tensor([3, 0, 2, 1, 3])
    """

    bits: int
    signed: bool
    shape: tuple[int, ...]
    packed: bytes = field(repr=False)

    def __init__(self, values: Tensor, *, bits: int, signed: bool = False) -> None:
        from sketchfed.kernels.bits import pack_bits  # here, because numba takes long to import

        if not isinstance(values, Tensor) or values.dtype not in _INTEGERS:
            raise WireError(f"Bits are made from a tensor of integers, got {describe(values)}. Round it to int64 first.")
        _check_width(bits)
        check_dense("values", values)
        values = values.detach().to(torch.uint8) if values.dtype == torch.bool else values.detach()
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        low, high = (int(end) for end in torch.aminmax(values)) if values.numel() else (0, 0)
        if low < least or high > most:
            raise WireError(
                f"{bits} {'signed' if signed else 'unsigned'} bits hold {least:,} to {most:,}, got values "
                f"from {low:,} to {high:,}. {_advice(low, high, signed=signed)}"
            )
        self._fill(pack_bits(values, bits), tuple(values.shape), bits, signed)

    @classmethod
    def from_packed(cls, packed: bytes, *, shape: tuple[int, ...], bits: int, signed: bool = False) -> "Bits":
        """Adopt integers that are packed already, without expanding them."""
        _check_width(bits)
        used = elements(shape) * bits
        if len(packed) != _whole_bytes(used):
            raise WireError(f"{used // bits:,} integers of {bits} bits take {_whole_bytes(used):,} bytes, got {len(packed):,}.")
        if used % 8 and packed[-1] >> used % 8:
            raise WireError(
                f"{used // bits:,} integers of {bits} bits leave {8 - used % 8} high bits of the last byte "
                f"unused, and those must be zero: the byte is {packed[-1]:#04x}."
            )
        made = object.__new__(cls)
        made._fill(packed, shape, bits, signed)
        return made

    def _fill(self, packed: bytes, shape: tuple[int, ...], bits: int, signed: bool) -> None:
        for name, value in {"bits": bits, "signed": bool(signed), "shape": shape, "packed": packed}.items():
            object.__setattr__(self, name, value)

    @property
    def values(self) -> Tensor:
        """The integers as a new int64 tensor of this shape, expanded at each access."""
        from sketchfed.kernels.bits import unpack_bits

        return unpack_bits(self.packed, elements(self.shape), self.bits, signed=self.signed).reshape(self.shape)


def describe(value: object) -> str:
    return f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__


def _whole_bytes(bits: int) -> int:
    return (bits + 7) // 8


def _check_width(bits: int) -> None:
    if type(bits) is not int or not 1 <= bits <= MAX_WIDTH:
        raise WireError(f"packed integers have 1 to {MAX_WIDTH} bits, got bits={bits!r}. Send wider ones as int64.")


def _advice(low: int, high: int, *, signed: bool) -> str:
    sign = signed or low < 0
    width = max((~end if end < 0 else end).bit_length() for end in (low, high)) + sign
    return f"Use bits={width}{', signed=True' if sign else ''}." if width <= MAX_WIDTH else "Send an int64 tensor."


def check_dense(name: str, array: Tensor) -> None:
    if array.is_nested or array.layout != torch.strided or array.device.type == "meta":
        raise WireError(
            f"array '{name}' is not a dense tensor with data: its layout is {array.layout}, its device "
            f"{array.device}. Send a dense one, or its indices and values as two arrays."
        )
    elements(tuple(array.shape))


def check_array(name: str, array: object) -> None:
    """Refuse what cannot be sent: unknown types, shapes beyond the format, NaN and infinity."""
    if isinstance(array, Bits):
        return
    if not isinstance(array, Tensor) or array.dtype not in CODES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES)
        raise WireError(
            f"array '{name}' is {describe(array)}; a packet carries tensors of {known}, and Bits. "
            "Convert it, or wrap other integers and booleans in Bits(values, bits=...)."
        )
    check_dense(name, array)
    if array.is_floating_point() and not _is_finite(array.detach()):
        raise WireError(
            f"array '{name}' holds NaN or infinity, which would spoil every sum it enters. "
            "Clip or drop the update before it is sent."
        )


def _is_finite(array: Tensor) -> bool:
    if array.dtype in (torch.float32, torch.float64) and array.is_contiguous() and not array.is_neg():
        from sketchfed.kernels.finite import all_finite  # here, because numba takes long to import

        return all_finite(array)
    ends = torch.aminmax(array) if array.numel() else ()
    return all(math.isfinite(end) for end in ends)  # one NaN makes both ends NaN


def to_raw(array: Tensor | Bits) -> memoryview:
    """An array's payload; without a copy where its memory is laid out like that already."""
    if isinstance(array, Bits):
        return memoryview(array.packed)
    size = array.dtype.itemsize
    carrier = array.detach().resolve_neg().cpu().contiguous().view(_CARRIER[size]).numpy()
    return carrier.astype(f"<i{size}", copy=False).reshape(-1).view(np.uint8).data


def from_raw(payload: memoryview, spec: Spec) -> Tensor | Bits:
    """The array of a payload of `spec.size` bytes, in memory of its own."""
    if spec.bits:
        return Bits.from_packed(bytes(payload), shape=spec.shape, bits=spec.bits, signed=spec.code == SIGNED)
    dtype = PLAIN[spec.code]
    carrier = np.frombuffer(payload, f"<i{dtype.itemsize}").astype(f"=i{dtype.itemsize}")
    return torch.from_numpy(carrier).view(dtype).reshape(spec.shape)
