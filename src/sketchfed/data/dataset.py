"""What a data set is, and how a part of it is held out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sketchfed.data.reading import Reader
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.kernels import draws
from sketchfed.seeds import PublicSeed

TASKS = ("classification", "regression")


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Training and test examples as they are stored, and how to prepare them for a model.

    `x_train` and `x_test` hold an example a row, in whatever type is compact; `prepare` turns any of their rows into
    float32 `(rows, *shape)`. `y_train` and `y_test` are int64 classes from 0 to `outputs` - 1. For regression they are
    float32 with `outputs` numbers a row, in the shape of the model's outputs: `(rows,)`, `(rows, outputs)` or any other.
    `groups` says to whom each training example belongs by nature, a speaker or a user, as int64.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    task: Literal["classification", "regression"] = "classification"
    outputs: int
    shape: tuple[int, ...]
    groups: Tensor | None = None
    prepare: Callable[[Tensor], Tensor]
    reader: Reader | None = None
    """Reads training examples anew where `x_train` and `y_train` hold only one draw of random transforms."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UnknownNameError("task", self.task, TASKS)
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            self._check_examples(part, x, y)
            self._check_targets(part, y)
        if self.groups is not None and (self.groups.dtype != torch.int64 or self.groups.shape != self.x_train.shape[:1]):
            raise InputError(
                f"{self._owner}: groups must be int64, one for each of the {len(self.x_train):,} training examples, got "
                f"{self.groups.dtype} of shape {tuple(self.groups.shape)}."
            )
        if self.x_test.shape[1:] != self.x_train.shape[1:] or self.x_test.dtype != self.x_train.dtype:
            raise InputError(
                f"{self._owner}: rows of x_test are {self.x_test.dtype} of shape {tuple(self.x_test.shape[1:])}, those of "
                f"x_train {self.x_train.dtype} of shape {tuple(self.x_train.shape[1:])}. Store both alike."
            )
        prepared = self.prepare(self.x_train[:1])
        if not isinstance(prepared, Tensor):
            raise InputError(f"{self._owner}: prepare must return a tensor, got {type(prepared).__name__}.")
        if prepared.dtype != torch.float32 or prepared.shape != (1, *self.shape):
            raise InputError(
                f"{self._owner}: prepare must turn one row into float32 of shape {(1, *self.shape)}, got {prepared.dtype} of "
                f"shape {tuple(prepared.shape)}. Change prepare, or shape."
            )

    def unread(self, rows: Tensor) -> bool:
        """Whether there are rows among these that hold no example yet, because reading it raised an exception."""
        return self.reader is not None and bool(self.reader.is_unread(rows).any())

    def live(self, rows: Tensor) -> bool:
        """Whether there are rows among these that are read anew in every pass."""
        return self.reader is not None and self.reader.redrawn and bool(self.reader.is_live(rows).any())

    def read(self, rows: Tensor, seed: PublicSeed) -> tuple[Tensor, Tensor]:
        """Prepared inputs and targets of training examples; random transforms draw from `seed`."""
        x, y = self.x_train[rows], self.y_train[rows]
        if self.reader is not None and bool((live := self.reader.is_live(rows)).any()):
            x[live], y[live] = self.reader.read(rows[live], seed)
        return self.prepare(x), y

    @property
    def _owner(self) -> str:
        return f"data set '{self.name}'"

    def _check_examples(self, part: str, x: Tensor, y: Tensor) -> None:
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(
                f"{self._owner}: x_{part} and y_{part} must be torch tensors, got {type(x).__name__} and {type(y).__name__}. "
                "Convert them: torch.as_tensor(x)."
            )
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or not len(x):
            raise InputError(
                f"{self._owner}: x_{part} and y_{part} must have the same number of rows, and at least one, got shapes "
                f"{tuple(x.shape)} and {tuple(y.shape)}."
            )

    def _check_targets(self, part: str, y: Tensor) -> None:
        if self.task == "regression":
            if y.dtype != torch.float32 or y.shape[1:].numel() != self.outputs or not bool(y.isfinite().all()):
                raise InputError(
                    f"{self._owner}: y_{part} of a regression must be finite float32 with {self.outputs} numbers for each of "
                    f"its rows, got {y.dtype} of shape {tuple(y.shape)}. Convert it, or set outputs."
                )
            if y.shape[1:] != self.y_train.shape[1:]:
                raise InputError(
                    f"{self._owner}: rows of y_{part} have shape {tuple(y.shape[1:])}, those of y_train "
                    f"{tuple(self.y_train.shape[1:])}. Give both the shape of the model's outputs."
                )
            return
        if y.dtype != torch.int64 or y.ndim != 1:
            raise InputError(
                f"{self._owner}: y_{part} must be int64 classes of shape (rows,), got {y.dtype} of shape {tuple(y.shape)}. "
                "Convert it: y.to(torch.int64)."
            )
        if int(y.min()) < 0 or int(y.max()) >= self.outputs:
            raise InputError(
                f"{self._owner}: classes in y_{part} must be from 0 to outputs - 1 = {self.outputs - 1}, got {int(y.min())} "
                f"to {int(y.max())}. Count classes from 0, or set outputs."
            )


def hold_out(data: DataSet, fraction: float, seed: PublicSeed) -> DataSet:
    """The same data with a random `fraction` of the training examples in place of the test set.

    For choosing step sizes and the like: the test set is not part of what is returned.
    """
    if not isinstance(seed, PublicSeed):
        raise InputError(f"seed must be a PublicSeed, got {type(seed).__name__}. Write PublicSeed(7).")
    total = len(data.x_train)
    held = round(fraction * total) if isinstance(fraction, int | float) and 0 < fraction < 1 else 0
    if not 0 < held < total:
        raise InputError(
            f"cannot hold out a fraction of {fraction!r} of {total:,} training examples: at least one must be held out and at "
            "least one left to train on. Use a fraction between 0 and 1, such as 0.1."
        )
    if data.unread(torch.arange(total)):
        raise InputError(f"data set '{data.name}' holds examples that could not be read, so none of it can be held out.")
    outside = torch.zeros(total, dtype=torch.bool)
    outside[torch.from_numpy(draws.subset(seed.stream, dim=total, size=held).astype(np.int64))] = True
    return replace(
        data,
        x_train=data.x_train[~outside],
        y_train=data.y_train[~outside],
        x_test=data.x_train[outside],
        y_test=data.y_train[outside],
        groups=None if data.groups is None else data.groups[~outside],
        reader=None if data.reader is None else data.reader.of((~outside).nonzero()[:, 0]),
    )


def held_out_parts(parts: Sequence[Tensor], fraction: float, seed: PublicSeed) -> tuple[list[Tensor], list[Tensor]]:
    """Split each client's rows in two: those that are left to train on, and a random `fraction` that is held out.

    A client with two rows or more holds out one at least, and keeps one at least. A client with one row holds out none.

    >>> left, held = held_out_parts([torch.arange(10), torch.arange(10, 11)], 0.2, PublicSeed(7))
    >>> [len(rows) for rows in left], [len(rows) for rows in held]
    ([8, 1], [2, 0])
    """
    left, held = [], []
    for client, rows in enumerate(parts):
        outside = torch.zeros(len(rows), dtype=torch.bool)
        size = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        if size:
            chosen = draws.subset(seed.child("client", client).stream, dim=len(rows), size=size)
            outside[torch.from_numpy(chosen.astype(np.int64))] = True
        left.append(rows[~outside])
        held.append(rows[outside])
    return left, held
