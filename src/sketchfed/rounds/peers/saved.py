"""What nodes hold, as it is saved: tensors that several names share once, and those that some of the nodes need."""

import json
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

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
