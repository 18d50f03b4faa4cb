"""A client's examples of any kind, and the batches that are made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from sketchfed.data.generators import drawing_from
from sketchfed.data.reading import FIRST
from sketchfed.devices import moved
from sketchfed.errors import InputError, SketchfedError
from sketchfed.seeds import PublicSeed
from sketchfed.training.base import Examples, LocalWork, spans
from sketchfed.training.called import called_name

Collate = Callable[[list[Any]], Any]
"""A function that makes a batch of a list of examples, such as one that pads sequences to one length."""


_FOR_WORKERS = (
    "Workers of a DataLoader are processes of their own, which are sent a pickle of the Dataset. Define its class and "
    "functions at the top of a module, and open files in __getitem__. Or set num_workers = 0."
)
_FOR_BATCH_NORM = (
    "BatchNorm needs at least two examples in a batch, and this one has a single example, often the last of a pass. Use "
    "batches of another size (algorithm.batch), drop_last = True in a DataLoader, or nn.GroupNorm."
)


def advice_on(error: Exception) -> str | None:
    """What to change after an error of torch that does not say it: of worker processes, and of a batch of one example."""
    if "pickle" in f"{type(error).__name__}: {error}".lower():
        return _FOR_WORKERS
    return _FOR_BATCH_NORM if "Expected more than 1 value per channel" in str(error) else None


def check_gave(data: Any) -> None:
    """Raise `InputError` if data that is iterated gives nothing, or nothing any more."""
    if isinstance(data, Iterator):
        if next(data, None) is None:
            raise InputError(
                "the client's data gave no batch. It is an iterator, which can be read only once, and each round reads the "
                "data again. Give a list, a map-style Dataset or a DataLoader."
            )
    elif isinstance(data, DataLoader | IterableDataset):
        Stream(data).part(0, 1)


class Items:
    """Examples that are read one by one, from a list or a map-style Dataset. `collate` makes batches of them.

    Whatever is random in reading and collating draws from the seed that `read` is given.
    """

    def __init__(self, data: Any, collate: Collate, seed: PublicSeed = FIRST) -> None:
        self._data, self._collate, self._seed = data, collate, seed
        self.size = len(data)

    def read(self, rows: Tensor, seed: PublicSeed) -> "Items":
        """Some of the examples, read with transforms that draw from the seed."""
        with drawing_from(seed, self._data):
            return Items([self._item(row) for row in rows.tolist()], self._collate, seed)

    def _item(self, row: int) -> Any:
        try:
            return self._data[row]
        except SketchfedError:
            raise
        except Exception as error:
            found = f"example {row} cannot be read: {type(error).__name__}: {str(error).rstrip('.')}."
            if isinstance(error, IndexError | StopIteration):
                found = f"the data says that it has {self.size:,} examples, but {found} Correct __len__, or what is read."
            else:
                found += " Correct the data, or what reads it."
            raise InputError(found) from error

    def part(self, start: int, stop: int) -> "Items":
        """Some of the examples, which follow each other."""
        return self.read(torch.arange(start, min(stop, self.size)), self._seed)

    def content(self) -> Any:
        """All examples as one batch."""
        with drawing_from(self._seed.child("collate"), self._data, self._collate):
            items = [self._item(row) for row in range(self.size)]
            try:
                return self._collate(items)
            except SketchfedError:
                raise
            except Exception as error:
                name = called_name(self._collate, "collate")
                advice = (
                    "Pass collate, a function that makes a batch of a list of examples, such as one that pads them."
                    if self._collate is default_collate
                    else "Correct it."
                )
                raise InputError(
                    f"'{name}' cannot make a batch of {self.size} examples: {type(error).__name__}: "
                    f"{str(error).rstrip('.')}. {advice}"
                ) from error

    def chunks(self, most: int) -> Iterator["Items"]:
        """All examples in their order, at most this many at a time."""
        return (self.part(start, stop) for start, stop in spans(self.size, most))

    def batches(self, work: LocalWork, seed: PublicSeed) -> Iterator["Items"]:
        """The batches of a round's local work."""
        return _drawn(self, work, seed)


class Columns:
    """Examples in tensors, one in each row: a tensor, or a tuple or a dict of tensors. A batch has the same form."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self.size = _rows(content)

    def read(self, rows: Tensor, seed: PublicSeed) -> "Columns":
        """Some of the examples. The seed has no effect."""
        return Columns(mapped(lambda column: column[rows], self._content))

    def part(self, start: int, stop: int) -> "Columns":
        """Some of the examples, which follow each other."""
        return Columns(mapped(lambda column: column[start:stop], self._content))

    def content(self) -> Any:
        """All examples as one batch."""
        return self._content

    def chunks(self, most: int) -> Iterator["Columns"]:
        """All examples in their order, at most this many at a time."""
        return (self.part(start, stop) for start, stop in spans(self.size, most))

    def batches(self, work: LocalWork, seed: PublicSeed) -> Iterator["Columns"]:
        """The batches of a round's local work."""
        return _drawn(self, work, seed)


class Stream:
    """Batches as a DataLoader makes them. A pass over the data is an iteration, whose random draws come from a seed.

    An IterableDataset by itself has a DataLoader made for it, with batches of as many examples as are asked for.
    """

    def __init__(self, data: DataLoader[Any] | IterableDataset[Any], collate: Collate | None = None) -> None:
        self._loader, self._own = (data, True) if isinstance(data, DataLoader) else (_loader(data, 1, collate), False)
        self._collate = collate
        self.size, self._known = _length(self._loader.dataset)

    def _by(self, batch: int) -> "Stream":
        """The same stream in batches of this size, unless a loader of the user's own decides."""
        return self if self._own else Stream(_loader(self._loader.dataset, batch, self._collate))

    def read(self, rows: Tensor, seed: PublicSeed) -> Any:
        """Single examples cannot be chosen."""
        raise InputError(
            "single examples are needed here, and a DataLoader or an IterableDataset gives only a stream of them. Give a list, "
            "a map-style Dataset or tensors."
        )

    def part(self, start: int, stop: int) -> Any:
        """The first batch, to try a model on."""
        if start:
            return self.read(torch.arange(start, stop), FIRST)
        with drawing_from(FIRST, self._loader):
            return next(self._by(stop)._pass(whole=True))

    def content(self) -> Any:
        """All examples as one batch do not exist."""
        return self.read(torch.arange(self.size), FIRST)

    def chunks(self, most: int) -> Iterator["Ready"]:
        """All batches of a pass."""
        return self._by(most).batches(LocalWork(rate=1.0), FIRST)

    def batches(self, work: LocalWork, seed: PublicSeed) -> Iterator["Ready"]:
        """The batches of a round's local work. A loader decides what is in them."""
        if not self._own:
            yield from self._by(cut(work.batch)).batches(replace(work, batch=None), seed)
            return
        if work.batch is not None:
            raise InputError(
                f"algorithm.batch = {work.batch} has no effect, because a DataLoader makes its own batches. Remove it, and set "
                "the loader's batch_size."
            )
        left = work.steps
        for index in range(work.epochs if left is None else left):
            with drawing_from(seed.child("pass", index), self._loader):
                for batch in self._pass(whole=index == 0):
                    if left == 0:
                        return
                    yield batch
                    left = None if left is None else left - 1
            if left == 0:
                return

    def _pass(self, *, whole: bool) -> Iterator["Ready"]:
        """The batches of a pass. `whole` says whether it is the first one of a round."""
        count = 0
        for content in self._contents():
            count += 1
            yield Ready(content)
        if not count:
            raise InputError(f"the DataLoader gave no batch. {self._why(whole=whole)}")

    def _contents(self) -> Iterator[Any]:
        try:
            yield from self._loader
        except SketchfedError:
            raise
        except Exception as error:
            advice = advice_on(error) or "Correct the data, or what reads it."
            raise InputError(
                f"the DataLoader cannot be read: {type(error).__name__}: {str(error).rstrip('.')}. {advice}"
            ) from error

    def _why(self, *, whole: bool) -> str:
        if not whole:
            return "It is exhausted after one pass: its Dataset must begin anew each time it is iterated."
        if self._known and self._loader.drop_last and self.size < (self._loader.batch_size or 1):
            return (
                f"Its {self.size:,} examples are fewer than batch_size = {self._loader.batch_size}, and drop_last = True "
                "leaves out what does not fill a batch. Use a smaller batch_size, or drop_last = False."
            )
        if self._known:
            return "Its Dataset or its sampler is empty. Leave it out."
        return (
            "Its Dataset is empty, or can be iterated only once, as an iterator or a generator. Leave it out if it is empty. "
            "Otherwise let __iter__ begin anew each time."
        )


def cut(batch: int | None) -> int:
    """The size of batches of an IterableDataset. Raise `InputError` if nobody said it."""
    if batch is None:
        raise InputError(
            "an IterableDataset cannot be one batch, and nobody said how to cut it. Set algorithm.batch, or wrap it: "
            "DataLoader(dataset, batch_size=32)."
        )
    return batch


def _loader(data: Any, batch: int, collate: Collate | None) -> DataLoader[Any]:
    return DataLoader(data, batch_size=batch, collate_fn=collate)


class Placed:
    """Examples whose batches are moved to a device when they are asked for."""

    def __init__(self, examples: Any, device: torch.device) -> None:
        self._examples, self._device, self.size = examples, device, examples.size

    def content(self) -> Any:
        """All examples as one batch."""
        return moved(self._examples.content(), self._device)

    def part(self, start: int, stop: int) -> "Placed":
        """Some of the examples, which follow each other."""
        return Placed(self._examples.part(start, stop), self._device)


def placed(examples: Any, device: torch.device) -> Any:
    """Examples on a device. Those of any kind but tensors are moved batch by batch."""
    if device.type == "cpu":
        return examples
    if isinstance(examples, Examples):
        return Examples(examples.x.to(device), examples.y.to(device))
    return Placed(examples, device)


class Ready:
    """One batch as a loader made it."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self.size = _rows(content, least=1)

    def content(self) -> Any:
        """The batch."""
        return self._content

    def part(self, start: int, stop: int) -> "Ready":
        """Some of its examples. Only batches of tensors can be cut."""
        return Ready(mapped(lambda column: column[start:stop], self._content))


def examples_in(data: Any, collate: Collate | None = None, *, owner: str = "a client") -> Any:
    """A client's examples, from whatever holds them."""
    if isinstance(data, DataLoader):
        if collate is not None:
            raise InputError(f"{owner} has a DataLoader, which makes its own batches. Pass collate to the loader instead.")
        return Stream(data)
    if isinstance(data, IterableDataset):
        return Stream(data, collate)
    if type(data) is TensorDataset and collate is None:
        data = data.tensors
    if collate is None and _is_columns(data):
        return Columns(_checked_columns(data, owner))
    if isinstance(data, Iterator):
        raise InputError(
            f"{owner} holds {_an(data)}, which can be read only once, and each pass and each round read the data again. Give a "
            "list, a map-style Dataset or a DataLoader. A list of a generator is list(generator)."
        )
    if isinstance(data, str | bytes) or (
        not isinstance(data, Dataset | Sequence) and not (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
    ):
        raise InputError(
            f"{owner} holds {_an(data)}, which cannot be read item by item. Give a list, a map-style Dataset, a DataLoader, or "
            "tensors: one, a tuple or a dict of them."
        )
    if not length(data, owner):
        raise InputError(f"{owner} has no examples. Leave it out.")
    return Items(data, collate or default_collate)


def length(data: Any, owner: str) -> int:
    """The length of a list or a map-style Dataset. Raise `InputError` if it has none."""
    try:
        return len(data)
    except Exception as error:
        raise InputError(
            f"{owner} holds {_an(data)} whose length is not known: {type(error).__name__}: {error}. Give it a __len__ that "
            "returns the number of examples."
        ) from error


def _an(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A nested value with a function applied to each tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return type(value)({key: mapped(function, inner) for key, inner in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(function, inner) for inner in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(function, inner) for inner in value)
    return value


def _drawn(examples: Any, work: LocalWork, seed: PublicSeed) -> Iterator[Any]:
    order, slices = work.order(examples.size, seed)
    for step, (start, stop) in enumerate(slices):
        yield examples.read(order[start:stop], seed.child("transforms", step))


def _is_columns(data: Any) -> bool:
    if isinstance(data, Tensor | np.ndarray):
        return True
    parts = list(data.values()) if isinstance(data, Mapping) else list(data) if isinstance(data, tuple) else []
    return bool(parts) and all(isinstance(part, Tensor | np.ndarray) for part in parts)


def _checked_columns(data: Any, owner: str) -> Any:
    """The columns as tensors. Numbers of 64 bits in numpy arrays become float32, as models expect."""
    named = dict(data) if isinstance(data, Mapping) else data
    found = _tensors(named, owner)
    columns = list(found.values()) if isinstance(found, dict) else list(found) if isinstance(found, tuple) else [found]
    lengths = {len(column) if column.ndim else 0 for column in columns}
    if len(lengths) != 1 or 0 in lengths:
        shapes = ", ".join(str(tuple(column.shape)) for column in columns)
        raise InputError(f"{owner}: tensors hold an example in each row, so all have as many rows, one at least. Got {shapes}.")
    return found


def _tensors(data: Any, owner: str = "a client") -> Any:
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biufc":
            raise InputError(
                f"{owner} has a column of {data.dtype.name}, and a tensor holds numbers only. Turn texts and categories into "
                "numbers, or give a list of dicts and a collate function that does so."
            )
        return torch.as_tensor(data.astype(np.float32) if data.dtype == np.float64 else data)
    if isinstance(data, dict):
        return {key: _tensors(inner, owner) for key, inner in data.items()}
    if isinstance(data, Tensor):
        return data.cpu()  # batches are chosen there, and moved one by one
    return tuple(_tensors(inner, owner) for inner in data) if isinstance(data, tuple) else data


def _rows(content: Any, *, least: int = 0) -> int:
    """The number of rows of the first tensor."""
    found: list[int] = []
    mapped(lambda column: found.append(len(column) if column.ndim else 1) or column, content)  # type: ignore[func-returns-value]
    if not found and isinstance(content, Mapping):  # such as the encodings of a tokenizer
        return _rows(dict(content), least=least)
    return max(least, found[0]) if found else least


def _length(dataset: Any) -> tuple[int, bool]:
    """The number of examples, 1 if nobody can tell, and whether it is known."""
    try:
        return max(1, len(dataset)), True
    except Exception:  # of a Dataset of the user's own
        return 1, False
