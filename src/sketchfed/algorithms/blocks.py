"""Which coordinates of a model's vector have a sketch of their own, and which are sent as they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

from sketchfed.caches import cached
from sketchfed.errors import InputError
from sketchfed.sketches import Block
from sketchfed.sketches.direct_sum import Span
from sketchfed.vectors import Layout

LAYER = "layer"
"""The value of `sketch.blocks` with which each layer has a sketch of its own."""
_LISTED = 12
"""The number of names that an error lists."""


@dataclass(frozen=True)
class ByName:
    """The settings `plain` and `blocks` of a table."""

    table: str
    plain: tuple[str, ...] = ()
    blocks: str | tuple[str, ...] | None = None

    @classmethod
    def of(cls, table: str, plain: Sequence[str] | None, blocks: str | Sequence[str] | None) -> "ByName":
        """Raise `InputError` unless they are patterns of names."""
        _check_patterns(table, "plain", plain)
        if blocks != LAYER:
            _check_patterns(table, "blocks", blocks)
        return cls(table, tuple(plain or ()), blocks if isinstance(blocks, str) else tuple(blocks or ()) or None)

    def __bool__(self) -> bool:
        """Whether parameters are treated differently, by their names. The model must be known then."""
        return bool(self.plain or self.blocks)

    @property
    def words(self) -> list[str]:
        """What a label says of them."""
        blocks = self.blocks if self.blocks is None or isinstance(self.blocks, str) else ", ".join(self.blocks)
        return [*([f"by {blocks}"] if blocks else []), *([f"+ plain {', '.join(self.plain)}"] if self.plain else [])]

    def found_in(self, layout: Layout | None, dim: int, *, ratio: float, size: int | None) -> tuple[Block, ...]:
        """The blocks of the vector of a model with this layout."""
        both = f"{self.table}.plain and {self.table}.blocks"
        if layout is None:
            raise InputError(
                f"{both} go by the names of parameters, so the model must be known. Call resolved(dim, module=...) first. It "
                f"passes the module to {self.table}.completed(...)."
            )
        if layout.dim != dim:
            raise InputError(
                f"{both} were resolved for a model of {layout.dim:,} parameters, but this one has {dim:,}. Call "
                "resolved(dim, module=...) with this model."
            )
        return blocks_of(layout, self, ratio=ratio, size=size)


@cached(maxsize=8)
def blocks_of(layout: Layout, settings: ByName, *, ratio: float, size: int | None) -> tuple[Block, ...]:
    """The blocks of a model's vector: one for each group of parameters, and one for all plain parameters, which comes last.

    Each group has `ratio` coefficients per parameter, and one at least. If `size` is given, that many are shared among the
    groups.
    """
    spared = _plain(layout, settings)
    coded = [name for name in layout.names if name not in spared]
    groups = [_spans(layout, group) for group in _groups(coded, settings)]
    dims = [sum(stop - start for start, stop in spans) for spans in groups]
    sizes = [max(1, round(ratio * dim)) for dim in dims] if size is None else shared(size, dims, settings.table)
    made = [Block(spans, each) for spans, each in zip(groups, sizes, strict=True)]
    if spared:
        spans = _spans(layout, spared)
        made.append(Block(spans, sum(stop - start for start, stop in spans), plain=True))
    return tuple(made)


def _plain(layout: Layout, settings: ByName) -> list[str]:
    """The names of plain parameters."""
    given = f"{settings.table}.plain = {list(settings.plain)}"
    found = {name for pattern in settings.plain for name in _matched(pattern, layout.names, f"{settings.table}.plain")}
    counts = {name: math.prod(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    count = sum(counts[name] for name in found)
    if count == layout.dim:
        raise InputError(
            f"{given} matches all {layout.dim:,} numbers of the model, so nothing is left to compress. "
            "Use narrower patterns, or algorithm 'fedavg' with codec 'dense', which sends everything as it is."
        )
    if 2 * count > layout.dim:
        largest = max(found, key=lambda name: counts[name])
        raise InputError(
            f"{given} matches {count:,} of the model's {layout.dim:,} numbers, more than are left to "
            f"compress: '{largest}' alone has {counts[largest]:,}. It is for small parameters. Use narrower patterns, or "
            "algorithm 'fedavg' with codec 'dense', which sends everything as it is."
        )
    return [name for name in layout.names if name in found]


def _groups(names: Sequence[str], settings: ByName) -> list[list[str]]:
    """The names of each group."""
    blocks, setting = settings.blocks, f"{settings.table}.blocks"
    if blocks is None:
        return [list(names)]
    groups: dict[str, list[str]] = {}
    if blocks == LAYER:
        for name in names:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
        return list(groups.values())
    rest = list(names)
    for pattern in blocks:
        own = _matched(pattern, names, setting)
        groups[pattern] = [name for name in own if name in rest]
        if not groups[pattern]:
            raise InputError(
                f"{setting}: every parameter that {pattern!r} matches belongs to an earlier block. Remove that pattern, or "
                "write it before the wider one."
            )
        rest = [name for name in rest if name not in groups[pattern]]
    return [*groups.values(), *([rest] if rest else [])]


def _matched(pattern: str, names: Sequence[str], setting: str) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
        coded = "" if setting.endswith(".plain") else " that is not plain"
        raise InputError(
            f"{setting}: {pattern!r} matches no parameter{coded}. There are {', '.join(names[:_LISTED])}{more}. Patterns "
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


def shared(size: int, dims: Sequence[int], table: str = "sketch") -> list[int]:
    """Share `size` coefficients among groups in proportion to their dimensions. Each gets one at least."""
    if size < len(dims):
        raise InputError(
            f"{table}.size = {size:,} gives some of the {len(dims):,} blocks no coefficient. Use {table}.size = {len(dims):,} "
            "or more, or fewer blocks."
        )
    if size > sum(dims):
        raise InputError(
            f"{table}.size = {size:,} exceeds the {sum(dims):,} numbers that are compressed. Use a smaller size, or algorithm "
            "'fedavg' with codec 'dense'."
        )
    sizes = [max(1, size * dim // sum(dims)) for dim in dims]
    wanted = [size * dim / sum(dims) for dim in dims]
    while (left := size - sum(sizes)) != 0:  # largest remainders first; those that were rounded up to 1 are paid by the largest
        step = 1 if left > 0 else -1
        able = [i for i in range(len(dims)) if sizes[i] + step <= dims[i] and sizes[i] + step >= 1]
        sizes[max(able, key=lambda i: step * (wanted[i] - sizes[i]))] += step
    return sizes


def _check_patterns(table: str, setting: str, patterns: Any) -> None:
    if patterns is None or (isinstance(patterns, list | tuple) and all(isinstance(pattern, str) for pattern in patterns)):
        return
    layer = '"layer" or ' if setting == "blocks" else ""
    raise InputError(f'{table}.{setting} is {layer}a list of patterns of names, such as ["*.bias"], got {patterns!r}.')
