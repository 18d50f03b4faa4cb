"""One data set from what each client holds: tensors, or torch Datasets."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from sketchfed.data.dataset import DataSet
from sketchfed.data.reading import FIRST, Conformed, Pair, Reader, length, randomness, read
from sketchfed.errors import InputError, SketchfedError, reason
from sketchfed.seeds import PublicSeed

log = logging.getLogger("sketchfed")


class _TypeOfTargetsError(InputError):
    """Targets of a type that classes cannot have."""


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
    classes: Callable[[Tensor], int | None] | None = None,
) -> tuple[DataSet, list[Tensor]]:
    """One data set from what each client holds, and which of its training examples are whose.

    Everybody's `x` must agree in type and in shape but for the number of rows. `prepare` converts to float32 unless given.
    `outputs` is the number of classes seen, or of numbers in a row of `y`, unless given. Targets of a regression keep their
    shape, which must be that of the model's outputs. `groups` are the clients, so the partition 'natural' gives the same
    lists.

    Datasets are read once, unless their transforms are random: then they are read anew in every pass of local training.
    `redraw` says so (True) or forbids it (False); by default some items are read several times to find out. The test data is
    always read once.

    If fewer than half of the clients cannot be read, or do not fit the others, training goes on without them. `classes` tells
    from an example how many classes the model has. It is asked only if some client has more of them than the test data.
    """
    if not clients:
        raise InputError("from_clients needs at least one client, got none.")
    pairs, faults = _read_clients(clients, task)
    x_test, y_test = _read_test(test, task)
    faults |= _faulty_targets(pairs, y_test, task, classes)
    _check_few(faults, len(clients))
    read = [None if number in faults else pair for number, pair in enumerate(pairs)]
    sizes = [_size(clients[number], f"client {number}") if pair is None else len(pair[0]) for number, pair in enumerate(pairs)]
    x_train, y_train = (torch.cat(rows) for rows in zip(*_filled(read, sizes), strict=True))
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
        reader=_reader(_sources(clients, faults), read, frozenset(faults), sizes, _conformed(x_train, y_train, task), redraw),
    )
    return data, list(torch.split(torch.arange(len(x_train)), sizes))


def _read_clients(clients: Sequence[OwnData], task: str) -> tuple[list[Pair | None], dict[int, Exception]]:
    """What each client holds, and what is wrong with those that cannot be read or have another form than most."""
    pairs: list[Pair | None] = []
    faults: dict[int, Exception] = {}
    for number, client in enumerate(clients):
        try:
            pairs.append(_pair(client, f"client {number}", task, FIRST.child("client", number)))
        except _TypeOfTargetsError as error:
            pairs.append(None)
            faults[number] = error
        except SketchfedError:
            raise
        except Exception as error:  # of the client's own Dataset
            pairs.append(None)
            faults[number] = error
    found = {number: pair for number, pair in enumerate(pairs) if pair is not None}
    if not found:
        if isinstance(faults[0], SketchfedError):
            raise faults[0]
        raise InputError(
            f"no client's Dataset can be read: for client 0 {reason(faults[0])}. Correct the Dataset, or what it reads."
        ) from faults[0]
    usual, _ = Counter(map(_form, found.values())).most_common(1)[0]
    first = next(number for number, pair in found.items() if _form(pair) == usual)
    return pairs, faults | {
        number: _unlike(number, pair, first, found[first]) for number, pair in found.items() if _form(pair) != usual
    }


def _form(pair: Pair) -> tuple[object, ...]:
    """The types and shapes of a client's examples."""
    return tuple((part.dtype, part.shape[1:]) for part in pair)


def _unlike(number: int, pair: Pair, first: int, wanted: Pair) -> InputError:
    which, own, other = next(
        (which, own, other)
        for which, own, other in zip("xy", pair, wanted, strict=True)
        if (own.dtype, own.shape[1:]) != (other.dtype, other.shape[1:])
    )
    return InputError(
        f"client {number}: {which} has rows of {own.dtype} and shape {tuple(own.shape[1:])}, client {first} has {other.dtype} "
        f"and {tuple(other.shape[1:])}. Bring all clients to one type and shape."
    )


def _faulty_targets(
    pairs: Sequence[Pair | None], y_test: Tensor, task: str, classes: Callable[[Tensor], int | None] | None
) -> dict[int, Exception]:
    """Clients whose targets cannot be learnt: numbers that are not finite, or classes that the model does not have."""
    found = [(number, x, y) for number, (x, y) in ((n, pair) for n, pair in enumerate(pairs) if pair is not None)]
    if task == "regression":
        said = "client {}: the targets are not all finite. Correct them, or leave out examples without a target."
        return {number: InputError(said.format(number)) for number, _, y in found if not bool(y.isfinite().all())}
    doubtful = [number for number, _, y in found if y.ndim == 1 and (int(y.min()) < 0 or int(y.max()) > int(y_test.max()))]
    if not doubtful:
        return {}
    known = None if classes is None else classes(found[0][1][:1])
    if known is not None and 2 * sum(int(y.max()) >= known for _, _, y in found) >= len(found):
        known = None  # the model is at fault, which is said elsewhere
    wrong: dict[int, Exception] = {}
    for number in doubtful:
        _, y = pairs[number]  # type: ignore[misc]
        low, high = int(y.min()), int(y.max())
        if low < 0 or (known is not None and high >= known):
            has = "" if known is None else f", and the model has outputs for {known:,}"
            wrong[number] = InputError(
                f"client {number} has classes from {low} to {high}{has}. Count classes from 0, or give the model's last "
                "layer more outputs."
            )
    return wrong


def _check_few(faults: Mapping[int, Exception], clients: int) -> None:
    """Go on without faulty clients if they are few. Clients whose Dataset raised are tried again in each round."""
    wrong = {number: error for number, error in faults.items() if isinstance(error, SketchfedError)}
    if 2 * len(wrong) >= clients:
        more = f" So it is with {len(wrong):,} of {clients:,} clients." if len(wrong) > 1 else ""
        first = next(iter(wrong.values()))
        raise InputError(f"{first}{more}") from first
    for number, error in faults.items():
        how = "does not fit" if number in wrong else "cannot be read"
        log.warning("client %d %s, so rounds will go on without it: %s", number, how, reason(error))


class _Faulty(Dataset[Any]):
    """In place of a client's data, what is wrong with it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, index: int) -> Any:
        raise self._error


def _sources(clients: Sequence[OwnData], faults: Mapping[int, Exception]) -> list[Dataset[Any] | None]:
    """What clients are read from again. A Dataset that raised an exception of its own may do better later."""
    own = [client if isinstance(client, Dataset) else None for client in clients]
    return [_Faulty(faults[place]) if isinstance(faults.get(place), SketchfedError) else each for place, each in enumerate(own)]


def _size(client: Any, owner: str) -> int:
    return length(client, owner) if isinstance(client, Dataset) else len(client[0])


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
    sources: Sequence[Dataset[Any] | None],
    pairs: Sequence[Pair | None],
    unread: frozenset[int],
    sizes: Sequence[int],
    conformed: Conformed,
    redraw: bool | None,
) -> Reader | None:
    """What reads Datasets again, if that is needed."""
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
        raise _TypeOfTargetsError(
            f"{owner}: classes must be integers, got {y.dtype}. Convert them. If they are numbers, set task='regression'. If "
            "several labels apply to an example, set loss='binary_cross_entropy'."
        )
    return x, y.to(torch.int64)


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__
