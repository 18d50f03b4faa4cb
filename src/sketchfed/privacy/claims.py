"""What an ε is about, and what it is made of: claims and charges.

An ε without the unit, the adjacency, the observer and δ means nothing, so they travel together as a `Claim`. A `Charge` is one
release: a clipped sum with Gaussian noise.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from sketchfed.errors import InputError, UnknownNameError

Unit = Literal["example", "client"]
Adjacency = Literal["add-remove", "zero-out", "replace-one"]
Observer = Literal["server", "public", "neighbours"]
Accountant = Literal["pld", "rdp"]

_SMALLEST_EVER, _LARGEST_EVER = 1e-13, 1e15  # multipliers whose squares are far from what floats hold
_MOST_STEPS, _MOST_SIZE, _RAREST = 10**6, 2**62, 1e-12


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Whom an ε protects, from whom, and how it is worked out.

    unit: whose whole contribution is hidden, one example's or one client's.
    adjacency: neighbours differ by a unit that is there or not ("add-remove"), that sends its vector or nothing ("zero-out"),
    or that sends one vector or another ("replace-one", which moves a sum by up to twice the clip norm).
    observer: "public" sees what the server broadcasts, "server" also what the server receives. "neighbours" see everything that
    nodes of a graph say.
    accountant: "pld" is tight; "rdp" is looser, and the one that is left if `Charge` does not say how coarse discrete noise is.
    insecure: the noise came from a seed that others can know, so that the claim describes an experiment and protects nobody.
    """

    unit: Unit
    adjacency: Adjacency
    observer: Observer
    delta: float
    accountant: Accountant = "pld"
    insecure: bool = False

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("unit", self.unit, Unit),
            ("adjacency", self.adjacency, Adjacency),
            ("observer", self.observer, Observer),
            ("accountant", self.accountant, Accountant),
        ):
            if name not in get_args(known):
                raise UnknownNameError(kind, name, get_args(known))
        if not 0 < self.delta < 1:
            raise InputError(
                f"delta must be above 0 and below 1, got {self.delta}. Take one below 1/units, such as 1e-5 for 10,000 clients."
            )

    @property
    def text(self) -> str:
        """The conditions that must be stated with every ε."""
        whom = f"the {self.observer}"
        said = f"at δ = {self.delta:g}, {self.unit} level, {self.adjacency}, against {whom} ({self.accountant.upper()})"
        return f"{said}; INSECURE: the noise came from a fixed seed and protects nobody" if self.insecure else said


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One release of a clipped sum with Gaussian noise.

    multiplier: the noise's standard deviation over the clip norm (what one unit adds at most).
    sampling: probability with which a unit was in the sum, independently of others (Poisson), if the observer does not see
    which were; else 1.
    steps: the number of such releases, each sampled and noised anew.
    discrete: integers with discrete Gaussian noise. `slack` bounds how far the log density of the noise that was really
    added is from that of one discrete Gaussian (a sum of several is not quite one), on all `size` numbers together: each has
    an equal part of it.
    deviation, size: of discrete noise, its standard deviation in integer steps and how many integers get it. Ledgers of 0.1.0
    do not say them, and are accounted by RDP.
    """

    multiplier: float
    sampling: float = 1.0
    steps: int = 1
    discrete: bool = False
    slack: float = 0.0
    deviation: float | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.multiplier < math.inf:
            raise InputError(
                f"multiplier must be a positive number, got {self.multiplier}: without noise there is no ε. "
                "Let `calibrated` find it for an ε."
            )
        if not _SMALLEST_EVER <= self.multiplier <= _LARGEST_EVER:
            raise InputError(
                f"multiplier {self.multiplier:g} is not between {_SMALLEST_EVER:g} and {_LARGEST_EVER:g}, where an accountant "
                "can compute. It is the noise's standard deviation over the clip norm."
            )
        if not _RAREST <= self.sampling <= 1:
            raise InputError(
                f"sampling must be above 0 ({_RAREST:g} is the least) and at most 1, got {self.sampling}. Leave it at 1 where "
                "the observer sees who took part."
            )
        if not 1 <= self.steps <= _MOST_STEPS:
            raise InputError(
                f"steps must be from 1 to {_MOST_STEPS:,}, got {self.steps}. Charge nothing for nothing, and more in several "
                "charges."
            )
        if not 0 <= self.slack < math.inf:
            raise InputError(f"slack must be 0 or a positive number, got {self.slack}.")
        if self.slack and not self.discrete:
            raise InputError(f"slack {self.slack:g} is about discrete noise. Set discrete=True, or leave it out.")
        if (self.deviation is None) != (self.size is None) or (self.deviation is not None and not self.discrete):
            raise InputError(
                f"deviation {self.deviation} and size {self.size} describe discrete noise together. Set both, with "
                "discrete=True, or leave both out."
            )
        if self.deviation is not None and self.size is not None:
            if not 0 < self.deviation <= _LARGEST_EVER or not 1 <= self.size <= _MOST_SIZE:
                raise InputError(
                    f"deviation must be a positive number of integer steps up to {_LARGEST_EVER:g}, and size from 1 to "
                    f"{_MOST_SIZE:,}, got {self.deviation} and {self.size}."
                )
            object.__setattr__(self, "deviation", float(self.deviation))
            object.__setattr__(self, "size", int(self.size))
        for name, plain in (("multiplier", float), ("sampling", float), ("steps", int), ("slack", float)):
            object.__setattr__(self, name, plain(getattr(self, name)))  # numbers of numpy cannot be written to a ledger

    @property
    def noise(self) -> "Charge":
        """The same charge without what only an accountant needs. Equal noise gives equal charges, in all versions."""
        return replace(self, deviation=None, size=None)

    @property
    def event(self) -> Any:
        """The same charge as a `dp_accounting.DpEvent`, which cannot express slack."""
        from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

        made: DpEvent = GaussianDpEvent(self.multiplier)
        if self.sampling < 1:
            made = PoissonSampledDpEvent(self.sampling, made)
        return SelfComposedDpEvent(made, self.steps) if self.steps > 1 else made


def check_delta(delta: float, units: int) -> None:
    """Refuse a δ of 1/units or more, because a mechanism with such a δ may publish one unit in the clear."""
    if units < 1:
        raise InputError(f"units must be at least 1, got {units}.")
    if not 0 < delta < 1 / units:
        power = math.ceil(-math.log10(0.1 / units))
        raise InputError(
            f"delta {delta:g} is not between 0 and 1/{units:,} = {1 / units:.2g}: publishing one of {units:,} units in the "
            f"clear would pass for private. Take a tenth of that or less, such as 1e-{power}."
        )


def check_epsilon(epsilon: float) -> None:
    """Refuse an ε that no noise can satisfy, or that any noise satisfies."""
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon must be a positive number, got {epsilon}. Usual are 1 to 8: smaller is more private.")
