"""The parts of a model that stay with each client: personal parameters, and buffers that are not averaged."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError
from sketchfed.training.memory import Turn
from sketchfed.vectors import restored, sharing

OWN_PARTS = "sketchfed.own_parts"
"""The name under which a client keeps them between rounds, in `Turn.kept`."""


class OwnParts:
    """Puts a client's own parts into a module for its turn, and takes them out again.

    A client that takes part for the first time has those of the model as it was given. Buffers that neither travel nor stay,
    such as a count of batches, are as they were given at the beginning of each turn.
    """

    def __init__(self, module: nn.Module) -> None:
        shared = sharing(module)
        self._personal, self._names = shared.personal, (*shared.personal, *shared.kept)
        parts = _parts(module)
        reset = [name for name, _ in module.named_buffers() if name not in shared.averaged]
        names = (*self._personal, *reset) if shared != type(shared)() else ()
        self._start = {name: parts[name].detach().clone() for name in names}

    def load(self, module: nn.Module, kept: dict[str, Any]) -> None:
        """Put a client's own parts into a module. With nothing kept, those that the model was given with."""
        if not self._start:
            return
        own, parts = kept.get(OWN_PARTS, {}), _parts(module)
        with torch.no_grad():
            for name, start in self._start.items():
                parts[name].copy_(self._fitting(own[name], start, name) if name in own else start)

    @contextmanager
    def trained(self, module: nn.Module, turn: Turn) -> Iterator[None]:
        """Within this context, the module has the client's own parts and trains the personal ones. The client keeps them."""
        if not self._start:
            yield
            return
        self.load(module, turn.kept)
        parameters = dict(module.named_parameters())
        for name in self._personal:
            parameters[name].requires_grad_(True)
        try:
            yield
        finally:
            for name in self._personal:
                parameters[name].requires_grad_(False)
                parameters[name].grad = None
        parts = _parts(module)
        if self._names:
            turn.kept[OWN_PARTS] = {name: parts[name].detach().clone() for name in self._names}

    def _fitting(self, found: Any, start: Tensor, name: str) -> Tensor:
        if not isinstance(found, Tensor) or found.shape != start.shape:
            raise InputError(
                f"what this client kept of '{name}' does not fit the model, in which it has shape {tuple(start.shape)}. It "
                "belongs to another model: start a new run."
            )
        return found


def with_own_parts(module: nn.Module, weights: Tensor, kept: dict[str, Any]) -> nn.Module:
    """A copy of a module for evaluation, with these weights and a client's own parts."""
    model = restored(module, weights).eval()
    OwnParts(module).load(model, kept)
    return model


def _parts(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
