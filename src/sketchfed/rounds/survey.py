"""Metrics that clients measure on their own data: how they travel, and their statistics over all clients."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sketchfed.errors import WireError
from sketchfed.wire import Packet, expect_kind, pack, unpack

LARGEST = 1e100
"""Metrics beyond this count as not finite, so that their squares can be added up."""
MOST_BYTES = 2**16
_MOST_NAMES, _LONGEST = 100, 64
_WORST = 10
"""The worst clients are one of this many."""
LARGE_IS_BAD = ("loss", "error", "perplexity", "mse", "rmse", "mae", "nll")
"""Words in the name of a metric of which large values are bad. Of all others, small values are bad."""


class Statistics(NamedTuple):
    """One metric over all clients that have a value of it. Each client counts the same, however many examples it has."""

    mean: float
    worst: float
    """The mean over the worst tenth of the clients, rounded up to whole clients."""
    spread: float
    """The standard deviation between clients."""


def statistics(name: str, values: Sequence[float]) -> Statistics | None:
    """The statistics of a metric. None without any value. They do not depend on the order of the values.

    >>> statistics("accuracy", [0.9, 0.5, 1.0, 0.8])
    Statistics(mean=0.8, worst=0.5, spread=0.18708286933869708)
    >>> statistics("loss", [0.1, 2.0, 0.3]).worst
    2.0
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    ranked = sorted(values, reverse=large_is_bad(name))
    worst = ranked[: -(-len(values) // _WORST)]
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return Statistics(mean, math.fsum(worst) / len(worst), math.sqrt(variance))


def large_is_bad(name: str) -> bool:
    """Whether large values of a metric are bad, by the words in its name.

    >>> large_is_bad("validation_loss"), large_is_bad("mae"), large_is_bad("f1"), large_is_bad("lossless")
    (True, True, False, False)
    """
    return not set(LARGE_IS_BAD).isdisjoint(name.lower().split("_"))


def packed_metrics(found: Mapping[str, float | None], index: int) -> bytes:
    """A client's metrics after `index` rounds, as a reply. None stands for a value that is not finite."""
    text = json.dumps(dict(found), ensure_ascii=False, allow_nan=False)
    return pack(Packet(kind="metrics", arrays={}, scalars={"round": index, "metrics": text}))


def read_metrics(reply: bytes, index: int) -> dict[str, float | None]:
    """The metrics in a reply, which is not trusted. Raises `WireError` unless it holds numbers by name for this round."""
    if len(reply) > MOST_BYTES:
        raise WireError(f"its metrics take {len(reply):,} bytes, and at most {MOST_BYTES:,} are read.")
    packet = expect_kind(unpack(reply), "metrics")
    if packet.scalars.get("round") != index:
        raise WireError(f"its metrics are for round {packet.scalars.get('round')!r}, not {index}.")
    text = packet.scalars.get("metrics")
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or len(found) > _MOST_NAMES or not all(map(_is_name, found)):
        raise WireError(f"its metrics are not up to {_MOST_NAMES} numbers by name.")
    return {name: _number(name, value) for name, value in found.items()}


def _is_name(name: str) -> bool:
    return name.isidentifier() and len(name) <= _LONGEST


def _number(name: str, value: object) -> float | None:
    """A number that can be added up, or None. Anything that is no number is refused."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"its metric '{name}' is a {type(value).__name__}, not a number.")
    return float(value) if abs(value) <= LARGEST else None
