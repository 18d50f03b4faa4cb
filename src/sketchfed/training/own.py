"""Training and evaluation by functions of the user's own."""

import logging
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sketchfed.data.generators import drawing_from
from sketchfed.devices import CPU, seeded
from sketchfed.errors import InputError, SketchfedError
from sketchfed.nn.model_sketch import ModelSketch
from sketchfed.parts import Registry
from sketchfed.seeds import PublicSeed
from sketchfed.training.base import LocalWork
from sketchfed.training.items import advice_on, check_gave
from sketchfed.training.memory import Turn
from sketchfed.training.own_parts import OWN_PARTS, OwnParts, with_own_parts
from sketchfed.vectors import Layout, restored

log = logging.getLogger("sketchfed")

_MOST_NAMES, _LONGEST = 100, 64


@dataclass(kw_only=True)
class ClientContext:
    """What a function of the user's own is told besides the model and the data."""

    round: int
    """The number of the round, from 1. In an evaluation, the number of completed rounds."""
    client: int | None
    """The number of the client. None when the server's test data is evaluated, not a client's own data."""
    generator: torch.Generator
    """A generator with a seed of its own for each client and round."""
    settings: Mapping[str, Any]
    """The options in [training]."""
    device: torch.device = CPU
    """The device that holds the model, `engine.device`. The data is where it was given. `generator` is on the CPU, so that it
    draws the same numbers wherever the model is: draw there, and move what was drawn."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What this client keeps between rounds, by name: tensors, numbers, texts, and lists and dicts of these, such as
    `optimizer.state_dict()`. It never leaves the client. It is lost if the server could not use the client's update."""


Metrics = Mapping[str, float]
Train = Callable[[nn.Module, Any, ClientContext], Metrics | None]
"""Trains a module in place on a client's data."""
Evaluate = Callable[[nn.Module, Any, ClientContext], Metrics]
"""Evaluates a module and returns numbers by name. `loss` and `accuracy` are shown as such."""

LOOPS: Registry[Callable[..., Any]] = Registry("training loop", {}, group="sketchfed.loops")


class OwnLoop:
    """Trains by a function `train(model, data, context)`. The change of the trainable parameters is the update.

    Each call gets a fresh copy of the module with the round's weights, in training mode. The global generators of torch, numpy
    and Python draw from the client's seed meanwhile, so clients are trained one after the other. Whatever the function does to
    the module besides changing its parameters is forgotten.
    """

    sequential = True

    def __init__(
        self, module: nn.Module, function: Train, settings: Mapping[str, Any], *, name: str, device: torch.device = CPU
    ) -> None:
        self._layout = Layout.of(module)
        self.dim = self._layout.dim
        self._module, self._function, self._settings, self._name = module, function, settings, name
        self._own, self._device = OwnParts(module), device
        self._warned = False
        self._told: set[torch.dtype] = set()

    def check(self, examples: object) -> None:
        """Nothing is known about the data. The first round tries it."""

    def train(self, weights: Tensor, examples: Any, work: LocalWork, turn: Turn) -> Tensor:
        if turn.pull:
            self._refuse("to add something to the gradient of each local step")
        module = restored(self._module, weights).to(self._device).train()
        with self._own.trained(module, turn):
            turn.kept.pop(OWN_PARTS, None)  # the module has them
            context = self._context(turn)
            with _drawing(turn, self._device, examples), _default_type_kept(self._name, self._told), torch.enable_grad():
                before = _versions(module)
                found = self._called(module, examples, context)
            self._check_returned(found)
            turn.kept = context.kept
        trained = self._trained(module)
        if torch.equal(trained, weights.to(trained.device)):
            self._check_used(module, before, examples)
            self._warn_unchanged(turn.client)
        return trained

    def _called(self, module: nn.Module, examples: Any, context: ClientContext) -> object:
        try:
            return self._function(module, examples, context)
        except SketchfedError:
            raise
        except Exception as error:
            if (advice := advice_on(error)) is None:
                raise
            raise InputError(f"'{self._name}' raised {type(error).__name__}: {str(error).rstrip('.')}. {advice}") from error

    def _check_used(self, module: nn.Module, before: Sequence[int], examples: Any) -> None:
        """Explain why nothing was trained, if the data gave nothing, or if the module took no part in it."""
        check_gave(examples)
        if _versions(module) == before and all(each.grad is None for each in module.parameters()):
            raise InputError(
                f"'{self._name}' neither changed the weights of the module that it was given, nor computed gradients for them. "
                "Train that module in place: sketchfed does not see what happens to a copy, or to a new one."
            )

    def _context(self, turn: Turn) -> ClientContext:
        return ClientContext(
            round=turn.round + 1,
            client=turn.client,
            generator=_generator(turn.seed),
            settings=dict(self._settings),
            device=self._device,
            kept=turn.kept,
        )

    def _trained(self, module: nn.Module) -> Tensor:
        """The flat parameters after training, if they are those that the module had before."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, shape in zip(self._layout.names, self._layout.shapes, strict=True):
            parameter = named.get(name)
            if parameter is None or tuple(parameter.shape) != shape or parameter.device.type == "meta":
                found = "is gone" if parameter is None else f"has shape {tuple(parameter.shape)}"
                if parameter is not None and parameter.device.type == "meta":
                    found = "is on the device 'meta', which holds no numbers"
                raise InputError(
                    f"after '{self._name}', the parameter '{name}' {found}; it had shape {shape}. Train the parameters of the "
                    "module that is given, and do not replace, wrap or remove its layers."
                )
        parts = [named[name].detach().to(self._device, torch.float32).reshape(-1) for name in self._layout.names]
        return torch.cat(parts)

    def _check_returned(self, found: object) -> None:
        if isinstance(found, nn.Module):
            raise InputError(
                f"'{self._name}' returned a module. sketchfed takes the update from the module that it passed in: change that "
                "one in place, and return metrics or nothing."
            )
        if found is not None:
            for key, value in checked_metrics(found, self._name).items():
                if not math.isfinite(value):
                    raise InputError(
                        f"'{self._name}' returned {key} = {value}. A loss like that means that training diverged, or that the "
                        "data holds NaN. Leave out other metrics that have no value."
                    )

    def _warn_unchanged(self, client: int) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "'%s' left all weights of client %d as they were. Its update is zero, and counts. Look at the rate of its "
                "optimiser.",
                self._name,
                client,
            )

    # What only the built-in loop knows ---------------------------------------------------------------------------------

    def gradients(self, weights: Tensor, examples: Any, out: Tensor | None = None) -> Tensor:
        self._refuse("gradients of single examples")

    def clipped_sum(self, weights: Tensor, examples: Any, clip: float) -> Tensor:
        self._refuse("gradients of single examples")

    def sketched(self, form: ModelSketch) -> NoReturn:
        self._refuse("steps inside of sketched layers")

    def gram(self, step: Tensor) -> Tensor:
        return step

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        self._refuse("the model's outputs for a batch")

    def score(self, weights: Tensor, examples: Any) -> tuple[float, int]:
        self._refuse("the loss of a batch")

    def _refuse(self, needed: str) -> NoReturn:
        raise InputError(
            f"this needs {needed}, and a loop of your own ('{self._name}') shows only whole updates. Pass the loss as "
            "batch_loss(model, batch) instead (training.batch_loss): the built-in loop then trains."
        )


def evaluated(
    function: Evaluate,
    module: nn.Module,
    weights: Tensor,
    data: Any,
    *,
    settings: Mapping[str, Any],
    turn: Turn,
    name: str,
    device: torch.device = CPU,
    on_client: bool = False,
) -> dict[str, float | None]:
    """The metrics that a function of the user's own returns for a fresh copy of the module with these weights.

    On a client, the copy also has the client's own parts, and metrics are what the function returned. Otherwise a metric that
    has no value is None. The loss stays what it is, because one that is not finite ends training.
    """
    own = with_own_parts(module, weights, turn.kept) if on_client else restored(module, weights).eval()
    model = own.to(device)
    context = ClientContext(
        round=turn.round,
        client=turn.client if on_client else None,
        generator=_generator(turn.seed),
        settings=dict(settings),
        device=device,
        kept={name: value for name, value in turn.kept.items() if name != OWN_PARTS},
    )
    with _drawing(turn, device, data), _default_type_kept(name, set()), torch.no_grad():
        try:
            found = function(model, data, context)
        except SketchfedError:
            raise
        except Exception as error:
            raise InputError(
                f"'{name}' raised {type(error).__name__}: {error} (after {turn.round} rounds). It is called as "
                "evaluate(model, data, context), with the model in evaluation mode and the data as it was given. Correct it."
            ) from error
    if on_client:
        return dict(checked_metrics(found, name))
    metrics: dict[str, float | None] = {}
    for key, value in checked_metrics(found, name).items():
        metrics[key] = value if key == "loss" or math.isfinite(value) else None
        if metrics[key] is None:
            log.warning("'%s' returned %s = %s after %d rounds. It is recorded as missing.", name, key, value, turn.round)
    return metrics


def checked_metrics(found: object, name: str) -> dict[str, float]:
    """Metrics as plain numbers. Raise `InputError` for anything else, with what to change."""
    if not isinstance(found, Mapping):
        raise InputError(
            f"'{name}' returned {'None' if found is None else type(found).__name__}, not a dict of metrics. Return for example "
            "{'loss': 0.5, 'accuracy': 0.9}."
        )
    if len(found) > _MOST_NAMES:
        raise InputError(f"'{name}' returned {len(found):,} metrics, and at most {_MOST_NAMES} are kept. Return fewer.")
    metrics = {}
    for key, value in found.items():
        if not isinstance(key, str) or not key.isidentifier() or len(key) > _LONGEST:
            raise InputError(f"'{name}' returned a metric named {key!r}. Use a short name of letters, digits and '_'.")
        try:
            metrics[key] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else reprlib.repr(value)
            raise InputError(f"'{name}' returned {key} = {shown}, which is not one number. Return a float.") from error
    return metrics


@contextmanager
def _drawing(turn: Turn, device: torch.device, data: Any) -> Iterator[None]:
    """Within the block, torch, numpy and Python draw from the turn's seed, also on the device, and what the data holds."""
    seed = turn.seed.child("own loop")
    with drawing_from(seed, data), seeded(device, int(seed.child("device").words(1)[0])):
        yield


@contextmanager
def _default_type_kept(name: str, told: set[torch.dtype]) -> Iterator[None]:
    """Put torch's default type of numbers back after a function of the user's own, and say so once."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        after = torch.get_default_dtype()
        torch.set_default_dtype(before)
        if after != before and after not in told:
            told.add(after)
            log.warning(
                "'%s' set torch's default type to %s, which all code in the process shares. It is %s again after each call.",
                name,
                str(after).removeprefix("torch."),
                str(before).removeprefix("torch."),
            )


def _versions(module: nn.Module) -> list[int]:
    """How often each part of a module was changed in place."""
    return [part._version for part in (*module.parameters(), *module.buffers())]


def _generator(seed: PublicSeed) -> torch.Generator:
    high, low = (int(word) for word in seed.child("generator").words(2))
    return torch.Generator().manual_seed(high << 32 | low)
