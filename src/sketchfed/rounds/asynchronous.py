"""The table [asynchronous]: how many clients work at a time, how many updates make a step, and how long clients take."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from sketchfed.algorithms import Algorithm
from sketchfed.draws import normals, uniform
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed

Delay = Literal["lognormal", "half_normal", "exponential", "constant"]
Starts = Literal["arrival", "step"]
Staleness = Literal["sqrt", "none"]
DIGITS = 6
"""Times are rounded to this many digits, so that events have the same order on every computer."""


_UNPROTECTED = {
    "secure": "the masks of a secure sum cancel only between clients of one round, and in a buffer they started in several. "
    "Remove one of the two tables.",
    "privacy": "ε counts the rounds in which a client takes part. Everybody draws them before round 1, and in a buffer they "
    "depend on who arrives when. Remove one of the two tables.",
}
_ELSEWHERE = "delays are simulated, in this process. Use engine.name = 'local', or remove [asynchronous]."
_RECORDED = (
    "audits and exchanges belong to rounds in which all clients start from the same model. Remove engine.record and "
    "on_exchange."
)
_CORRECTED = (
    "what clients and the server keep stays in step only if all clients of a step start from the same model, and none counts "
    "less. Remove it, or use training.proximal (FedProx)."
)
_COMBINED = "the rule would take updates for outliers that are only older than others. Remove it."
_AVERAGED = (
    "an old update would move a running variance by its difference to an old one, and it could become negative. Use "
    "model.buffers = 'local', or nn.GroupNorm."
)


@dataclass(frozen=True, kw_only=True)
class AsynchronousSettings:
    """The table [asynchronous]: clients start and arrive at any time, and a full buffer makes a step (FedBuff)."""

    buffer: int = 10
    """The number of updates that make a step of the server."""
    concurrency: int | None = None
    """The largest number of clients that work at the same time. If absent, three times `buffer`, and at most all clients."""
    starts: Starts = "arrival"
    """When clients start: `arrival` starts another one whenever one arrives, and `step` starts them after a step of the server.
    With `concurrency = buffer`, these are ordinary rounds that wait for the slowest client."""
    staleness: Staleness = "sqrt"
    """`sqrt` multiplies an update by 1/√(1 + τ), where τ is the number of steps since its client started. `none` does not."""
    delay: Delay = "lognormal"
    """The law of the simulated time from a client's start to its arrival: `lognormal`, `half_normal`, `exponential` or
    `constant`. It is drawn anew each time."""
    mean: float = 1.0
    """The mean of that time."""
    spread: float = 1.0
    """The standard deviation of the logarithm of a lognormal time. The larger, the longer its tail."""

    def __post_init__(self) -> None:
        for name in ("buffer", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"asynchronous.{name} is a number of clients, so it must be at least 1, got {value}.")
        if not 0 <= self.mean <= 1e9:
            raise InputError(f"asynchronous.mean is a time, so it must be from 0 to 1e9, got {self.mean}.")
        if not 0 <= self.spread <= 5:
            raise InputError(
                f"asynchronous.spread must be from 0 to 5, got {self.spread}. With 5, one client in ten takes about 600 times "
                "as long as the median."
            )
        for name, kind in (("delay", Delay), ("starts", Starts), ("staleness", Staleness)):
            if getattr(self, name) not in get_args(kind):
                raise InputError(
                    f"asynchronous.{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}."
                )

    @property
    def label(self) -> str:
        """A few words for the label of a run."""
        words = "asynchronous" if self.starts == "arrival" else "waiting"
        return f"{words} {self.buffer}" if self.concurrency is None else f"{words} {self.buffer}/{self.concurrency}"

    def completed(self, clients: int) -> Self:
        """Return a copy with all defaults filled in, for a run with this many clients."""
        concurrency = self.concurrency or min(3 * self.buffer, clients)
        for name, value in (("buffer", self.buffer), ("concurrency", concurrency)):
            if value > clients:
                raise InputError(
                    f"asynchronous.{name} = {value}, but the run has {clients:,} clients, and each has one update in a step. "
                    f"Use at most {clients}, or raise data.clients."
                )
        if self.starts == "step" and concurrency < self.buffer:
            raise InputError(
                f"with asynchronous.starts = 'step', {concurrency} clients start after a step, and the next step needs "
                f"{self.buffer} updates. Use concurrency = {self.buffer} or more, or starts = 'arrival'."
            )
        return replace(self, concurrency=concurrency)

    def check(self, algorithm: Algorithm, *, protected: str, engine: str, recorded: bool) -> None:
        """Raise `InputError` for what needs rounds in which all clients start from the same model.

        `protected` names the table that protects updates, if there is one.
        """
        if algorithm.participation != 1:
            raise InputError(
                f"algorithm.participation = {algorithm.participation} is the share of the clients in a round. With "
                "[asynchronous], set concurrency, the number of clients that work at the same time, and buffer."
            )
        segments = algorithm.segments
        for given, why in {
            f"[{protected}]" if protected else "": _UNPROTECTED.get(protected, ""),
            f"engine.name = '{engine}'" if engine != "local" else "": _ELSEWHERE,
            "recorded exchanges" if recorded else "": _RECORDED,
            f"algorithm '{algorithm.label}'" if algorithm.same_start else "": algorithm.same_start,
            algorithm.correction: _CORRECTED,
            "" if algorithm.combine.averages else f"algorithm.combine = '{algorithm.combine.name}'": _COMBINED,
            "model.buffers = 'average'" if segments is not None and segments.buffers else "": _AVERAGED,
        }.items():
            if given:
                raise InputError(f"[asynchronous] does not go with {given}: {why}")

    @property
    def together(self) -> int:
        """`concurrency` of completed settings."""
        if self.concurrency is None:
            raise InputError("asynchronous.concurrency has no value yet. Set it, or call completed(clients) first.")
        return self.concurrency

    def weight(self, staleness: int) -> float:
        """The factor of an update whose client started this many steps ago (Nguyen et al. 2022)."""
        return 1 / math.sqrt(1 + staleness) if self.staleness == "sqrt" else 1.0

    def drawn(self, seed: PublicSeed) -> float:
        """A time from a start to an arrival."""
        if self.delay == "constant":
            found = 1.0
        elif self.delay == "exponential":
            found = -math.log((float(uniform(seed, (1,), bound=1.0)) + 1) / 2)
        elif self.delay == "half_normal":
            found = abs(float(normals(seed, 1))) * math.sqrt(math.pi / 2)
        else:
            found = math.exp(self.spread * float(normals(seed, 1)) - self.spread**2 / 2)
        return round(self.mean * found, DIGITS)
