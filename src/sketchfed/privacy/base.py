"""The common part of all mechanisms: the size of a vector, the bound on one unit's contribution, and checks of inputs."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import clipping
from sketchfed.seeds import PublicSeed, SecretSeed, SecretStream

LEAST_BITS, MOST_BITS = 8, 32
"""The number of bits that the integers of a secure sum may have."""
_MOST_SIZE = 2**31 - 1

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A sum of vectors and its noise. One unit, an example or a client, contributes a norm of at most `clip` to it.

    The vectors are what is sent: sketches, if there is a sketch. Clipping comes after sketching, because ‖Rx‖ can exceed ‖x‖.
    """

    size: int
    """The number of values in the vector."""
    clip: float
    """The largest L2 norm of one unit's vector. Longer vectors are scaled down to it."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    private: ClassVar[bool] = True
    """Whether the mechanism adds noise, so that an ε can be stated."""

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= _MOST_SIZE:
            raise InputError(f"a mechanism's size must be an integer from 1 to 2^31 - 1, got {self.size!r}.")
        if not positive(self.clip):
            raise InputError(
                f"a mechanism's clip must be a positive number, got {self.clip!r}: it bounds what one unit adds. Take "
                "about the median norm of the vectors that are sent."
            )

    def norms(self, rows: Tensor) -> Tensor:
        """The norms `(units,)` of rows `(units, size)` before clipping, in float64. They show how often `clip` is reached."""
        return torch.from_numpy(self._lengths(self._checked(rows)))

    def _checked(self, rows: Tensor) -> npt.NDArray[np.floating]:
        if rows.ndim != 2 or rows.shape[1] != self.size or rows.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"the mechanism was made for rows (units, {self.size}) of float32 or float64, got shape {tuple(rows.shape)} of "
                f"{rows.dtype}."
            )
        return rows.detach().cpu().contiguous().numpy()

    def _lengths(self, rows: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        lengths = np.empty(len(rows), np.float64)
        clipping.norms(rows, lengths)
        if not np.isfinite(lengths).all():
            raise InputError(
                f"row {int(np.argmin(np.isfinite(lengths)))} of those to be clipped holds NaN, infinity or numbers above "
                "1e150; no clipping makes them small. Find where training diverged (a smaller step?)."
            )
        return lengths


@dataclass(frozen=True, kw_only=True)
class Modular(Mechanism):
    """A mechanism whose vectors are integers modulo 2^bits, as secure sums need them.

    `clipped_sum` and `noised` run on a client. `recovered` runs on the server, with the sum of all clients. All derive what is
    public from `shared`, the round's seed. `clipped_sum` and `noised` may get the same secret, because each uses its own child
    of it.
    """

    @abstractmethod
    def clipped_sum(self, rows: Tensor, secret: SecretSeed, shared: PublicSeed) -> Tensor:
        """Clip and round each of the rows `(units, size)`, and add them up: `(size,)` of int64, not yet reduced."""

    @abstractmethod
    def noised(self, total: Tensor, secret: SecretSeed) -> Tensor:
        """The integers `(size,)` that a client sends: with its noise, from 0 to 2^bits − 1."""

    @abstractmethod
    def recovered(self, total: Tensor, shared: PublicSeed) -> Tensor:
        """The sum `(size,)` of all clients' vectors, in float32, from the sum of what they sent modulo 2^bits."""

    def _rounded_sum(self, rows: npt.NDArray[np.float64], most_square: float, tries: int, secret: SecretSeed) -> Integers:
        """Add up rows that are rounded at random without bias. Rows that are too long are drawn again, then rounded to zero."""
        total, pending = np.zeros(self.size, np.int64), np.ones(len(rows), np.bool_)
        stream, left, memory = SecretStream(secret), len(rows), np.empty(self.size, np.int64)
        for _ in range(tries):
            if left:
                left = clipping.add_rounded(rows, pending, stream.words(left * self.size), most_square, memory, total)
        clipping.add_truncated(rows, pending, total)
        return total

    def _reduced(self, values: Integers, bits: int) -> Integers:
        """Reduce any integers to the range from 0 to 2^bits − 1."""
        return values & np.int64((1 << bits) - 1)

    def _centred(self, total: Tensor, bits: int) -> Integers:
        """Convert integers from 0 to 2^bits − 1 to the range that starts at −2^(bits − 1)."""
        values = self._integers(total)
        if values.min() < 0 or values.max() >> bits:
            raise InputError(f"a sum modulo 2^{bits} has numbers from 0 to 2^{bits} - 1, got {values.min()} to {values.max()}.")
        half = np.int64(1 << bits - 1)
        return (values ^ half) - half

    def _integers(self, total: Tensor) -> Integers:
        if tuple(total.shape) != (self.size,) or total.dtype != torch.int64:
            raise InputError(f"expected {self.size:,} numbers of int64, got shape {tuple(total.shape)} of {total.dtype}.")
        return total.detach().cpu().contiguous().numpy()


def positive(value: object) -> bool:
    """Whether something is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {value!r}.")


def check_bits(bits: object) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not LEAST_BITS <= bits <= MOST_BITS:
        raise InputError(f"integers of a secure sum have {LEAST_BITS} to {MOST_BITS} bits, got bits = {bits!r}.")
