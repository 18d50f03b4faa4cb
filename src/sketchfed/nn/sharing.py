"""Chooses which parts of a module are shared: buffers that are averaged or kept, and parameters that stay with each client."""

import math
from collections.abc import Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from sketchfed.errors import InputError
from sketchfed.vectors import Layout, Sharing, check_built, sharing

Buffers = Literal["average", "local"]
_LISTED = 12
"""The number of names that an error lists."""


def shared(
    module: nn.Module, *, buffers: Buffers | None = None, running: Sequence[str] = (), personal: Sequence[str] = ()
) -> nn.Module:
    """A copy of a module that knows which of its parts are shared. The module itself if nothing is special about it.

    `buffers` says what happens to the running statistics of layers such as BatchNorm, and to further buffers whose names match
    `running`. `personal` has patterns of names of parameters that never leave the client.
    """
    check_built(module)
    names = [] if buffers is None else _statistics(module)
    for pattern in running:
        names += [name for name in _matched(module, pattern, "model.running") if name not in names]
    chosen = {name for pattern in personal for name in _matched(module, pattern, "model.personal")}
    if not names and not chosen:
        return module
    made = deepcopy(module)
    parameters = dict(made.named_parameters())
    if not any(parameter.requires_grad for name, parameter in parameters.items() if name not in chosen):
        raise InputError(
            f"model.personal = {list(personal)} leaves no trainable parameter to be learnt together. Use narrower patterns."
        )
    for name in chosen:
        parameters[name].requires_grad_(False)
    averaged: tuple[str, ...] = tuple(names)
    kept: tuple[str, ...] = ()
    if buffers == "local":
        averaged, kept = (), tuple(name for name, _ in made.named_buffers() if name in names or _counts(made, name))
    elif names:
        _check_averaged(made, names)
    Sharing(averaged, kept, tuple(name for name in parameters if name in chosen)).mark(made)
    return made


def variances(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where running variances lie in the flat vector that a module shares, each from its first number up to its last."""
    layout = Layout.of(module)
    ends = accumulate((math.prod(shape) for shape in layout.shapes), initial=0)
    placed = dict(zip(layout.names, pairwise(ends), strict=True))
    return tuple(placed[name] for name in sharing(module).averaged if _is_variance(module, name))


def _is_variance(module: nn.Module, name: str) -> bool:
    owner, _, leaf = name.rpartition(".")
    return leaf == "running_var" and isinstance(module.get_submodule(owner), _NormBase)


def _statistics(module: nn.Module) -> list[str]:
    """The running means and variances of normalisation layers."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, _NormBase)
        for name, buffer in layer.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]


def _counts(module: nn.Module, name: str) -> bool:
    """Whether a buffer counts the batches of a normalisation layer."""
    owner, _, leaf = name.rpartition(".")
    return leaf == "num_batches_tracked" and isinstance(module.get_submodule(owner), _NormBase)


def _check_averaged(module: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        buffer = module.get_buffer(name)
        if str(buffer.dtype) != "torch.float32":
            raise InputError(
                f"model.buffers = 'average': buffer '{name}' is {buffer.dtype}, and only float32 is averaged. Convert the "
                "model: module.float(), or use model.buffers = 'local'."
            )
    for prefix, layer in module.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats and layer.momentum is None:
            raise InputError(
                f"model.buffers = 'average': layer '{prefix}' has momentum=None, so its statistics are those of all batches "
                "that it has ever seen, and their number is not averaged. Give it a momentum such as 0.1, or use model.buffers "
                "= 'local'."
            )


def _matched(module: nn.Module, pattern: str, setting: str) -> list[str]:
    named = module.named_parameters() if setting == "model.personal" else module.named_buffers()
    names = [name for name, value in named if value.requires_grad or setting == "model.running"]
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        what = "trainable parameter" if setting == "model.personal" else "buffer"
        more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
        there = f"There are {', '.join(names[:_LISTED])}{more}" if names else "There is none"
        raise InputError(
            f"{setting}: {pattern!r} matches no {what}. {there}. Patterns match whole names, and * stands for any text."
        )
    return found
