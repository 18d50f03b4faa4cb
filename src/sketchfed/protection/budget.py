"""The privacy budget of a run, and the privacy cost of one round."""

from dataclasses import dataclass, replace
from typing import Self

from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.protection.passes import Passes
from sketchfed.protection.settings import PrivacySettings


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The privacy budget of a run: what ε refers to, how much may be spent, and what a round costs."""

    settings: PrivacySettings
    """The table [privacy] with the adjacency and the noise multiplier filled in."""
    claim: Claim
    multiplier: float
    """The standard deviation of the noise divided by the clip norm."""
    sampling: float
    """The probability that a unit is part of a sum, if observers cannot see which units are. Otherwise 1."""
    releases: int
    """The number of noisy sums that one client releases in a round."""
    passes: Passes | None = None
    """Which examples each client uses in each round, if each example is used once per pass. None if batches are hidden."""

    def unseeded(self) -> Self:
        """The same budget without a fixed noise seed."""
        return replace(self, settings=replace(self.settings, insecure_noise_seed=None))

    def charge(self, honest: int = 1) -> Charge:
        """The cost of a round for each unit in it. `honest` is the number of clients whose noise nobody else knows."""
        return Charge(multiplier=self.multiplier, sampling=self.sampling, steps=self.releases)


@dataclass(frozen=True, kw_only=True)
class SharedBudget(Budget):
    """The budget for secure sums in which every client adds a share of the noise."""

    mechanism: DiscreteGaussian

    def charge(self, honest: int = 1) -> Charge:
        return self.mechanism.charge(honest, sampling=self.sampling, steps=self.releases)
