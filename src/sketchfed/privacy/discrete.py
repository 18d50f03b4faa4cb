"""Discrete Gaussian noise in shares, for sums that nobody can open."""

import logging
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import clipping
from sketchfed.privacy.base import LEAST_BITS, MOST_BITS, Modular, check_bits, check_count, positive
from sketchfed.privacy.claims import Charge
from sketchfed.privacy.counted import MOST_SQUARE
from sketchfed.privacy.flattening import Flattening
from sketchfed.privacy.sampling import MOST_DEVIATION, discrete_gaussian, variance_above
from sketchfed.seeds import PublicSeed, SecretSeed

log = logging.getLogger("sketchfed")

_LEAST_DEVIATION = 0.5  # below, a sum of shares is not close to one discrete Gaussian
_ROUNDING_TRIES = 64
_ROOM = 2.0**-30  # relative, for the rounding errors of a sum of squares in float64
_WRAP_ODDS = 1e-3
_MOST_INFLATION, _FINE_DEVIATION, _FINE_SUM = 1.01, 3.0, 10.0
_LEAST_NEAR, _NEAR = 2.0, 10.0  # integer steps of a share, and of a sum for which no outcomes are counted


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(Modular):
    """Clipped, flattened, scaled to integers and rounded vectors, to each client's sum of which a share of the noise is added.

    Paper: Kairouz, Liu & Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation", Alg. 1 and 2. Rounding goes up or down at random, without bias, and again if the result is longer than
    `sensitivity`: the bound holds for every row, not on average. Then each client adds discrete Gaussian noise of standard
    deviation `deviation` to every number and reduces modulo 2^bits. The sum of n shares is nearly a discrete Gaussian
    of √n times that deviation (`slack` says how nearly). Reducing comes after the noise, so wrap-around costs accuracy and no
    privacy. Departs from the paper: `Flattening` instead of a padded Hadamard transform; 64 failed roundings, whose
    probability is below rounding_failure^64, are followed by one towards zero.
    """

    deviation: float
    """Of each client's share, in integer steps."""
    scale: float
    """Integer steps per unit of the vector, 1/γ in the paper."""
    bits: int
    rounding_failure: float = math.exp(-0.5)
    """β: a rounding may be rejected with this probability at most, and less of it means a larger sensitivity."""

    name = "discrete_gaussian"
    summary = "integers for secure sums, with a share of discrete Gaussian noise from each client"
    source = "Kairouz, Liu & Steinke 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self.bits)
        if not positive(self.scale):
            raise InputError(f"the scale is a positive number of integer steps per unit, got {self.scale!r}.")
        if not positive(self.deviation) or not _LEAST_DEVIATION <= self.deviation <= MOST_DEVIATION:
            raise InputError(
                f"a share of discrete noise has a deviation from {_LEAST_DEVIATION:g} to 2^30 integer steps, got "
                f"{self.deviation!r}. DiscreteGaussian.planned chooses scale and deviation together."
            )
        if not isinstance(self.rounding_failure, int | float) or not 0 <= self.rounding_failure < 1:
            raise InputError(f"rounding_failure is a probability below 1, got {self.rounding_failure!r}.")

    @classmethod
    def planned(
        cls,
        *,
        size: int,
        clip: float,
        multiplier: float,
        clients: int,
        least: int,
        units: int = 1,
        bits: int | None = None,
    ) -> Self:
        """The mechanism whose noise, summed over `least` survivors, is `multiplier` times the sensitivity after rounding.

        At most `clients` take part, and one client adds up at most `units` clipped vectors. The scale is the largest at which
        some number of the sum wraps around with probability 0.001 at most, even if all vectors point in one direction
        (`wrap_odds`). Bits are the fewest with which rounding makes the sensitivity less than 1 % larger, a share of the
        noise has a deviation of 3 integer steps or more, and the noise of `least` survivors together one of 10 or more; fewer
        are refused. With less, ε could be charged more than 2 % above the truth.
        """
        for name, value in (("size", size), ("clients", clients), ("least", least), ("units", units)):
            check_count(name, value)
        if not positive(clip) or not positive(multiplier):
            raise InputError(
                f"clip and multiplier must be positive numbers, got {clip!r} and {multiplier!r}. Without noise use Rounded."
            )
        if least > clients:
            raise InputError(f"least = {least} survivors of clients = {clients} cannot be. Use least <= {clients}.")
        if bits is not None:
            check_bits(bits)
        for enough in range(LEAST_BITS, MOST_BITS + 1):
            made = cls._filling(enough, size, clip, multiplier, clients, least, units)
            if made is not None and made._fine(least):
                break
        else:
            raise InputError(
                f"{MOST_BITS} bits do not hold the sum of {clients:,} clients with {units:,} vectors of {size:,} numbers each "
                f"and noise of {multiplier:g} times the clip. Take fewer clients or units in one sum."
            )
        if bits is None or bits == enough:
            return made
        chosen = cls._filling(bits, size, clip, multiplier, clients, least, units) if bits > enough else None
        if chosen is None:
            raise InputError(
                f"bits = {bits} are too few for {clients:,} clients with {units:,} vectors of {size:,} numbers each and noise "
                f"of {multiplier:g} times the clip: the sum would wrap around, or rounding would outweigh the vectors. "
                f"Take bits = {enough}."
            )
        return chosen

    @classmethod
    def _filling(
        cls, bits: int, size: int, clip: float, multiplier: float, clients: int, least: int, units: int
    ) -> Self | None:
        """The mechanism with the largest scale that fits into these bits, or None if none fits."""

        def deviation(steps: float) -> float:
            """The deviation for a clip of `steps` integer steps, slightly larger than needed because of rounding."""
            return multiplier * _sensitivity(steps, size, cls.rounding_failure) / math.sqrt(least) * (1 + 1e-12)

        def fits(steps: float) -> bool:
            noise = deviation(steps)
            odds = _wrap_odds(bits, size, clients * units * steps, clients * (noise**2 + units / 4))
            return noise <= MOST_DEVIATION and odds <= _WRAP_ODDS

        low, high = 1e-3, 2.0**bits * math.sqrt(size)
        if not fits(low):
            return None
        while high / low > 1 + 1e-12:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        if deviation(low) < _LEAST_DEVIATION:
            return None
        return cls(size=size, clip=clip, deviation=deviation(low), scale=low / clip, bits=bits)

    def _fine(self, least: int) -> bool:
        """Whether rounding and integer noise cost next to nothing."""
        noise = self.deviation >= _FINE_DEVIATION and math.sqrt(least) * self.deviation >= _FINE_SUM
        return noise and self.inflation < _MOST_INFLATION

    @property
    def sensitivity(self) -> float:
        """Δ₂: the longest that one unit's vector can be after rounding, in integer steps.

        Kairouz, Liu & Steinke 2021, Thm 1: with c = scale·clip and β = rounding_failure, the least of c + √size and
        √(c² + size/4 + √(2·ln(1/β))·(c + √size/2)).
        """
        return _sensitivity(self.scale * self.clip, self.size, self.rounding_failure)

    @property
    def inflation(self) -> float:
        """How much longer than `clip` a vector may be after rounding, as a factor: what rounding costs in noise."""
        return self.sensitivity / (self.scale * self.clip)

    def multiplier(self, survivors: int) -> float:
        """The noise of this many clients together, in units of what one unit can add."""
        check_count("survivors", survivors)
        return math.sqrt(survivors) * self.deviation / self.sensitivity

    def slack(self, survivors: int) -> float:
        """How far, at most, the log-probabilities of the survivors' noise together are from those of one discrete Gaussian.

        size·τ with τ = 10·Σ exp(−2π²σ²·k/(k + 1)) over k from 1 to survivors − 1 (Kairouz, Liu & Steinke 2021, Thm 1); its
        variance is survivors·deviation². Beyond 3 integer steps it is below 1e-37·size·survivors.
        """
        check_count("survivors", survivors)
        k = np.arange(1, survivors, dtype=np.float64)
        return self.size * 10 * float(np.exp(-2 * (math.pi * self.deviation) ** 2 * k / (k + 1)).sum())

    def charge(self, survivors: int, *, sampling: float = 1.0, steps: int = 1) -> Charge:
        """What `steps` releases of sums with the noise of this many clients cost one unit.

        A warning says if the noise is so coarse that ε may be more than 2 % above the truth. What is planned is not.
        """
        multiplier, whole = self.multiplier(survivors), math.sqrt(survivors) * self.deviation
        if self.deviation < _LEAST_NEAR or (whole < _NEAR and self.sensitivity**2 > MOST_SQUARE):
            log.warning(
                "a sum with noise of %.3g integer steps, %.3g in each share, is charged for a sensitivity of %.3g steps: the "
                "noise is so coarse that ε may be more than 2 %% above the truth. Use DiscreteGaussian.planned, or raise "
                "scale and deviation together.",
                whole,
                self.deviation,
                self.sensitivity,
            )
        return Charge(
            multiplier=multiplier,
            sampling=sampling,
            steps=steps,
            discrete=True,
            slack=self.slack(survivors),
            deviation=whole,
            size=self.size,
        )

    def wrap_odds(self, *, clients: int, units: int = 1) -> float:
        """An upper bound on the probability that any number in the sum of `clients` clients wraps around.

        It holds even if all their vectors point in one direction: each number of the flattened sum, its rounding errors and the
        noise are sub-Gaussian, and their variances add up. (That long rounded rows are drawn again is neglected.)
        """
        check_count("clients", clients)
        check_count("units", units)
        reach = clients * units * self.scale * self.clip
        return _wrap_odds(self.bits, self.size, reach, clients * (self.deviation**2 + units / 4))

    def variance(self, *, clients: int, units: int = 1) -> float:
        """Of each number of a recovered sum, at most: the noise of all clients and their rounding, in the vector's units."""
        return clients * (self.deviation**2 + units / 4) / self.scale**2

    def clipped_sum(self, rows: Tensor, secret: SecretSeed, shared: PublicSeed) -> Tensor:
        """Rows `(units, size)`, each clipped, flattened, scaled and rounded, added up: `(size,)` of int64."""
        values = self._checked(rows)
        scaled = np.empty(values.shape, np.float64)
        clipping.scale_clipped(values, self._lengths(values), float(self.clip), float(self.scale), scaled)
        self._flattening(shared).apply_(scaled)
        longest = _rounded_norm(self.scale * self.clip, self.size, self.rounding_failure)
        return torch.from_numpy(self._rounded_sum(scaled, longest**2 * (1 + _ROOM), _ROUNDING_TRIES, secret.child("rounding")))

    def noised(self, total: Tensor, secret: SecretSeed) -> Tensor:
        """A client's integers `(size,)` with its share of the noise, from 0 to 2^bits − 1. Never use a secret twice."""
        noise = discrete_gaussian(secret.child("noise"), self.size, variance=variance_above(self.deviation))
        return torch.from_numpy(self._reduced(self._integers(total) + noise, self.bits))

    def recovered(self, total: Tensor, shared: PublicSeed) -> Tensor:
        """The sum `(size,)` of all clients' vectors, float32, from the sum of what they sent modulo 2^bits."""
        values = self._centred(total, self.bits).astype(np.float64) / self.scale
        self._flattening(shared).invert_(values)
        return torch.from_numpy(values.astype(np.float32))

    def _flattening(self, shared: PublicSeed) -> Flattening:
        return Flattening(size=self.size, seed=shared.child("flatten"))


def _rounded_norm(steps: float, size: int, failure: float) -> float:
    always = steps + math.sqrt(size)
    if failure == 0:
        return always
    mostly = steps**2 + size / 4 + math.sqrt(2 * math.log(1 / failure)) * (steps + math.sqrt(size) / 2)
    return min(always, math.sqrt(mostly))


def _sensitivity(steps: float, size: int, failure: float) -> float:
    """`_rounded_norm`, and room for the rounding errors of the comparison with it."""
    return _rounded_norm(steps, size, failure) * (1 + _ROOM)


def _wrap_odds(bits: int, size: int, reach: float, variance: float) -> float:
    """The union bound over all numbers of a sum of norm `reach` before noise of that variance."""
    spread = reach**2 / Flattening(size=size, seed=PublicSeed(0)).width + variance
    return min(1.0, 2 * size * math.exp(-(4.0 ** (bits - 1)) / (2 * spread)))
