"""Which coordinates of a model's vector have a sketch of their own, and which are sent as they are."""

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate

from sketchfed.caches import cached
from sketchfed.errors import InputError
from sketchfed.sketches import Block
from sketchfed.sketches.direct_sum import Span
from sketchfed.vectors import Layout

LAYER = "layer"
"""The value of `sketch.blocks` with which each layer has a sketch of its own."""
_LISTED = 12
"""The number of names that an error lists."""


@cached(maxsize=8)
def blocks_of(
    layout: Layout, *, plain: tuple[str, ...], blocks: str | tuple[str, ...] | None, ratio: float, size: int | None
) -> tuple[Block, ...]:
    """The blocks of a model's vector: one for each group of parameters, and one for all plain parameters, which comes last.

    `plain` and `blocks` are the settings of [sketch]. Each group has `ratio` coefficients per parameter, and one at least. If
    `size` is given, that many are shared among the groups.
    """
    sketched, spared = list(layout.names), _plain(layout, plain)
    sketched = [name for name in sketched if name not in spared]
    groups = [_spans(layout, group) for group in _groups(sketched, blocks)]
    dims = [sum(stop - start for start, stop in spans) for spans in groups]
    sizes = [max(1, round(ratio * dim)) for dim in dims] if size is None else shared(size, dims)
    made = [Block(spans, each) for spans, each in zip(groups, sizes, strict=True)]
    if spared:
        spans = _spans(layout, spared)
        made.append(Block(spans, sum(stop - start for start, stop in spans), plain=True))
    return tuple(made)


def _plain(layout: Layout, patterns: Sequence[str]) -> list[str]:
    """The names of plain parameters."""
    found = {name for pattern in patterns for name in _matched(pattern, layout.names, "sketch.plain")}
    counts = {name: math.prod(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    count = sum(counts[name] for name in found)
    if count == layout.dim:
        raise InputError(
            f"sketch.plain = {list(patterns)} matches all {layout.dim:,} numbers of the model, so nothing is left to sketch. "
            "Use narrower patterns, or algorithm 'fedavg' with codec 'dense', which sends everything as it is."
        )
    if 2 * count > layout.dim:
        largest = max(found, key=lambda name: counts[name])
        raise InputError(
            f"sketch.plain = {list(patterns)} matches {count:,} of the model's {layout.dim:,} numbers, more than are left to "
            f"sketch: '{largest}' alone has {counts[largest]:,}. It is for small parameters. Use narrower patterns, or "
            "algorithm 'fedavg' with codec 'dense', which sends everything as it is."
        )
    return [name for name in layout.names if name in found]


def _groups(names: Sequence[str], blocks: str | tuple[str, ...] | None) -> list[list[str]]:
    """The names of each group."""
    if blocks is None:
        return [list(names)]
    groups: dict[str, list[str]] = {}
    if blocks == LAYER:
        for name in names:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
        return list(groups.values())
    rest = list(names)
    for pattern in blocks:
        own = _matched(pattern, names, "sketch.blocks")
        groups[pattern] = [name for name in own if name in rest]
        if not groups[pattern]:
            raise InputError(
                f"sketch.blocks: every parameter that {pattern!r} matches belongs to an earlier block. Remove that pattern, or "
                "write it before the wider one."
            )
        rest = [name for name in rest if name not in groups[pattern]]
    return [*groups.values(), *([rest] if rest else [])]


def _matched(pattern: str, names: Sequence[str], setting: str) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
        sketched = "" if setting == "sketch.plain" else " that is sketched"
        raise InputError(
            f"{setting}: {pattern!r} matches no parameter{sketched}. There are {', '.join(names[:_LISTED])}{more}. Patterns "
            "match whole names, and * stands for any text."
        )
    return found


def _spans(layout: Layout, names: Sequence[str]) -> tuple[Span, ...]:
    """The coordinates of some parameters, as few spans as possible."""
    ends = list(accumulate((math.prod(shape) for shape in layout.shapes), initial=0))
    spans: list[Span] = []
    for name, start, stop in zip(layout.names, ends[:-1], ends[1:], strict=True):
        if name not in names or start == stop:
            continue
        if spans and spans[-1][1] == start:
            start = spans.pop()[0]
        spans.append((start, stop))
    return tuple(spans)


def shared(size: int, dims: Sequence[int]) -> list[int]:
    """Share `size` coefficients among groups in proportion to their dimensions. Each gets one at least."""
    if size < len(dims):
        raise InputError(
            f"sketch.size = {size:,} gives some of the {len(dims):,} blocks no coefficient. Use sketch.size = {len(dims):,} or "
            "more, or fewer blocks."
        )
    if size > sum(dims):
        raise InputError(
            f"sketch.size = {size:,} exceeds the {sum(dims):,} numbers that are sketched. Use a smaller size, or algorithm "
            "'fedavg' with codec 'dense'."
        )
    sizes = [max(1, size * dim // sum(dims)) for dim in dims]
    wanted = [size * dim / sum(dims) for dim in dims]
    while (left := size - sum(sizes)) != 0:  # largest remainders first; those that were rounded up to 1 are paid by the largest
        step = 1 if left > 0 else -1
        able = [i for i in range(len(dims)) if sizes[i] + step <= dims[i] and sizes[i] + step >= 1]
        sizes[max(able, key=lambda i: step * (wanted[i] - sizes[i]))] += step
    return sizes
