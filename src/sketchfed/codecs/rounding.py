"""Rounding to few bits without bias: the sender adds a random dither, and the receiver subtracts it.

The levels are `step` apart. A dither u, uniform on (−step/2, step/2), is added to each value before it is rounded to the
nearest level. u comes from a public stream, so the receiver can draw it too and subtract it. The rounding error
`round(x + u) − u − x` is uniform on (−step/2, step/2) for every x (Schuchman 1964). It is unbiased with variance
step²/12. Stochastic rounding without the subtraction has variance step²/6 on average and step²/4 in the worst case. The
levels extend to the largest value, so nothing is clipped.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import philox
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet, bits_named, number_named, tensor_named

WIDTHS = (32, 16, 8, 4, 3, 2, 1)
"""The allowed numbers of bits per number. 32 means unrounded float32."""


class Parts(NamedTuple):
    """The contents of a packet: its arrays, and its scalars, such as the step between levels if the numbers are rounded."""

    arrays: dict[str, Tensor | Bits]
    scalars: dict[str, float]


def check_width(bits: int) -> None:
    if bits not in WIDTHS:
        raise InputError(f"numbers are sent with {', '.join(map(str, WIDTHS[:-1]))} or 1 bits, got bits = {bits!r}.")


def to_parts(values: Tensor, *, bits: int, seed: PublicSeed) -> Parts:
    """Convert numbers `(n,)` to the contents of a packet. `seed` names the dither's stream; never use it twice."""
    check_width(bits)
    if bits == 32:
        return Parts({"values": values.to(torch.float32)}, {})
    codes, step = to_codes(values, bits=bits, seed=seed)
    return Parts({"values": Bits(codes, bits=bits)}, {"step": step})


def from_packet(packet: Packet, *, size: int, bits: int, seed: PublicSeed) -> Tensor:
    """Read the float32 numbers `(size,)` of a packet. Their expectation over the dither is the numbers before rounding."""
    if bits == 32:
        return tensor_named(packet, "values", shape=(size,))
    codes = bits_named(packet, "values", shape=(size,), bits=bits)
    return from_codes(codes, number_named(packet, "step", least=0.0, most=largest_step(bits)), bits=bits, seed=seed)


def to_codes(values: Tensor, *, bits: int, seed: PublicSeed) -> tuple[Tensor, float]:
    """Round numbers `(n,)` to levels, numbered from 0. Return the levels and the step between them, which float32 holds."""
    x = values.detach().cpu().numpy().astype(np.float64)
    # The step is rounded up to float32 and both sides compute with that, so no value lies outside the outer levels.
    with np.errstate(over="ignore"):
        step = float(np.nextafter(np.float32(2 * np.abs(x).max(initial=0.0) / _spans(bits)), np.float32(np.inf)))
    if not step <= largest_step(bits):  # also true if the step is NaN
        raise InputError(
            f"numbers to be rounded to {bits} bits must be finite and at most {largest_step(bits) / 2 * _spans(bits):.2g}; "
            "this update holds NaN, infinity or larger numbers. Find where training diverged; a smaller step may help."
        )
    codes = np.floor(x / step + _dither(seed, len(x)) + 0.5 * 2**bits).astype(np.int64)
    return torch.from_numpy(codes.clip(0, 2**bits - 1)), step


def from_codes(codes: Tensor, step: float, *, bits: int, seed: PublicSeed) -> Tensor:
    """The float32 numbers `(n,)` that stand for levels, `step` apart."""
    values = step * (codes.numpy() + (0.5 - 0.5 * 2**bits) - _dither(seed, len(codes)))
    return torch.from_numpy(values.astype(np.float32))


def relative_variance(*, size: int, bits: int) -> float:
    """Approximately E‖rounded − x‖²/‖x‖² for `size` normal numbers.

    The largest square of normal numbers is about 1 + 2·ln(size) times their mean square, and step²/12 is max²/(3·spans²).
    Numbers with larger outliers lose more, but at most size/(3·spans²).
    """
    return 0.0 if bits == 32 else (1 + 2 * math.log(size)) / (3 * _spans(bits) ** 2)


def _spans(bits: int) -> int:
    """The number of steps between the outer levels. With one bit, there are two levels, one step apart."""
    return (1 << bits) - 1


def largest_step(bits: int) -> float:
    """The largest step with which no number can overflow float32 when it is read."""
    return float(torch.finfo(torch.float32).max / 2**bits)


def _dither(seed: PublicSeed, count: int) -> npt.NDArray[np.float64]:
    """Uniform numbers on (−½, ½), in units of the step."""
    return (philox.words(seed.child("dither").stream, count)[:count].astype(np.float64) + 0.5) * 2.0**-32 - 0.5
