"""What sketching changes in `robust-rules`: runs in pairs that differ in the size of what clients send, and in nothing else."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from sketchfed.runs import Row
from sketchfed_lab.experiments.intervals import Points

Setting = tuple[str, float, float]
"""Transport, share of attackers, and size/dim of the sketched run: a line of the tables."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A sketched run and the dense run with the same transport, data, spread, rule, attack, share and seed."""

    setting: Setting
    rule: str
    attack: str
    cluster: tuple[str, str, int]
    """Data set, spread and seed. Runs of one cluster share their data, partition, first weights and attackers."""
    difference: float
    """The accuracy of the sketched run minus that of the dense one, in points."""
    baseline: float
    """The same difference without attackers, for the same rule: what sketching costs anyway."""

    @property
    def net(self) -> float:
        """The difference in what the attackers cost. It is positive if sketching makes the rule more robust."""
        return self.difference - self.baseline


@dataclass(frozen=True)
class Summary(Points):
    """The mean over clusters of the means of their pairs. Pairs of a cluster are not independent, so clusters are counted."""

    positive: int
    pairs: int


def pairs(rows: Sequence[Row], accuracy: Callable[[Row], float]) -> list[Pair]:
    """All pairs whose runs, with and without attackers, are there."""
    found = {_name(row, row["key"]["ratio"], row["key"]["attack"]): 100 * accuracy(row) for row in rows}
    made = []
    for row in rows:
        key = row["key"]
        ratio, attack = key["ratio"], key["attack"]
        names = [(_name(row, ratio, each), _name(row, 1.0, each)) for each in (attack, "none")]
        if ratio < 1 and all(name in found for both in names for name in both):
            difference, baseline = (found[sketched] - found[dense] for sketched, dense in names)
            made.append(
                Pair(
                    setting=(key["transport"], key["share"], ratio),
                    rule=key["rule"],
                    attack=attack,
                    cluster=(key["data"], key["spread"], key["seed"]),
                    difference=difference,
                    baseline=baseline,
                )
            )
    return made


def _name(row: Row, ratio: float, attack: str) -> tuple[object, ...]:
    """What a run is found by: this row's, with another size or another attack."""
    key = row["key"]
    share = 0.0 if attack == "none" else key["share"]
    return key["transport"], key["data"], key["spread"], ratio, key["rule"], key["seed"], attack, share


def summary(chosen: Sequence[Pair], value: Callable[[Pair], float]) -> Summary:
    """The mean of a value over pairs, of which there must be some."""
    clusters = defaultdict(list)
    for pair in chosen:
        clusters[pair.cluster].append(value(pair))
    means = tuple(mean(values) for values in clusters.values())
    return Summary(means, positive=sum(value(pair) > 0 for pair in chosen), pairs=len(chosen))


def settings_of(found: Iterable[Pair]) -> list[Setting]:
    """The lines of the tables: transports, shares of attackers, and sizes, the largest first."""
    return sorted({pair.setting for pair in found}, key=lambda setting: (setting[0], setting[1], -setting[2]))
