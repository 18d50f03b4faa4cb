"""A module's trainable parameters as one flat vector, and back."""

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError

__all__ = [
    "Layout",
    "adopt",
    "flatten",
    "load",
    "trainable",
]


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector, in the order of `module.named_parameters()`."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        named = trainable(module)
        if not named:
            raise InputError(f"{type(module).__name__} has no trainable parameters, so there is nothing to train.")
        other = {name: parameter.dtype for name, parameter in named.items() if parameter.dtype != torch.float32}
        if other:
            name, dtype = next(iter(other.items()))
            raise InputError(f"parameter '{name}' is {dtype}; updates are float32. Convert the model: module.float().")
        return cls(tuple(named), tuple(tuple(parameter.shape) for parameter in named.values()))

    @property
    def dim(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters as views into a flat vector: writing to one writes to the other."""
        parts = torch.split(flat, [math.prod(shape) for shape in self.shapes])
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, each once; those that are frozen are part of the model, not of updates."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def flatten(module: nn.Module) -> Tensor:
    """A copy of all trainable parameters, one after the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainable(module).values()])


def load(module: nn.Module, flat: Tensor) -> nn.Module:
    """Copy a flat vector into the module's trainable parameters."""
    views = Layout.of(module).views(flat)
    with torch.no_grad():
        for name, parameter in trainable(module).items():
            parameter.copy_(views[name])
    return module


def adopt(module: nn.Module, flat: Tensor) -> None:
    """Make the module's trainable parameters views of `flat`, so that a step on the vector is a step of the module."""
    views = Layout.of(module).views(flat)
    for name, parameter in trainable(module).items():
        parameter.data = views[name]


def hollow(module: nn.Module) -> nn.Module:
    """A copy of a module whose trainable parameters take no memory. `adopt` gives them weights.

    Their shapes are right, and all their numbers are zero. Until they are adopted, nothing may write to them.
    """
    plain = [parameter for parameter in trainable(module).values() if type(parameter) is nn.Parameter]
    return deepcopy(module, {id(parameter): nn.Parameter(_nothing(parameter)) for parameter in plain})


def emptied(module: nn.Module) -> None:
    """Let go of the memory that a module adopted."""
    for parameter in trainable(module).values():
        parameter.grad = None
        parameter.data = _nothing(parameter)


def _nothing(parameter: nn.Parameter) -> Tensor:
    """One zero, seen as a tensor of the parameter's shape."""
    return parameter.detach().new_zeros(()).expand(parameter.shape)
