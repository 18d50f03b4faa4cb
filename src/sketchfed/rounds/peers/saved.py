"""What nodes hold, as it is saved: tensors that several names share once, and checks before a node continues from them."""

import json
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.algorithms.replicas import from_tensors

_LAST = 2**62
_SHARED = "shared"


def once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share their memory only once. `_SHARED` names the others, each with the name of the first."""
    first: dict[tuple[int, int], str] = {}
    shared = {name: first.setdefault((each.data_ptr(), each.numel()), name) for name, each in tensors.items() if each.numel()}
    others = {name: source for name, source in shared.items() if name != source}
    names = torch.frombuffer(bytearray(json.dumps(others).encode()), dtype=torch.uint8)
    return {name: each for name, each in tensors.items() if name not in others} | {_SHARED: names}


def everywhere(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `once` was given."""
    others = json.loads(tensors[_SHARED].numpy().tobytes())
    if not isinstance(others, dict):
        raise TypeError("it does not say which tensors are shared")
    named = {name: tensor for name, tensor in tensors.items() if name != _SHARED}
    return {**named, **{name: tensors[source] for name, source in others.items()}}


def needed_by(nodes: Collection[int], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with which a group of some nodes can be restored, out of those of all nodes.

    A node may hold the same estimate of a neighbour as the neighbour itself, which is saved with the neighbour.
    """
    kept = {name: tensor for name, tensor in tensors.items() if int(name.partition(".")[0]) in nodes}
    others = {parts[2] for name in kept if (parts := name.split("."))[1] == "copy"}
    shared = {
        name: tensor
        for name, tensor in tensors.items()
        if (parts := name.split("."))[0] in others and parts[1] in ("estimate", "spoken")
    }
    return shared | kept


def vector(tensors: Mapping[str, Tensor], name: str, dim: int) -> Tensor:
    """The float32 tensor of that name, `(dim,)`. Raises KeyError or ValueError if it is another one, or not finite."""
    found = tensors[name]
    if found.dtype != torch.float32 or tuple(found.shape) != (dim,) or not bool(found.isfinite().all()):
        raise ValueError(
            f"'{name}' should hold {dim:,} finite float32 numbers, and it is {_shown(found)}"
            f"{'' if found.isfinite().all() else ' with NaN or infinity'}"
        )
    return found


def whole_numbers(tensors: Mapping[str, Tensor], name: str, *shape: int, least: int = 0, most: int = _LAST) -> Tensor:
    """The int64 tensor of that name, of this shape, in which −1 stands for any length. Raises KeyError or ValueError."""
    found = tensors[name]
    fits = found.dim() == len(shape) and all(each in (-1, own) for each, own in zip(shape, found.shape, strict=False))
    if found.dtype != torch.int64 or not fits or (found.numel() and not least <= found.min() <= found.max() <= most):
        raise ValueError(f"'{name}' should hold whole numbers from {least:,} to {most:,}, and it is {_shown(found)}")
    return found


def replica(tensors: Mapping[str, Tensor], names: Collection[str], dim: int, *, round: int) -> Replica:
    """The replica that consists of vectors of these names. Raises KeyError or ValueError if it is another one."""
    if tensors.keys() != set(names):
        raise ValueError(f"an estimate should hold {', '.join(sorted(names))}, and it holds {', '.join(sorted(tensors))}")
    return from_tensors({name: vector(tensors, name, dim) for name in names}, round=round)


def _shown(found: Tensor) -> str:
    return f"{str(found.dtype).removeprefix('torch.')}{list(found.shape)}"
