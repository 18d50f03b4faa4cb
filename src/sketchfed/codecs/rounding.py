"""Few bits a number without bias: stochastic rounding whose dither the receiver subtracts.

Levels lie `step` apart, and each value is moved by a dither u, uniform on (−step/2, step/2), before it is rounded to the
nearest level. u comes from a public stream, so the receiver draws it too and subtracts it. What is left of the
rounding, `round(x + u) − u − x`, is uniform on (−step/2, step/2) whatever x is (Schuchman 1964): unbiased, with
variance step²/12 — stochastic rounding without the subtraction has step²/6 on average and step²/4 at worst. The
levels reach as far as the largest value, so nothing is clipped.
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
"""Bits a number may have; 32 is float32 as it is."""


class Parts(NamedTuple):
    """What a packet carries for some numbers: one array, and the distance of levels if there are levels."""

    arrays: dict[str, Tensor | Bits]
    scalars: dict[str, float]


def check_width(bits: int) -> None:
    if bits not in WIDTHS:
        raise InputError(f"numbers are sent with {', '.join(map(str, WIDTHS[:-1]))} or 1 bits, got bits = {bits!r}.")


def to_parts(values: Tensor, *, bits: int, seed: PublicSeed) -> Parts:
    """Numbers `(n,)` as a packet carries them; `seed` names the dither's stream and must not be used twice."""
    check_width(bits)
    if bits == 32:
        return Parts({"values": values.to(torch.float32)}, {})
    x = values.detach().cpu().numpy().astype(np.float64)
    # The step is rounded up to float32, which both sides then compute with: so no value leaves the outer levels.
    with np.errstate(over="ignore"):
        step = float(np.nextafter(np.float32(2 * np.abs(x).max(initial=0.0) / _spans(bits)), np.float32(np.inf)))
    if not step <= _largest_step(bits):  # also where it is NaN
        raise InputError(
            f"numbers to be rounded to {bits} bits must be finite and at most {_largest_step(bits) / 2 * _spans(bits):.2g}; "
            "this update holds NaN, infinity or larger ones. Find where training diverged (a smaller step?)."
        )
    codes = np.floor(x / step + _dither(seed, len(x)) + 0.5 * 2**bits).astype(np.int64)
    return Parts({"values": Bits(torch.from_numpy(codes.clip(0, 2**bits - 1)), bits=bits)}, {"step": step})


def from_packet(packet: Packet, *, size: int, bits: int, seed: PublicSeed) -> Tensor:
    """The numbers `(size,)` of a packet, float32; E over the dither is what was sent."""
    if bits == 32:
        return tensor_named(packet, "values", shape=(size,))
    codes = bits_named(packet, "values", shape=(size,), bits=bits).numpy()
    step = number_named(packet, "step", least=0.0, most=_largest_step(bits))
    values = step * (codes + (0.5 - 0.5 * 2**bits) - _dither(seed, size))
    return torch.from_numpy(values.astype(np.float32))


def relative_variance(*, size: int, bits: int) -> float:
    """About E‖rounded − x‖²/‖x‖² for `size` normal numbers, whose largest square is some 1 + 2·ln(size) times the mean one.

    step²/12 is max²/(3·spans²). Numbers with wilder outliers lose more, at most size/(3·spans²).
    """
    return 0.0 if bits == 32 else (1 + 2 * math.log(size)) / (3 * _spans(bits) ** 2)


def _spans(bits: int) -> int:
    """How many steps lie between the outer levels; two levels of one bit are one step apart."""
    return (1 << bits) - 1


def _largest_step(bits: int) -> float:
    """With this distance of levels no number can overflow float32 where it is read."""
    return float(torch.finfo(torch.float32).max / 2**bits)


def _dither(seed: PublicSeed, count: int) -> npt.NDArray[np.float64]:
    """Uniform on (−½, ½), in steps."""
    return (philox.words(seed.child("dither").stream, count)[:count].astype(np.float64) + 0.5) * 2.0**-32 - 0.5
