"""Reading torch Datasets: once, or anew in every pass where their transforms are random."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from sketchfed.data.generators import drawing_from
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed

log = logging.getLogger("sketchfed")

FIRST = PublicSeed(0).child("first reading")
"""What Datasets are read with before a run: the same in every process, so that a resumed run finds the same data."""
TRIED = 128
"""How many items of all Datasets together are read again to find out whether they are random."""

Pair = tuple[Tensor, Tensor]
Conformed = Callable[[Pair], Pair]
"""Brings what a Dataset returned to the types and shapes of the data set that it is part of, or raises `InputError`."""


def length(dataset: Dataset[Any], owner: str) -> int:
    """How many items a map-style Dataset has; at least one."""
    try:
        count = len(dataset)  # type: ignore[arg-type]
    except Exception as error:  # of the Dataset's own
        raise InputError(
            f"{owner} is a {type(dataset).__name__} whose length is not known: {type(error).__name__}: {error}. Give it a "
            "__len__ that returns the number of examples, or give a map-style Dataset."
        ) from error
    if not count:
        raise InputError(f"{owner} has no examples. Leave it out.")
    return int(count)


def read(dataset: Dataset[Any], items: Sequence[int], seed: PublicSeed) -> Any:
    """Some items of a Dataset, collated; transforms draw from `seed`, also from generators that the Dataset holds."""
    with drawing_from(seed, dataset):
        return default_collate([dataset[item] for item in items])


def randomness(
    datasets: Sequence[Dataset[Any]], firsts: Sequence[Pair], conformed: Conformed
) -> Literal["none", "seeded", "own"]:
    """Whether items differ between readings: not at all, with the global generators' seeds, or even with equal seeds.

    `firsts` is what was read of each Dataset before. At most `TRIED` items, spread over all Datasets, are read twice more with
    other seeds. A transform that changes an item with probability p is missed with probability at most (1 − p)^TRIED, if all
    Datasets apply it and have that many items together. `TensorDataset` and subsets of it are known not to be random.
    """
    doubtful = [(dataset, first) for dataset, first in zip(datasets, firsts, strict=True) if not _stored(dataset)]
    chosen = [doubtful[place] for place in _spread(len(doubtful), TRIED)]
    found: Literal["none", "seeded"] = "none"
    for dataset, (x, y) in chosen:
        items = _spread(len(x), TRIED // len(chosen))
        one, other = (_tried(dataset, items, number, conformed) for number in (1, 2))
        if _same(one, (x[items], y[items])) and _same(one, other):
            continue
        if not _same(one, _tried(dataset, items, 1, conformed)):
            return "own"
        found = "seeded"
    return found


def _tried(dataset: Dataset[Any], items: Sequence[int], number: int, conformed: Conformed) -> Pair | None:
    try:
        return conformed(read(dataset, items, FIRST.child("trial", number)))
    except Exception:  # it did not raise when it was read first, so it differs
        return None


def is_stored(dataset: object) -> bool:
    """Whether a Dataset is known to hold tensors, which reading does not change."""
    return isinstance(dataset, Dataset) and _stored(dataset)


def _stored(dataset: Dataset[Any]) -> bool:
    return _stored(dataset.dataset) if type(dataset) is Subset else type(dataset) is TensorDataset


def _spread(count: int, most: int) -> list[int]:
    """At most `most` places of `count`, and at least one if there is one, evenly spread."""
    size = min(count, max(1, most))
    return [place * count // size for place in range(size)]


def _same(one: Pair | None, other: Pair | None) -> bool:
    """Whether two readings are equal; NaN equals NaN."""
    if one is None or other is None:
        return one is other
    return all(
        a.shape == b.shape and bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())
        for a, b in zip(one, other, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads rows of a data set's training part anew from the Datasets that clients were given as."""

    sources: Sequence[Dataset[Any] | None]
    """By client; None where a client was given as tensors."""
    ends: Tensor
    """Where the rows of each client end."""
    redrawn: bool
    """Whether Datasets are read anew in every pass."""
    unread: frozenset[int]
    """Clients whose Dataset raised when it was read first. Their rows hold zeros and are read when they are needed."""
    conformed: Conformed
    repeatable: bool = True
    """Whether equal seeds give equal readings, as far as was tried."""
    chosen: Tensor | None = None
    """The rows that are left, in their order; None for all of them."""

    def is_unread(self, rows: Tensor) -> Tensor:
        """Which of the rows have never been read."""
        owners = self._places(rows)[0]
        return torch.isin(owners, torch.tensor(sorted(self.unread), dtype=torch.int64))

    def is_live(self, rows: Tensor) -> Tensor:
        """Which of the rows must be read anew whenever they are used."""
        owners = self._places(rows)[0]
        live = [client for client, source in enumerate(self.sources) if self.redrawn and source is not None]
        return torch.isin(owners, torch.tensor(sorted({*live, *self.unread}), dtype=torch.int64))

    def read(self, rows: Tensor, seed: PublicSeed) -> Pair:
        """The examples in these rows, all of them live, with transforms that draw from `seed`."""
        owners, items = self._places(rows)
        parts = []
        for place, client in enumerate(sorted(set(owners.tolist()))):  # one, unless a partition mixes them
            source, mine = self.sources[client], owners == client
            if source is None:
                raise InputError(
                    f"client {client} was given as tensors, so its rows cannot be read anew. Ask `is_live` which rows can."
                )
            parts.append((mine, self.conformed(read(source, items[mine].tolist(), seed.child("source", place)))))
        x, y = (torch.cat([part[which] for _, part in parts]) for which in (0, 1))
        back = torch.cat([mine.nonzero()[:, 0] for mine, _ in parts]).argsort()
        return x[back], y[back]

    def of(self, rows: Tensor) -> "Reader":
        """The reader of a data set that has only these rows left."""
        return replace(self, chosen=rows if self.chosen is None else self.chosen[rows])

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Whose each row is, and which item of that client's Dataset; rows that were added later are nobody's, -1."""
        known = int(self.ends[-1]) if self.chosen is None else len(self.chosen)
        inside = rows < known
        first = rows.clamp(max=known - 1) if self.chosen is None else self.chosen[rows.clamp(max=known - 1)]
        owners = torch.searchsorted(self.ends, first, right=True)
        starts = torch.cat([self.ends.new_zeros(1), self.ends[:-1]])
        return torch.where(inside, owners, -1), first - starts[owners]
