"""How many bytes a goal took: targets that suit the data, and what each group sent until it was there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sketchfed.report.groups import Group
from sketchfed.report.loading import Round, RunRecord

MOST_TARGETS = 4
_ACCURACIES = [step / 20 for step in range(1, 20)] + [0.96, 0.97, 0.98, 0.99, 0.995, 0.999]


@dataclass(frozen=True)
class ScoreTarget:
    """An accuracy to reach, or a held-out loss to get down to."""

    measure: str
    value: float

    def __str__(self) -> str:
        return f"{self.measure} {self.value:g}"

    def first(self, record: RunRecord) -> Round | None:
        """The first evaluated round at which a run is there."""
        find = record.first_at_accuracy if self.measure == "accuracy" else record.first_at_loss
        return find(self.value)


@dataclass(frozen=True)
class Arrival:
    """When a group reached a target, averaged over those of its runs that did."""

    round: float
    uplink_bytes: float
    downlink_bytes: float
    total_bytes: float
    reached: int
    runs: int

    @property
    def all_there(self) -> bool:
        return self.reached == self.runs


def arrival(group: Group, target: ScoreTarget) -> Arrival | None:
    """When the group got there, or None if none of its runs did."""
    there = [line for line in map(target.first, group.records) if line is not None]
    if not there:
        return None
    return Arrival(
        round=sum(line.round for line in there) / len(there),
        uplink_bytes=sum(line.uplink_bytes for line in there) / len(there),
        downlink_bytes=sum(line.downlink_bytes for line in there) / len(there),
        total_bytes=sum(line.total_bytes for line in there) / len(there),
        reached=len(there),
        runs=len(group.records),
    )


def choose_targets(groups: Sequence[Group]) -> list[ScoreTarget]:
    """Round numbers, easiest first: from what every group reached up to what only the best one did.

    Groups that came nowhere near the best have no say, or a single failed run would make all targets trivial.
    """
    accuracies = [spread.high for group in groups if (spread := group.spread(lambda record: record.best_reached_accuracy))]
    if accuracies:
        best = max(accuracies)
        everyone = min(accuracy for accuracy in accuracies if accuracy >= 0.8 * best)
        return [ScoreTarget("accuracy", value) for value in _between(_ACCURACIES, everyone, best)]
    losses = [spread.low for group in groups if (spread := group.spread(lambda record: record.best_reached_loss))]
    if not losses or min(losses) <= 0:
        return []
    best, everyone = min(losses), max(loss for loss in losses if loss <= 5 * min(losses))
    descending = [-step for step in _losses(best)]
    return [ScoreTarget("loss", -value) for value in _between(descending, -everyone, -best)]


def _between(ladder: Sequence[float], everyone: float, best: float) -> list[float]:
    """Steps of an ascending ladder that the best reached, around and above the last one that everyone did."""
    reached = [step for step in ladder if step <= best]
    shared = sum(step <= everyone for step in reached)
    start = max(min(shared - 1, len(reached) - MOST_TARGETS + 1), 0)
    candidates = reached[start:]
    if len(candidates) <= MOST_TARGETS:
        return candidates
    last = len(candidates) - 1
    return [candidates[round(place * last / (MOST_TARGETS - 1))] for place in range(MOST_TARGETS)]


def _losses(best: float) -> list[float]:
    """1, 2, 5, 10, ... above the best loss, hardest last."""
    power = math.floor(math.log10(best))
    return [digit * 10.0**exponent for exponent in range(power + 2, power - 1, -1) for digit in (5, 2, 1)]
