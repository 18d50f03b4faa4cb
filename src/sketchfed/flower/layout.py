"""Converts the arrays of a user's app to one vector, and back."""

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from sketchfed.errors import InputError, WireError

_NUMBERS = "fiub"
"""What numpy calls types of numbers. Texts have types of any length, so an array of them may be of any size."""
_MOST_FIXED = 10_000
"""The largest amount of numbers that are not trained. They are sent once, as text."""


@dataclass(frozen=True, kw_only=True)
class ArrayLayout:
    """The arrays of an app's model, and the other arguments of its functions.

    Arrays of floating-point numbers are parts of one float32 vector, in their order: parameters and, for instance, running
    means. Others, such as counters, keep their first values.
    """

    arrays: list[tuple[str, str, list[int]]]
    """Name, numpy type and shape."""
    fixed: dict[str, list[Any]]
    """The values of arrays that are not floating-point, flat."""
    arrays_key: str = "arrays"
    config_key: str = "config"
    train_config: dict[str, Any]
    evaluate_config: dict[str, Any]
    run: str = ""
    """The digest of the run configuration that the apps of all clients must have, where anything is hidden from the server."""

    @classmethod
    def of(cls, record: ArrayRecord, **others: Any) -> "ArrayLayout":
        arrays = {name: array.numpy() for name, array in record.items()}
        fixed = {name: array.reshape(-1).tolist() for name, array in arrays.items() if array.dtype.kind != "f"}
        if any(array.dtype.kind not in _NUMBERS for array in arrays.values()):
            raise InputError(f"arrays of numbers can be sent, {_kinds(arrays)} arrived. Leave the others out of the record.")
        if sum(map(len, fixed.values())) > _MOST_FIXED:
            raise InputError(f"{', '.join(fixed)} are not of floating-point numbers, so they are not trained, and too long.")
        described = [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]
        if len(fixed) == len(arrays):
            raise InputError("the record holds no array of floating-point numbers, so there is nothing to train.")
        return cls(arrays=described, fixed=fixed, **others)

    def check_sketchable(self) -> None:
        """Refuse arrays that must not get the errors of a sketch or of noise."""
        running = [name for name, _, _ in self.arrays if name.endswith(("running_var", "running_mean"))]
        if running:
            raise InputError(
                f"'{running[0]}' is a running statistic of batch normalisation, and one that comes back with errors on it may "
                "be a negative variance. Use group or layer normalisation, or leave such arrays out of the record."
            )

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "ArrayLayout":
        try:
            read = json.loads(text)
            layout = cls(
                **{**read, "arrays": [(str(name), str(kind), [int(n) for n in shape]) for name, kind, shape in read["arrays"]]}
            )
            for _, kind, shape in layout.arrays:
                if np.dtype(kind).kind not in _NUMBERS or min(shape, default=0) < 0:
                    raise ValueError(f"type {kind[:20]!r} and shape {shape} are not those of numbers")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise WireError(
                f"the run does not say what arrays its model has: {error}. Use the strategy of sketchfed.flower."
            ) from None
        return layout

    @cached_property
    def dim(self) -> int:
        return sum(math.prod(shape) for name, _, shape in self.arrays if name not in self.fixed)

    def flat(self, record: ArrayRecord) -> Tensor:
        """Convert a record with this layout to a vector."""
        found = [(name, tuple(array.shape)) for name, array in record.items()]
        wanted = [(name, tuple(shape)) for name, _, shape in self.arrays]
        if found != wanted:
            raise WireError(
                f"the app returned arrays {found[:3]}..., and the model has {wanted[:3]}...: return all of them, as given."
            )
        parts = [record[name].numpy() for name, _, _ in self.arrays if name not in self.fixed]
        return torch.from_numpy(np.concatenate([part.astype(np.float32).reshape(-1) for part in parts]))

    def record(self, flat: Tensor) -> ArrayRecord:
        """Convert a vector to a record."""
        values, at, arrays = flat.numpy(), 0, {}
        for name, kind, shape in self.arrays:
            if name in self.fixed:
                part = np.array(self.fixed[name])
            else:
                part = values[at : at + math.prod(shape)]
                at += math.prod(shape)
            arrays[name] = Array(np.array(part.astype(kind).reshape(shape), order="C"))
        return ArrayRecord(arrays)


def _kinds(arrays: dict[str, Any]) -> str:
    return ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
