"""Tensors of a checkpoint, checked before a node continues from them."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.algorithms.replicas import from_tensors

_LAST = 2**62


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
