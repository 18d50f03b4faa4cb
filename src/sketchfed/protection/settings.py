"""The tables [privacy] and [secure] of a configuration."""

import math
from dataclasses import dataclass
from typing import Literal

from sketchfed.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """What is protected, against whom, and how much: a budget `epsilon` from which the noise follows, or the noise itself."""

    name: Literal["gaussian", "discrete_gaussian"] = "gaussian"
    """The mechanism. The discrete one is for secure sums."""
    unit: Literal["client", "example"] = "client"
    """Whose presence ε hides: all that a client has, or one example."""
    observer: Literal["server", "public"] = "server"
    """Against whom: the server too, or only those who see what it broadcasts; then the server is trusted with the noise."""
    placement: Literal["sent", "steps"] = "sent"
    """Noise on what is sent, or on the gradient of each local step, before it is encoded (Song et al. 2023, Alg. 2)."""
    batches: Literal["poisson", "passes"] = "poisson"
    """At example level: hidden batches, by which sampling amplifies, or passes, in which each example is used exactly once."""
    clip: float = 1.0
    """The longest that a unit's contribution may be: an example's gradient, or a client's change, after encoding."""
    epsilon: float | None = None
    """The budget: a run stops before the round that would exceed it."""
    delta: float = 1e-5
    """The probability with which ε may be exceeded; below 1 over the number of units."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise over `clip`; calibrated for `epsilon` and the rounds of the run if absent."""
    accountant: Literal["pld", "rdp"] = "pld"
    """Privacy loss distributions, which are tight, or Rényi divergences, by which discrete noise is accounted in any case."""
    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    """What neighbouring data are; if absent, 'add-remove' where nobody sees who took part, else 'zero-out'."""
    hidden_cohorts: bool = False
    """Each client takes part with probability `participation`, which only the server knows: then sampling amplifies."""
    insecure_noise_seed: int | None = None
    """Noise that anyone can draw again: for experiments that must be repeatable. It protects nobody."""

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf:
            raise InputError(f"privacy.clip is the norm that nothing may exceed, a positive number, got {self.clip}.")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise InputError(
                f"privacy.epsilon must be a positive number, got {self.epsilon}: at 0 nothing may be learnt, and less does not "
                "exist. From 1 to 10 is usual."
            )
        if not 0 < self.delta < 1:
            raise InputError(
                f"privacy.delta is a probability, above 0 and well below 1 over the number of units, got {self.delta}."
            )
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise InputError(
                f"privacy.noise_multiplier must be a positive number, got {self.noise_multiplier}. Without noise there is no "
                "privacy: leave [privacy] out."
            )
        if self.epsilon is None and self.noise_multiplier is None:
            raise InputError("[privacy] needs a budget, privacy.epsilon = 3 say, or the noise, privacy.noise_multiplier = 1.")
        if self.insecure_noise_seed is not None and not 0 <= self.insecure_noise_seed < 2**64:
            raise InputError(f"privacy.insecure_noise_seed must be from 0 to 2^64 - 1, got {self.insecure_noise_seed}.")


@dataclass(frozen=True, kw_only=True)
class SecureSettings:
    """Sums that the server cannot open: it learns the sum over the clients that stayed, and nothing of a single one."""

    aggregation: bool = True
    """Whether sums are secure; false is as if the table were not there."""
    survivors: float = 0.7
    """The share of a round's clients that must stay to its end, or the round is abandoned."""
    colluders: float = 0.0
    """The share of a round's clients that may work with the server: their noise counts for nothing."""
    neighbours: int | None = None
    """How many others each client shares masks with; if absent all of them, or as many as large rounds need."""
    bits: int | None = None
    """Of each integer that is summed, from 8 to 32; if absent, the fewest that do."""
    clip: float | None = None
    """The longest that a client's contribution may be, where no mechanism of [privacy] says it."""
    attempts: int = 3
    """How often a round is tried with other keys before the run gives up."""

    def __post_init__(self) -> None:
        if not 0.5 < self.survivors <= 1:
            raise InputError(
                f"secure.survivors is a share above 0.5 and at most 1, got {self.survivors}: with half or less the server "
                "could open one round as two."
            )
        if not 0 <= self.colluders < 0.5:
            raise InputError(f"secure.colluders is a share of the clients from 0 to below 0.5, got {self.colluders}.")
        if self.bits is not None and not 8 <= self.bits <= 32:
            raise InputError(f"secure.bits must be from 8 to 32, got {self.bits}.")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"secure.clip must be a positive number, got {self.clip}.")
        for name in ("neighbours", "attempts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"secure.{name} must be at least 1, got {value}.")

    def least(self, cohort: int) -> int:
        """How many of a round's clients must stay."""
        return max(1, math.ceil(self.survivors * cohort - 1e-9))

    def honest(self, survivors: int, cohort: int) -> int:
        """How many of the survivors surely keep their noise to themselves."""
        return max(1, survivors - math.floor(self.colluders * cohort + 1e-9))
