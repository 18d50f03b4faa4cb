"""Integers for sums that nobody can open, without noise."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import clipping
from sketchfed.privacy.base import MOST_BITS, Modular, check_bits, check_count
from sketchfed.seeds import PublicSeed, SecretSeed


@dataclass(frozen=True, kw_only=True)
class Rounded(Modular):
    """Clipped vectors as integers so fine that the sum of all clients never wraps around. It has no noise, so no ε.

    The server learns the sum, and nothing about single clients beyond it. Rounding goes up or down at random, without
    bias; the error of each number of the sum has a variance of at most clients·units/(4·scale²).
    """

    clients: int
    """The most that take part in a sum."""
    units: int = 1
    """The most vectors that one client adds up."""
    bits: int = 32

    name = "rounded"
    summary = "integers for secure sums, without noise and without a claim of privacy"
    source = "–"
    private = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        check_count("clients", self.clients)
        check_count("units", self.units)
        if self.scale * self.clip < 1:
            enough = (4 * self.clients * self.units).bit_length()
            raise InputError(
                f"{self.bits} bits leave less than one integer step for each of {self.clients:,} clients with {self.units:,} "
                "vectors. " + (f"Take bits = {enough}." if enough <= MOST_BITS else "Take fewer in one sum.")
            )

    @property
    def scale(self) -> float:
        """Integer steps per unit of the vector: a number of a clipped vector is at most scale·clip + 1 after rounding."""
        return (((1 << self.bits - 1) - 1) / (self.clients * self.units) - 1) / self.clip * (1 - 2.0**-40)

    def clipped_sum(self, rows: Tensor, secret: SecretSeed, shared: PublicSeed) -> Tensor:
        """Rows `(units, size)`, each clipped, scaled and rounded, added up: `(size,)` of int64."""
        values = self._checked(rows)
        if len(values) > self.units:
            raise InputError(
                f"got {len(values):,} rows, but the scale was chosen for {self.units:,} of a client: the sum could wrap "
                f"around. Make the mechanism with units = {len(values)}."
            )
        scaled = np.empty(values.shape, np.float64)
        clipping.scale_clipped(values, self._lengths(values), float(self.clip), self.scale, scaled)
        return torch.from_numpy(self._rounded_sum(scaled, np.inf, 1, secret.child("rounding")))

    def noised(self, total: Tensor, secret: SecretSeed) -> Tensor:
        """A client's integers `(size,)` from 0 to 2^bits − 1, without noise."""
        return torch.from_numpy(self._reduced(self._integers(total), self.bits))

    def recovered(self, total: Tensor, shared: PublicSeed) -> Tensor:
        """The sum `(size,)` of all clients' vectors, float32, from the sum of what they sent modulo 2^bits."""
        return torch.from_numpy((self._centred(total, self.bits) / self.scale).astype(np.float32))
