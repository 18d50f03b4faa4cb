"""What a data set is, and two ways to make one from what is there: holding out, and joining clients' own data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.kernels import draws
from sketchfed.seeds import PublicSeed

TASKS = ("classification", "regression")


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Training and test examples as they are stored, and how to prepare them for a model.

    `x_train` and `x_test` hold an example a row, in whatever type is compact; `prepare` turns any of their rows into
    float32 `(rows, *shape)`. `y_train` and `y_test` are int64 classes from 0 to `outputs` - 1, or float32 `(rows, outputs)`
    for regression. `groups` says to whom each training example belongs by nature, a speaker or a user, as int64.
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
            if y.dtype != torch.float32 or y.shape[1:] != (self.outputs,) or not bool(y.isfinite().all()):
                raise InputError(
                    f"{self._owner}: y_{part} of a regression must be finite float32 of shape (rows, {self.outputs}), got "
                    f"{y.dtype} of shape {tuple(y.shape)}. Convert it, or set outputs."
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
    outside = torch.zeros(total, dtype=torch.bool)
    outside[torch.from_numpy(draws.subset(seed.stream, dim=total, size=held).astype(np.int64))] = True
    return replace(
        data,
        x_train=data.x_train[~outside],
        y_train=data.y_train[~outside],
        x_test=data.x_train[outside],
        y_test=data.y_train[outside],
        groups=None if data.groups is None else data.groups[~outside],
    )


Examples = tuple[Tensor, Tensor] | Dataset[Any]
"""A pair of tensors `(x, y)` with an example a row, or a map-style torch Dataset of such pairs."""


def from_clients(
    clients: Sequence[Examples],
    *,
    test: Examples,
    task: Literal["classification", "regression"] = "classification",
    outputs: int | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
    name: str = "clients",
) -> tuple[DataSet, list[Tensor]]:
    """One data set from what each client holds, and which of its training examples are whose.

    Everybody's `x` must agree in type and in shape but for the number of rows. `prepare` converts to float32 unless given.
    `outputs` is the number of classes seen, or of columns of `y`, unless given. `groups` are the clients, so the partition
    'natural' gives the same lists.
    """
    if not clients:
        raise InputError("from_clients needs at least one client, got none.")
    pairs = [_pair(client, f"client {number}", task) for number, client in enumerate(clients)]
    x_test, y_test = _pair(test, "test", task)
    for number, (x, y) in enumerate(pairs):
        for which, own, first in (("x", x, pairs[0][0]), ("y", y, pairs[0][1])):
            if own.dtype != first.dtype or own.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"client {number}: {which} has rows of {own.dtype} and shape {tuple(own.shape[1:])}, client 0 has "
                    f"{first.dtype} and {tuple(first.shape[1:])}. Bring all clients to one type and shape."
                )
    x_train, y_train = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    sizes = [len(x) for x, _ in pairs]
    ready = prepare or _as_float
    if outputs is None:
        outputs = y_train.shape[1] if task == "regression" else 1 + max(int(y_train.max()), int(y_test.max()))
    data = DataSet(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        task=task,
        outputs=outputs,
        shape=tuple(ready(x_train[:1]).shape[1:]),
        groups=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        prepare=ready,
    )
    return data, list(torch.split(torch.arange(len(x_train)), sizes))


def _as_float(x: Tensor) -> Tensor:
    return x.to(torch.float32)


def _pair(examples: Examples, owner: str, task: str) -> tuple[Tensor, Tensor]:
    """A client's examples as two tensors of at least one row; targets as int64, or float32 with columns for regression."""
    if isinstance(examples, Dataset):
        rows = len(examples)  # type: ignore[arg-type]
        if not rows:
            raise InputError(f"{owner} has no examples. Leave it out.")
        examples = tuple(default_collate([examples[i] for i in range(rows)]))
    if not (isinstance(examples, tuple | list) and len(examples) == 2 and all(isinstance(part, Tensor) for part in examples)):
        raise InputError(f"{owner} must be a pair of tensors (x, y) or a torch Dataset of such pairs, got {_kind(examples)}.")
    x, y = examples
    if not x.ndim or not y.ndim or len(x) != len(y) or not len(x):
        raise InputError(
            f"{owner}: x and y must have the same number of rows, and at least one, got shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}. Leave out clients without examples."
        )
    if task == "regression":
        return x, y.to(torch.float32).reshape(len(y), -1)
    if y.is_floating_point() or y.is_complex():
        raise InputError(f"{owner}: classes must be integers, got {y.dtype}. Convert them, or set task='regression'.")
    return x, y.to(torch.int64)


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
