"""Runs that differ only in their seed, taken together."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sketchfed.report.loading import Round, RunRecord

# Runs that differ in nothing else are repetitions.
_OUTSIDE = {("seed",), ("name",), ("engine", "workers"), ("engine", "checkpoint_seconds")}


@dataclass(frozen=True)
class Spread:
    """The mean of something over the runs of a group, and the least and the most of it."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """The spread of what was measured, or None if nothing was."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        low, high = min(known), max(known)
        return cls(min(max(sum(known) / len(known), low), high), low, high)  # rounding must not put the mean outside


@dataclass(frozen=True)
class Point:
    """A round of a group, averaged over its runs."""

    round: int
    accuracy: Spread | None
    loss: Spread | None
    captured: Spread | None
    on_clients: Mapping[str, Spread]
    """Of the accuracy and the loss on clients, the mean (as 'clients_accuracy') and the worst tenth (with '_worst')."""
    epsilon: float | None
    uplink_bytes: float
    downlink_bytes: float
    total_bytes: float
    consensus: Spread | None
    """How far nodes without a server are apart. None where they are equal, too: the axis is logarithmic."""
    farthest_accuracy: Spread | None
    farthest_loss: Spread | None

    def measured(self, measure: str) -> Spread | None:
        """The accuracy, the loss, the captured energy, what nodes measured, or one of `on_clients`."""
        return self.on_clients.get(measure) if measure.startswith("clients_") else getattr(self, measure)


@dataclass(frozen=True)
class Group:
    """Runs of one configuration: a line of a chart and a row of a table."""

    label: str
    records: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.records[0]

    @property
    def finished(self) -> bool:
        return all(record.summary.finished for record in self.records)

    @property
    def served(self) -> bool:
        """Whether the runs have a server. Without one, nodes of a graph speak to each other."""
        return self.first.apart is None and self.first.network is None

    @property
    def note(self) -> str:
        """What a reader has to know beside the label: how many runs there are, and whether they ended."""
        count, seeds = len(self.records), {json.dumps(record.seed, default=str) for record in self.records}
        several = f"{count} {'seeds' if len(seeds) == count else 'runs'}" if count > 1 else ""
        return ", ".join(filter(None, (several, "" if self.finished else "unfinished")))

    def spread(self, of: Callable[[RunRecord], float | None]) -> Spread | None:
        return Spread.of(map(of, self.records))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The rounds that all runs evaluated, and the last that all reached: a mean over fewer would jump where a run ends."""
        lines = [{line.round: line for line in record.metrics} for record in self.records]
        shared = [number for number in lines[0] if all(number in others for others in lines)]
        kept = [number for number in shared if all(run[number].evaluated for run in lines) or number == shared[-1]]
        return tuple(_point([run[number] for run in lines]) for number in kept)


def group_seeds(records: Sequence[RunRecord]) -> list[Group]:
    """Put runs together whose configurations differ only in `seed` and `name`, in the order of their first runs.

    Finished runs may have ended at different rounds, such as when they reached a target. A run that is not finished joins only
    those that are as far as it is: it would cut their mean short.
    """
    alike: dict[tuple[str, int | None], list[RunRecord]] = {}
    for record in records:
        reached = None if record.summary.finished else record.rounds
        alike.setdefault((_fingerprint(record.config), reached), []).append(record)
    groups = list(alike.values())
    return [Group(label, tuple(group)) for label, group in zip(_labels(groups), groups, strict=True)]


def _fingerprint(config: Mapping[str, Any]) -> str:
    kept = sorted((path, _written(value)) for path, value in _flat(config).items() if path not in _OUTSIDE)
    return json.dumps(kept)


def _written(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _labels(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """The runs' own labels; where several groups share one, what sets them apart is added."""
    labels = [group[0].summary.label for group in groups]
    for label in {label for label in labels if labels.count(label) > 1}:
        places = [place for place, other in enumerate(labels) if other == label]
        for place, suffix in zip(places, _differences([groups[place][0] for place in places]), strict=True):
            labels[place] = f"{label}, {suffix}" if suffix else label
    return [
        f"{label} ({group[0].summary.name})" if labels.count(label) > 1 else label
        for label, group in zip(labels, groups, strict=True)
    ]


def _differences(records: Sequence[RunRecord]) -> list[str]:
    """What tells these runs apart, in words: the settings that differ, else how far those came that are not finished."""
    settings = [_flat(record.config) for record in records]
    paths = dict.fromkeys(path for setting in settings for path in setting if path not in _OUTSIDE)
    varied = [path for path in paths if len({_written(setting.get(path)) for setting in settings}) > 1]
    if not varied:
        return ["" if record.summary.finished else f"seed {_brief(record.seed)}, round {record.rounds}" for record in records]
    return [", ".join(f"{_brief(path[-1])} {_brief(setting.get(path, '–'))}" for path in varied[:3]) for setting in settings]


def _flat(config: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """{"algorithm": {"rate": 0.1}} as {("algorithm", "rate"): 0.1}; a loop, so that no nesting is too deep."""
    flat: dict[tuple[str, ...], Any] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), config)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [((*path, key), inner) for key, inner in reversed(list(value.items()))]
        else:
            flat[path] = value
    return flat


def _brief(value: object) -> str:
    """A setting in a label: short, and without the control characters that TOML lets through."""
    text = "".join(character if character.isprintable() else " " for character in str(value))
    return text if len(text) <= 30 else text[:29] + "…"


def _point(lines: Sequence[Round]) -> Point:
    count, apart = len(lines), [line.apart for line in lines if line.apart is not None]
    return Point(
        round=lines[0].round,
        accuracy=Spread.of(line.accuracy for line in lines),
        loss=Spread.of(line.loss for line in lines),
        captured=Spread.of(line.captured for line in lines),
        on_clients=_on_clients(lines),
        epsilon=max((line.epsilon for line in lines if line.epsilon is not None), default=None),
        uplink_bytes=sum(line.uplink_bytes for line in lines) / count,
        downlink_bytes=sum(line.downlink_bytes for line in lines) / count,
        total_bytes=sum(line.total_bytes for line in lines) / count,
        consensus=Spread.of((each.consensus or None) for each in apart),
        farthest_accuracy=Spread.of(each.farthest_accuracy for each in apart),
        farthest_loss=Spread.of(each.farthest_loss for each in apart),
    )


def _on_clients(lines: Sequence[Round]) -> dict[str, Spread]:
    found = {}
    for name in ("accuracy", "loss"):
        known = [line.on_clients[name] for line in lines if name in line.on_clients]
        for key, spread in (("", Spread.of(one.mean for one in known)), ("_worst", Spread.of(one.worst for one in known))):
            if spread is not None:
                found[f"clients_{name}{key}"] = spread
    return found
