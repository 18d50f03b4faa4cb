"""Stochastic rounding relative to the norm of the vector."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.codecs.quantiser import (
    Floats,
    Quantiser,
    check_bits,
    rounded_up,
    scales_named,
    to_bits,
    to_codes,
)
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError, WireError
from sketchfed.kernels import levels, philox
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, bits_named


@dataclass(frozen=True, kw_only=True)
class Qsgd(Quantiser):
    """Sends each number as norm·level/s, where the level is rounded at random and lies from −s to s, s = 2^(bits−1) − 1.

    Paper: Alistarh et al. 2017, Sec. 3.1 and 4. Each bucket of `bucket` numbers has its own norm; None puts all numbers into
    one bucket. Unbiased. The random numbers for rounding come from the client's public stream, so that a run can be repeated.
    The receiver does not need them. Departure from the paper: numbers have a fixed width instead of Elias coding.
    """

    bits: int = 4
    bucket: int | None = 512

    blind = True
    name = "qsgd"
    summary = "levels between 0 and the norm, rounded at random"
    source = "Alistarh et al. 2017"
    unbiased = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self, self.bits, least=2, most=16)
        if self.bucket is not None and (type(self.bucket) is not int or self.bucket < 1):
            raise InputError(
                f"bucket must be a positive number of coordinates, got {self.bucket!r}. None puts all of them into one bucket."
            )

    @property
    def levels(self) -> int:
        """s, the number of levels above 0."""
        return (1 << self.bits - 1) - 1

    @property
    def shrinkage(self) -> float:
        """1/(1 + ω) with ω ≤ min(n/s², √n/s) for n numbers in a bucket (Alistarh et al. 2017, Lemma 3.1).

        Sending only `size` coordinates multiplies 1 + ω by dim/size.
        """
        width = self._width
        variance = min(width / self.levels**2, math.sqrt(width) / self.levels)
        return 1 / (self.gain * (1 + variance))

    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        norms = scales_named(packet, "norms", -(-self.sent // self._width))
        codes = bits_named(packet, "values", shape=(self.sent,), bits=self.bits).numpy()
        if codes.max() > 2 * self.levels:
            raise WireError(
                f"packet '{packet.kind}' holds level {codes.max() - self.levels}, but the highest level is {self.levels}."
            )
        return np.repeat(norms / np.float32(self.levels), self._width)[: self.sent] * (codes - self.levels).astype(np.float32)

    @property
    def _width(self) -> int:
        return self.sent if self.bucket is None else min(self.bucket, self.sent)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        numbers = self._drawn(x, seed, client)
        squares = np.add.reduceat(numbers.astype(np.float64) ** 2, np.arange(0, self.sent, self._width))
        norms = rounded_up(np.sqrt(squares))
        words = philox.words(seed.child("client", client).child("rounding").stream, self.sent)
        codes = to_codes(self.sent, self.bits)
        levels.stochastic(numbers, norms, self._width, self.levels, words, codes)
        return Parts({"norms": torch.from_numpy(norms), "values": to_bits(codes, self.bits)}, {})
