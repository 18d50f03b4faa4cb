"""What a module shares as one flat vector, and back: its trainable parameters, and buffers that travel with them."""

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sketchfed.errors import InputError

__all__ = [
    "Layout",
    "adopt",
    "flatten",
    "load",
    "trainable",
]

_MARK = "_sketchfed_sharing"


@dataclass(frozen=True)
class Sharing:
    """Which parts of a module travel besides its trainable parameters, and which stay with each client."""

    averaged: tuple[str, ...] = ()
    """Buffers that travel. They lie behind the parameters in the flat vector."""
    kept: tuple[str, ...] = ()
    """Buffers that each client keeps."""
    personal: tuple[str, ...] = ()
    """Parameters that each client trains for itself. Outside of a client's training they are frozen."""

    @property
    def stays(self) -> bool:
        """Whether anything stays with each client."""
        return bool(self.kept or self.personal)

    def mark(self, module: nn.Module) -> None:
        """Note at a module that it is shared in this way. Copies of the module know it too."""
        setattr(module, _MARK, self)


def sharing(module: nn.Module) -> Sharing:
    """How a module is shared."""
    found: Sharing = getattr(module, _MARK, _ALL)
    return found


_ALL = Sharing()


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector, in the order of `module.named_parameters()`.

    Buffers that travel follow the parameters.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: int = 0
    """The number of names, the last ones, that are buffers."""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        check_built(module)
        named = trainable(module)
        if not named:
            raise InputError(f"{type(module).__name__} has no trainable parameters, so there is nothing to train.")
        other = {name: parameter.dtype for name, parameter in named.items() if parameter.dtype != torch.float32}
        if other:
            name, dtype = next(iter(other.items()))
            raise InputError(f"parameter '{name}' is {dtype}; updates are float32. Convert the model: module.float().")
        carried = _averaged(module)
        shapes = tuple(tuple(each.shape) for each in (*named.values(), *carried.values()))
        return cls((*named, *carried), shapes, len(carried))

    @property
    def dim(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def trained(self) -> int:
        """The number of parameters, without buffers. They come first in the vector."""
        return self.of_parameters.dim

    @property
    def of_parameters(self) -> "Layout":
        """The layout without buffers."""
        count = len(self.names) - self.buffers
        return Layout(self.names[:count], self.shapes[:count])

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts as views into a flat vector: writing to one writes to the other. What follows them in it is left alone."""
        parts = torch.split(flat[: self.dim], [math.prod(shape) for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


def check_built(module: nn.Module) -> None:
    """Raise `InputError` if a lazy layer of a module does not know its shape yet."""
    for name, part in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(part):
            raise InputError(
                f"parameter '{name}' has no shape yet, because its layer is lazy. Call the model "
                "once on a batch of examples before the run: model(x). Or use the layer's usual class, such as nn.Linear."
            )


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, each once; those that are frozen are part of the model, not of updates."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _averaged(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that travel."""
    return {name: module.get_buffer(name) for name in sharing(module).averaged}


def flatten(module: nn.Module) -> Tensor:
    """A copy of all that a module shares, one part after the other, on the CPU."""
    shared = (*trainable(module).values(), *_averaged(module).values())
    return torch.cat([part.detach().reshape(-1) for part in shared]).cpu()


def load(module: nn.Module, flat: Tensor) -> nn.Module:
    """Copy a flat vector into what the module shares."""
    views = Layout.of(module).views(flat)
    with torch.no_grad():
        for name, part in (trainable(module) | _averaged(module)).items():
            part.copy_(views[name])
    return module


def adopt(module: nn.Module, flat: Tensor) -> None:
    """Make what the module shares views of `flat`, so that a step on the vector is a step of the module."""
    views = Layout.of(module).views(flat)
    for name, parameter in trainable(module).items():
        parameter.data = views[name]
    for name in sharing(module).averaged:
        _put_buffer(module, name, views[name])


def hollow(module: nn.Module, device: torch.device | None = None) -> nn.Module:
    """A copy of a module, perhaps on another device, whose trainable parameters take no memory. `adopt` gives them weights.

    Their shapes are right, and all their numbers are zero. Until they are adopted, nothing may write to them.
    """
    plain = [parameter for parameter in trainable(module).values() if type(parameter) is nn.Parameter]
    copied = deepcopy(module, {id(parameter): nn.Parameter(_nothing(parameter, device)) for parameter in plain})
    return copied if device is None else copied.to(device)


def restored(module: nn.Module, flat: Tensor) -> nn.Module:
    """A copy of a module where a flat vector is, with what it shares from there. It has memory of its own, even if the module
    has none.
    """
    made, views = hollow(module, flat.device), Layout.of(module).views(flat.detach())
    for name, parameter in trainable(made).items():
        parameter.data = views[name].clone()
    for name in sharing(module).averaged:
        _put_buffer(made, name, views[name].clone())
    return made


def emptied(module: nn.Module) -> None:
    """Let go of the memory that a module adopted."""
    for parameter in trainable(module).values():
        parameter.grad = None
        parameter.data = _nothing(parameter)
    for name, buffer in _averaged(module).items():
        _put_buffer(module, name, _nothing(buffer))


def _put_buffer(module: nn.Module, name: str, buffer: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(owner), leaf, buffer)


def _nothing(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """One zero, seen as a tensor of the same shape."""
    return torch.zeros((), dtype=tensor.dtype, device=device or tensor.device).expand(tensor.shape)
