"""The tables [privacy] and [secure] of a configuration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sketchfed.errors import InputError
from sketchfed.privacy import MECHANISMS, DiscreteGaussian, GaussianNoise
from sketchfed.secure import Terms, planned_terms
from sketchfed.secure.planning import most_met

_ODDS = 2.0**-40
_MOST_ATTEMPTS = 20
"""Clients compare what a server proposes with the terms of each attempt, and each has a ring of its own."""


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """The table [privacy]: what is protected, against whom, and how much.

    The amount is either a budget `epsilon`, from which the noise is calibrated, or the noise itself.
    """

    name: str = "gaussian"
    """The mechanism: `gaussian`, `discrete_gaussian` for secure sums, or a subclass of `GaussianNoise` of your own."""
    unit: Literal["client", "example"] = "client"
    """The unit whose presence ε hides: all data of a client, or a single example."""
    observer: Literal["server", "public", "neighbours"] = "server"
    """Whom the noise protects against: everyone including the server, or only observers of the server's broadcasts. In the
    second case, a trusted server adds the noise. With [graph] it is `neighbours`: everyone who sees what nodes say."""
    placement: Literal["sent", "steps"] = "sent"
    """Where noise is added: on what is sent, or on the gradient of each local step before encoding (Song et al. 2023,
    Alg. 2)."""
    batches: Literal["poisson", "passes"] = "poisson"
    """At example level: hidden batches, whose sampling amplifies privacy, or passes, in which each example is used exactly
    once."""
    clip: float = 1.0
    """The largest norm of a unit's contribution: an example's gradient, or a client's change, after encoding."""
    epsilon: float | None = None
    """The privacy budget. A run stops before the round that would exceed it."""
    delta: float = 1e-5
    """The probability with which ε may be exceeded. It must be below 1 over the number of units."""
    noise_multiplier: float | None = None
    """The standard deviation of the noise divided by `clip`. If absent, it is calibrated for `epsilon` and the number of
    rounds."""
    accountant: Literal["pld", "rdp"] = "pld"
    """Privacy loss distributions, which are tight, or Rényi divergences, which are 5 to 30 % looser."""
    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    """The definition of neighbouring data. If absent, 'add-remove' when nobody sees who took part, else 'zero-out'."""
    hidden_cohorts: bool = False
    """Whether each client takes part with probability `participation`, and only the server knows who does. Sampling then
    amplifies privacy."""
    insecure_noise_seed: int | None = None
    """A seed for noise that anyone can reproduce, for experiments that must be repeatable. Such noise protects nobody."""

    def __post_init__(self) -> None:
        self._check_mechanism()
        if not 0 < self.clip < math.inf:
            raise InputError(f"privacy.clip is the largest allowed norm, so it must be a positive number, got {self.clip}.")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise InputError(
                f"privacy.epsilon must be a positive number, got {self.epsilon}: with ε = 0 a run could learn nothing. Values "
                "from 1 to 10 are usual."
            )
        if not 0 < self.delta < 1:
            raise InputError(
                "privacy.delta is a probability. It must be above 0 and well below 1 over the number of units, got "
                f"{self.delta}."
            )
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise InputError(
                f"privacy.noise_multiplier must be a positive number, got {self.noise_multiplier}. Without noise there is no "
                "privacy: leave [privacy] out."
            )
        if self.noise_multiplier is None:
            self.needed_epsilon()
        if self.insecure_noise_seed is not None and not 0 <= self.insecure_noise_seed < 2**64:
            raise InputError(f"privacy.insecure_noise_seed must be from 0 to 2^64 - 1, got {self.insecure_noise_seed}.")

    def needed_epsilon(self) -> float:
        """The ε from which the noise follows. It is needed if no noise level is given."""
        if self.epsilon is None:
            raise InputError(
                "[privacy] needs a budget, such as privacy.epsilon = 3, or a noise level, such as privacy.noise_multiplier = 1."
            )
        return self.epsilon

    @property
    def discrete(self) -> bool:
        """Whether the noise consists of integers, for secure sums."""
        return MECHANISMS[self.name] is DiscreteGaussian

    def noise(self, size: int, multiplier: float) -> GaussianNoise:
        """Real-valued noise on a sum of `size` numbers, with `multiplier` times `clip` as its standard deviation."""
        kind = MECHANISMS[self.name]
        if not issubclass(kind, GaussianNoise):
            raise InputError(
                f"privacy.name = '{self.name}' has no real-valued noise: it adds integers to secure sums. Use 'gaussian'."
            )
        return kind(size=size, clip=self.clip, deviation=multiplier * self.clip)

    def _check_mechanism(self) -> None:
        """Refuse noise whose cost the accountant does not know, because no ε could be stated for it."""
        kind = MECHANISMS[self.name]
        if kind.private and (kind is DiscreteGaussian or issubclass(kind, GaussianNoise)):
            return
        if not kind.private:
            raise InputError(
                f"privacy.name = '{self.name}' adds no noise, so no ε holds. Use 'gaussian', or leave [privacy] out."
            )
        raise InputError(
            f"privacy.name = '{self.name}' cannot be accounted for: the accountant knows only the cost of normal noise, and of "
            f"the discrete Gaussian noise that sketchfed adds to secure sums. Derive {kind.__qualname__} from "
            "sketchfed.privacy.GaussianNoise if its noise is normal and one unit adds at most `clip`, or use 'gaussian'."
        )


@dataclass(frozen=True, kw_only=True)
class SecureSettings:
    """The table [secure]: secure sums. The server learns only the total over the clients that stayed, and no single reply."""

    aggregation: bool = True
    """Whether sums are secure. False has the same effect as leaving the table out."""
    survivors: float = 0.7
    """The share of a round's clients that must stay until its end. With fewer, the round is abandoned."""
    colluders: float = 0.0
    """The share of a round's clients that may collude with the server. Their noise does not count."""
    neighbours: int | None = None
    """The number of other clients with which each client shares masks. If absent, all of them, or in large rounds only as many
    as needed."""
    bits: int | None = None
    """The number of bits of each integer in a sum, from 8 to 32. If absent, the smallest number that suffices."""
    clip: float | None = None
    """The largest norm of a client's contribution, if no mechanism of [privacy] bounds it."""
    groups: int | None = None
    """The number of groups into which the clients of a round are split at random. Each group has a secure sum of its own. If
    absent, 1, or what `group_size` asks for."""
    group_size: int | None = None
    """The number of clients in a group, in place of `groups`. Groups differ by one client at most."""
    attempts: int = 3
    """The number of times that a round is tried, each time with new keys, before the run gives up."""

    def __post_init__(self) -> None:
        if not 0.5 < self.survivors <= 1:
            raise InputError(
                f"secure.survivors is a share above 0.5 and at most 1, got {self.survivors}: with half or less, the server "
                "could open two different sums in one round."
            )
        if not 0 <= self.colluders < 0.5:
            raise InputError(
                f"secure.colluders is a share of the clients, so it must be from 0 to below 0.5, got {self.colluders}."
            )
        if self.bits is not None and not 8 <= self.bits <= 32:
            raise InputError(f"secure.bits must be from 8 to 32, got {self.bits}.")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"secure.clip must be a positive number, got {self.clip}.")
        if self.groups is not None and self.group_size is not None:
            raise InputError(
                f"secure.groups = {self.groups} and secure.group_size = {self.group_size} both say how clients are split. "
                "Remove one."
            )
        for name in ("neighbours", "attempts", "groups", "group_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"secure.{name} must be at least 1, got {value}.")
        if self.attempts > _MOST_ATTEMPTS:
            raise InputError(f"secure.attempts must be from 1 to {_MOST_ATTEMPTS}, got {self.attempts}.")

    def needed_clip(self) -> float:
        """The bound on what a client sends. Sums without noise on what is sent need it."""
        if self.clip is None:
            raise InputError(
                "secure sums add integers, which need a bounded range. Set secure.clip to the largest norm of a client's "
                "change; larger changes are scaled down to it."
            )
        return self.clip

    def least(self, cohort: int) -> int:
        """The number of a round's clients that must stay until its end."""
        return max(1, math.ceil(self.survivors * cohort - 1e-9))

    def group_sizes(self, cohort: int) -> list[int]:
        """The number of clients in each group of a round."""
        count = self._group_count(cohort)
        return [cohort // count + (place < cohort % count) for place in range(count)]

    def least_opened(self, cohort: int) -> int:
        """The least number of clients over which a sum of a round is opened: those that stay in its smallest group."""
        return self.least(cohort // self._group_count(cohort))

    def _group_count(self, cohort: int) -> int:
        count = self.groups or 1 if self.group_size is None else max(1, cohort // self.group_size)
        return min(count, cohort)

    def colluding(self, group: int, cohort: int) -> int:
        """The largest number of colluders in a group.

        Groups are drawn at random. More colluders than this meet in one with probability 2^-40 at most.
        """
        if group == cohort:
            return math.floor(self.colluders * cohort + 1e-9)
        return most_met(cohort, self.colluders, group, _ODDS, others=cohort)

    def honest(self, survivors: int, group: int, cohort: int) -> int:
        """The number of survivors of a group that are guaranteed to keep their noise secret."""
        return max(1, survivors - self.colluding(group, cohort))

    def terms(self, clients: Sequence[int], *, cohort: int, session: bytes, index: int, size: int, bits: int) -> Terms:
        """The terms of the sum of one group. They hold against all colluders that may meet in it."""
        count = len(clients)
        return planned_terms(
            session=session,
            round=index,
            clients=clients,
            size=size,
            bits=bits,
            least=self.least(count),
            neighbours=self.neighbours,
            colluders=min((self.colluding(count, cohort) + 1e-9) / count, 1 - 1e-9) if count < cohort else self.colluders,
            dropouts=round(1 - self.survivors, 9),  # in floating point, 1 - 0.9 is slightly less than a tenth
        )
