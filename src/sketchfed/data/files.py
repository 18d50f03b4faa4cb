"""Reading data sets from files that somebody else wrote: nothing is trusted, nothing is unpickled."""

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, from_numpy

from sketchfed.errors import InputError

VARIABLE = "SKETCHFED_DATA"

AnyArray = npt.NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Where a data set comes from: what an error tells somebody who does not have it."""

    name: str
    file: str
    published: str
    contents: str
    also: str = ""

    def path(self) -> Path | None:
        """The file in the folder that SKETCHFED_DATA names, if it is there."""
        folder = os.environ.get(VARIABLE)
        path = Path(folder) / self.file if folder else None
        return path if path and path.exists() else None

    def found(self) -> Path:
        path = self.path()
        if path is None:
            raise InputError(self._missing()).telling(f"data set '{self.name}' is not here.")
        return path

    def _missing(self) -> str:
        folder = os.environ.get(VARIABLE)
        where = (
            f"in {folder}, the folder that {VARIABLE} names"
            if folder
            else f"but {VARIABLE}, which names its folder, is not set"
        )
        return (
            f"data set '{self.name}' is not here: looked for {self.file} {where}{self.also}. It is {self.published}. Save it "
            f"as {self.file} with {self.contents}, and set {VARIABLE} to its folder. The data set 'digits' needs no file."
        )

    def wrong(self, path: Path, why: str) -> InputError:
        return InputError(
            f"data set '{self.name}': {path} {why}. It should be {self.published}, with {self.contents}. Get or write it anew."
        ).telling(f"the file of data set '{self.name}' is damaged here.")


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What an array of a file must be: integers from `low` to `high`, or finite floats, of a shape.

    A word in `shape` stands for any positive length, the same wherever that word stands. `kind` is what the array
    is read as; a file may hold any other integer type, or float type, whose values fit.
    """

    kind: npt.DTypeLike
    shape: tuple[int | str, ...]
    low: int = 0
    high: int = 255

    def __str__(self) -> str:
        lengths = ", ".join(str(length) for length in self.shape) + ("," if len(self.shape) == 1 else "")
        floats = np.dtype(self.kind).kind == "f"
        return f"({lengths}) of " + ("finite floats" if floats else f"integers from {self.low} to {self.high}")

    def complaint(self, array: AnyArray, lengths: dict[str, int]) -> str:
        """What is wrong with an array, or nothing. Notes in `lengths` what the words of the shape stand for."""
        floats = np.dtype(self.kind).kind == "f"
        fits = array.dtype.kind in ("f" if floats else "iu") and array.ndim == len(self.shape) and array.size > 0
        if not fits or any(
            (lengths.setdefault(wanted, length) if isinstance(wanted, str) else wanted) != length
            for wanted, length in zip(self.shape, array.shape, strict=True)
        ):
            known = "".join(f", {word} = {length:,}" for word, length in lengths.items())
            return f"should be {self}{known}, but is {array.dtype} of shape {array.shape}"
        if floats:
            return "" if np.isfinite(array).all() else f"should be {self}, but has values that are NaN or infinite"
        least, most = int(array.min()), int(array.max())
        return "" if self.low <= least and most <= self.high else f"should be {self}, but has {least} to {most}"


def described(arrays: dict[str, Numbers]) -> str:
    """A sentence's worth of what the arrays of a file must be."""
    return "the NumPy arrays " + ", ".join(f"{key} {numbers}" for key, numbers in arrays.items())


def read_arrays(source: DataSource, arrays: dict[str, Numbers]) -> dict[str, AnyArray]:
    """The named arrays of a `.npz` file, each checked against what it must be."""
    path = source.found()

    def read() -> dict[str, AnyArray]:
        with path.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array and no names, as numpy.save writes it; use numpy.savez")
            with content:
                return {key: content[key] for key in arrays if key in content.files}

    return checked(source, path, attempt(source, path, read), arrays)


def checked(source: DataSource, path: Path, content: dict[str, AnyArray], arrays: dict[str, Numbers]) -> dict[str, AnyArray]:
    """Arrays as the types that were asked for, after checking that all are there and what they must be."""
    missing = [key for key in arrays if key not in content]
    if missing:
        raise source.wrong(path, f"lacks {', '.join(missing)}")
    lengths: dict[str, int] = {}
    for key, numbers in arrays.items():
        if complaint := numbers.complaint(content[key], lengths):
            raise source.wrong(path, f"is not usable: {key} {complaint}")
    return {key: content[key].astype(numbers.kind, copy=False) for key, numbers in arrays.items()}


def read_text(source: DataSource) -> str:
    """The text of a file compressed with gzip."""
    path = source.found()
    return attempt(source, path, lambda: gzip.decompress(path.read_bytes()).decode("ascii"))


def read_idx(source: DataSource, path: Path) -> AnyArray:
    """The bytes of an IDX file compressed with gzip, in their shape (the format of the MNIST database)."""

    def read() -> AnyArray:
        content = gzip.decompress(path.read_bytes())
        if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
            raise ValueError("it does not begin like an IDX file of bytes")
        shape = np.frombuffer(content, ">u4", content[3], 4).astype(np.int64)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape).copy()

    return attempt(source, path, read)


def attempt(source: DataSource, path: Path, read: Callable[[], T]) -> T:
    """What `read` returns; whatever it raises becomes one kind of error."""
    try:
        return read()
    except Exception as error:  # zipfile, gzip and numpy have a dozen kinds for broken files
        raise source.wrong(path, f"cannot be read ({type(error).__name__}: {error})") from error


def tensor(array: AnyArray) -> Tensor:
    return from_numpy(np.ascontiguousarray(array))
