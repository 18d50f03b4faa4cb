"""One data set from what each client holds: tensors, or torch Datasets."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sketchfed.data.dataset import DataSet
from sketchfed.data.reading import FIRST, Conformed, Pair, Reader, length, randomness, read
from sketchfed.errors import InputError, SketchfedError, reason
from sketchfed.seeds import PublicSeed

log = logging.getLogger("sketchfed")

OwnData = tuple[Tensor, Tensor] | Dataset[Any]
"""A pair of tensors `(x, y)` with an example a row, or a map-style torch Dataset of such pairs."""


def from_clients(
    clients: Sequence[OwnData],
    *,
    test: OwnData,
    task: Literal["classification", "regression"] = "classification",
    outputs: int | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
    name: str = "clients",
    redraw: bool | None = None,
) -> tuple[DataSet, list[Tensor]]:
    """One data set from what each client holds, and which of its training examples are whose.

    Everybody's `x` must agree in type and in shape but for the number of rows. `prepare` converts to float32 unless given.
    `outputs` is the number of classes seen, or of numbers in a row of `y`, unless given. Targets of a regression keep their
    shape, which must be that of the model's outputs. `groups` are the clients, so the partition 'natural' gives the same
    lists.

    Datasets are read once, unless their transforms are random: then they are read anew in every pass of local training.
    `redraw` says so (True) or forbids it (False); by default some items are read several times to find out. The test data is
    always read once.
    """
    if not clients:
        raise InputError("from_clients needs at least one client, got none.")
    pairs, unread = _read_clients(clients, task)
    x_test, y_test = _read_test(test, task)
    sizes = [length(clients[number], f"client {number}") if pair is None else len(pair[0]) for number, pair in enumerate(pairs)]  # type: ignore[arg-type]
    x_train, y_train = (torch.cat(rows) for rows in zip(*_filled(pairs, sizes), strict=True))
    ready = prepare or _as_float
    if outputs is None:
        outputs = y_train.shape[1:].numel() if task == "regression" else 1 + max(int(y_train.max()), int(y_test.max()))
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
        reader=_reader(clients, pairs, unread, sizes, _conformed(x_train, y_train, task), redraw),
    )
    return data, list(torch.split(torch.arange(len(x_train)), sizes))


def _read_clients(clients: Sequence[OwnData], task: str) -> tuple[list[Pair | None], frozenset[int]]:
    """What each client holds, all of one type and shape, and whose Dataset raised an exception instead."""
    pairs: list[Pair | None] = []
    raised: dict[int, Exception] = {}
    for number, client in enumerate(clients):
        try:
            pairs.append(_pair(client, f"client {number}", task, FIRST.child("client", number)))
        except SketchfedError:
            raise
        except Exception as error:  # of the client's own Dataset
            pairs.append(None)
            raised[number] = error
    found = [(number, pair) for number, pair in enumerate(pairs) if pair is not None]
    if not found:
        raise InputError(
            f"no client's Dataset can be read: for client 0 {reason(raised[0])}. Correct the Dataset, or what it reads."
        ) from raised[0]
    for number, raising in raised.items():
        log.warning("client %d cannot be read, so rounds will go on without it: %s", number, reason(raising))
    first = found[0][0]
    for number, pair in found:
        _check_alike(number, pair, first, found[0][1])
    return pairs, frozenset(raised)


def _check_alike(number: int, pair: Pair, first: int, wanted: Pair) -> None:
    for which, own, other in zip("xy", pair, wanted, strict=True):
        if own.dtype != other.dtype or own.shape[1:] != other.shape[1:]:
            raise InputError(
                f"client {number}: {which} has rows of {own.dtype} and shape {tuple(own.shape[1:])}, client {first} has "
                f"{other.dtype} and {tuple(other.shape[1:])}. Bring all clients to one type and shape."
            )


def _read_test(test: OwnData, task: str) -> Pair:
    try:
        return _pair(test, "test", task, FIRST.child("test"))
    except SketchfedError:
        raise
    except Exception as error:
        raise InputError(f"the test data cannot be read: {reason(error)}. Correct the Dataset, or what it reads.") from error


def _filled(pairs: Sequence[Pair | None], sizes: Sequence[int]) -> list[Pair]:
    """The pairs, with zeros for those that could not be read."""
    x, y = next(pair for pair in pairs if pair is not None)
    blank = [(x.new_zeros(size, *x.shape[1:]), y.new_zeros(size, *y.shape[1:])) for size in sizes]
    return [pair or blank[number] for number, pair in enumerate(pairs)]


def _conformed(x_train: Tensor, y_train: Tensor, task: str) -> Conformed:
    def conformed(pair: Pair) -> Pair:
        x, y = _typed(pair, "a Dataset", task)
        for which, own, first in (("x", x, x_train), ("y", y, y_train)):
            if own.dtype != first.dtype or own.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"a Dataset returned {which} of {own.dtype} and shape {tuple(own.shape[1:])}, and at first {first.dtype} "
                    f"and {tuple(first.shape[1:])}. Every reading must have one type and shape."
                )
        return x, y

    return conformed


def _reader(
    clients: Sequence[OwnData],
    pairs: Sequence[Pair | None],
    unread: frozenset[int],
    sizes: Sequence[int],
    conformed: Conformed,
    redraw: bool | None,
) -> Reader | None:
    """What reads Datasets again, if that is needed."""
    sources = [client if isinstance(client, Dataset) else None for client in clients]
    repeatable = True
    if redraw is None:
        sound = [(source, pair) for source, pair in zip(sources, pairs, strict=True) if source is not None and pair is not None]
        found = randomness([source for source, _ in sound], [pair for _, pair in sound], conformed)
        repeatable = found != "own"
        if not repeatable:
            log.warning(
                "the clients' Datasets draw from generators of their own that cannot be found, so this run cannot be repeated "
                "bit for bit. Draw from the global generator of torch, numpy or random, or from an attribute of the "
                "Dataset, which are seeded for every batch, or write redraw=False."
            )
        redraw = found != "none"
    if not redraw and not unread:
        return None
    ends = torch.tensor(sizes).cumsum(0)
    return Reader(sources=sources, ends=ends, redrawn=redraw, unread=unread, conformed=conformed, repeatable=repeatable)


def _as_float(x: Tensor) -> Tensor:
    return x.to(torch.float32)


def _pair(examples: OwnData, owner: str, task: str, seed: PublicSeed) -> Pair:
    """A client's examples as two tensors of at least one row; the transforms of a Dataset draw from `seed`."""
    if isinstance(examples, Dataset):
        return _typed(read(examples, range(length(examples, owner)), seed), owner, task)
    return _typed(examples, owner, task)


def _typed(examples: object, owner: str, task: str) -> Pair:
    """Two tensors of at least one row, on the CPU; targets as int64, or float32 of any shape for regression."""
    if not (isinstance(examples, tuple | list) and len(examples) == 2 and all(isinstance(part, Tensor) for part in examples)):
        raise InputError(f"{owner} must be a pair of tensors (x, y) or a torch Dataset of such pairs, got {_kind(examples)}.")
    x, y = (part.cpu() for part in examples)
    if x.is_complex():
        raise InputError(
            f"{owner}: inputs must be real numbers, got {x.dtype}. Give real and imaginary parts: torch.view_as_real."
        )
    if not x.ndim or not y.ndim or len(x) != len(y) or not len(x):
        raise InputError(
            f"{owner}: x and y must have the same number of rows, and at least one, got shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}. Leave out clients without examples."
        )
    if task == "regression":
        return x, y.to(torch.float32)
    if y.is_floating_point() or y.is_complex():
        raise InputError(
            f"{owner}: classes must be integers, got {y.dtype}. Convert them. If they are numbers, set task='regression'. If "
            "several labels apply to an example, set loss='binary_cross_entropy'."
        )
    return x, y.to(torch.int64)


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
