"""Integers of `bits` bits each, end to end with no gap: the loops under `sketchfed.wire.Bits`.

Value `i` takes bits `i * bits` to `(i + 1) * bits` of a little-endian bit string, negative numbers in two's complement.
Packed integers are bytes and bytes live on the CPU, so there is no torch twin.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.kernels.jit import kernel

_WORD = np.uint64(64)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@kernel
def _pack(values: npt.NDArray[np.integer], words: npt.NDArray[np.uint64], bits: np.uint64) -> None:
    mask = (_ONE << bits) - _ONE
    word, filled, place = _ZERO, _ZERO, 0
    for index in range(values.size):
        value = np.uint64(values[index]) & mask
        word |= value << filled
        filled += bits
        if filled >= _WORD:
            words[place] = word
            place += 1
            filled -= _WORD
            word = value >> (bits - filled)  # what did not fit; nothing when filled is 0, since value < 2^bits
    if filled:
        words[place] = word


@kernel
def _unpack(
    words: npt.NDArray[np.uint64], tail: np.uint64, values: npt.NDArray[np.int64], bits: np.uint64, sign: np.uint64
) -> None:
    mask = (_ONE << bits) - _ONE
    rest, held, place = _ZERO, _ZERO, 0
    for index in range(values.size):
        if held < bits:
            word = words[place] if place < words.size else tail
            place += 1
            value = (rest | (word << held)) & mask
            rest = word >> (bits - held)
            held += _WORD - bits
        else:
            value = rest & mask
            rest >>= bits
            held -= bits
        values[index] = np.int64((value ^ sign) - sign)  # extends the sign; sign is 0 for unsigned values


def pack_bits(values: Tensor, bits: int) -> bytes:
    """The low `bits` (1 to 63) bits of every value of an integer tensor, row by row; zeros fill up the last byte."""
    flat = values.detach().cpu().contiguous().reshape(-1)
    total = flat.numel() * bits
    words = np.empty((total + 63) // 64, np.uint64)
    _pack(flat.numpy(), words, np.uint64(bits))
    return words.astype("<u8", copy=False).view(np.uint8)[: (total + 7) // 8].tobytes()


def unpack_bits(packed: bytes, count: int, bits: int, *, signed: bool) -> Tensor:
    """The first `count` integers of `bits` (1 to 63) bits, as a flat int64 tensor."""
    words = np.frombuffer(packed, "<u8", count=len(packed) // 8).astype(np.uint64, copy=False)
    tail = np.uint64(int.from_bytes(packed[8 * words.size :], "little"))
    values = np.empty(count, np.int64)
    _unpack(words, tail, values, np.uint64(bits), np.uint64(signed << (bits - 1)))
    return torch.from_numpy(values)
