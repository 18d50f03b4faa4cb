"""What a client keeps between the rounds in which it takes part."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training.pull import Pull

_OWED, _KEPT, _FORM = "memory", "kept.", "kept"
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, kw_only=True)
class ClientMemory:
    """What a client keeps until it takes part again. It never leaves the client."""

    owed: Tensor | None = None
    """What the algorithm keeps. With error feedback, this is what the client still owes to the server."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What training keeps, by name: tensors, numbers, texts, and lists and dicts of these."""

    def __bool__(self) -> bool:
        return self.owed is not None or bool(self.kept)

    def to_tensors(self) -> dict[str, Tensor]:
        """The memory as named tensors, to be saved. Raises `InputError` if something cannot be kept."""
        tensors = {} if self.owed is None else {_OWED: self.owed.contiguous()}
        if self.kept:
            found: list[Tensor] = []
            form = json.dumps(_apart(dict(self.kept), found, "kept")).encode()
            tensors |= {_FORM: torch.frombuffer(bytearray(form), dtype=torch.uint8)}
            tensors |= {f"{_KEPT}{place}": tensor for place, tensor in enumerate(found)}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClientMemory":
        """Rebuild a memory. Raises KeyError, TypeError or ValueError if the tensors are not one."""
        kept = {}
        if _FORM in tensors:
            kept = _together(json.loads(tensors[_FORM].numpy().tobytes()), tensors)
            if not isinstance(kept, dict):
                raise ValueError(f"what training kept must be named, got {type(kept).__name__}")
        return cls(owed=tensors.get(_OWED), kept=kept)

    def copy(self) -> "ClientMemory":
        """The same memory, in which what training kept has tensors of its own. Training may change them."""
        if not self.kept:
            return self
        kept = ClientMemory(kept=self.kept).to_tensors()
        return replace(self, kept=ClientMemory.from_tensors(kept).kept)


@dataclass
class Turn:
    """One client's turn in one round: what its training depends on besides weights, examples and settings."""

    seed: PublicSeed
    """The seed of the client's batches, transforms and dropout in this round."""
    round: int = 0
    """The number of completed rounds."""
    client: int = 0
    kept: dict[str, Any] = field(default_factory=dict)
    """What training kept when this client last took part. Training may change it."""
    pull: Pull = field(default_factory=Pull)
    """What is added to the gradient of each local step."""


def _apart(value: Any, found: list[Tensor], place: str) -> Any:
    """Take the tensors out of a value. What is left can be written as JSON."""
    if isinstance(value, Tensor):
        if value.is_sparse or value.is_quantized or value.device.type == "meta":
            raise InputError(f"{place} is a {value.layout} tensor on {value.device}, and only dense ones are kept. Convert it.")
        found.append(value.detach().cpu().contiguous().clone())
        return {"tensor": len(found) - 1}
    if isinstance(value, Mapping):
        return {"dict": [[_key(key, place), _apart(item, found, f"{place}[{key!r}]")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_apart(item, found, f"{place}[{index}]") for index, item in enumerate(value)]}
    if type(value) not in _PLAIN:
        raise InputError(
            f"{place} is a {type(value).__name__}, and a client keeps tensors, numbers, texts, and lists and dicts of these. "
            "Keep what describes it, such as its state_dict()."
        )
    return value


def _key(key: object, place: str) -> object:
    if type(key) not in (str, int):
        raise InputError(f"{place} has the key {key!r}, and keys are texts or integers. Rename it.")
    return key


def _together(form: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(form, dict):
        return form
    [(kind, content)] = form.items()
    if kind == "tensor":
        return tensors[f"{_KEPT}{content}"]
    if kind == "dict":
        return {key: _together(item, tensors) for key, item in content}
    items = [_together(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
