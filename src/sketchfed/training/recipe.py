"""How the built-in loop takes its steps: the optimiser, its rate over time, clipping, precision and accumulation."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sketchfed.errors import InputError
from sketchfed.parts import Registry
from sketchfed.training.base import LocalWork
from sketchfed.training.memory import Turn
from sketchfed.training.objective import Objective
from sketchfed.training.pull import Pull
from sketchfed.vectors import Layout, sharing, trainable

OPTIMISERS: Registry[Callable[..., torch.optim.Optimizer]] = Registry(
    "optimiser",
    {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW},
    group="sketchfed.optimisers",
)
"""Optimisers of local steps by name. Any subclass of `torch.optim.Optimizer` can be named as "torch.optim:RMSprop"."""


def constant(progress: float) -> float:
    """The rate stays as it is."""
    return 1.0


def linear(progress: float) -> float:
    """The rate falls to zero in equal steps."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """The rate falls to zero along half a cosine wave (Loshchilov and Hutter 2017, Eq. 5)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


Schedule = Callable[[float], float]
"""A function from the progress, from 0 up to 1, to a factor of the rate."""
SCHEDULES: Registry[Schedule] = Registry(
    "schedule", {"constant": constant, "linear": linear, "cosine": cosine}, group="sketchfed.schedules"
)

_FROM_ALGORITHM = {
    "params": "",
    "lr": "algorithm.local_rate",
    "momentum": "algorithm.local_momentum",
    "weight_decay": "algorithm.weight_decay",
}
"""Parameters of optimisers that other settings have."""
STEPPING = (
    "optimiser", "optimiser_state", "round_schedule", "step_schedule", "warmup_rounds", "clip_norm", "precision", "accumulate",
)  # fmt: skip
"""The settings of the built-in loop's steps, in [training]."""
_SCALE = 2.0**16
"""The first factor of losses in float16. It is that of torch's GradScaler."""
_STATE = "optimiser"
"""The name under which a client keeps the state of its optimiser."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the built-in loop takes its steps. The default is plain SGD, which has hand-written kernels."""

    optimiser: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    state: Literal["reset", "kept"] = "reset"
    round_schedule: str = "constant"
    step_schedule: str = "constant"
    warmup_rounds: int = 0
    clip_norm: float | None = None
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    accumulate: int = 1
    rounds: int = 1
    """The number of rounds of the run, over which `round_schedule` stretches."""

    @property
    def usual(self) -> bool:
        """Whether steps are those of plain SGD, perhaps with momentum and weight decay."""
        return self == Recipe(rounds=self.rounds)

    def check(self, work: LocalWork) -> None:
        """Raise `InputError` unless the optimiser can be made with these options."""
        trial = nn.Parameter(torch.zeros(1))
        trial.grad = torch.zeros(1)
        optimiser = self.made([trial], work)
        try:
            optimiser.step()
        except Exception as error:  # of the optimiser's own
            lacking = "gradient alone" if isinstance(error, TypeError) else "dense gradient"
            raise InputError(
                f"training.optimiser = '{self.optimiser}' cannot take a step from a {lacking}: {str(error).rstrip('.')}. Use "
                "another one, or a loop of your own: training.train."
            ) from error
        for name in ("round_schedule", "step_schedule"):
            self._factor(name, 0.0)

    def made(self, parameters: Sequence[nn.Parameter], work: LocalWork) -> torch.optim.Optimizer:
        """The optimiser for a client's parameters."""
        kind = OPTIMISERS[self.optimiser]
        known = inspect.signature(kind).parameters
        given: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in self.options.items()}
        options = [name for name in known if name not in _FROM_ALGORITHM]
        for option in self.options:
            if option not in options and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
                theirs = _FROM_ALGORITHM.get(option, "")
                close = get_close_matches(option, [*options, *STEPPING], n=1)
                remedy = f"Did you mean training.{close[0]}? " if close else ""
                remedy += f"Set {theirs}." if theirs else "Other options are for a loop of your own: name it in training.train."
                raise InputError(
                    f"training.{option} is no option of training.optimiser = '{self.optimiser}', which has "
                    f"{', '.join(options)}. {remedy}"
                )
        for ours, theirs, value in (
            ("local_momentum", "momentum", work.momentum),
            ("weight_decay", "weight_decay", work.decay),
        ):
            if not value:
                continue
            if theirs not in known:
                raise InputError(
                    f"algorithm.{ours} = {value} is nothing that training.optimiser = '{self.optimiser}' takes. Remove it, or "
                    "use 'sgd'."
                )
            given[theirs] = value
        try:
            made = kind(parameters, lr=work.rate, **given)
        except Exception as error:  # of the optimiser's own, such as an IndexError if an option is too short
            raise InputError(
                f"training.optimiser = '{self.optimiser}' cannot be made: {type(error).__name__}: {error}. Its "
                f"options in [training] are {', '.join(options)}."
            ) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise InputError(f"training.optimiser = '{self.optimiser}' is not a subclass of torch.optim.Optimizer.")
        return made

    def descend(
        self, module: nn.Module, objective: Objective, batches: Iterator[Any], work: LocalWork, turn: Turn, steps: int
    ) -> None:
        """Train a module in place. `steps` is the number of steps that the local work has."""
        parameters = list(trainable(module).values())
        optimiser = self.made(parameters, work)
        pulled: list[tuple[nn.Parameter, Tensor, Pull]] = []
        if turn.pull:
            personal, named = sharing(module).personal, trainable(module)
            shared = {name: parameter for name, parameter in named.items() if name not in personal}
            layout = Layout(tuple(shared), tuple(tuple(parameter.shape) for parameter in shared.values()))
            starts = [parameter.detach().clone() for parameter in shared.values()]
            pulled = list(zip(shared.values(), starts, turn.pull.of_each(layout), strict=True))
        if self.state == "kept" and _STATE in turn.kept:
            optimiser.load_state_dict({**optimiser.state_dict(), "state": turn.kept[_STATE]})
        scale = _SCALE if self.precision == "float16" else 1.0
        for step, batch in enumerate(batches):
            rate = work.rate * self.factor(turn.round, step / max(1, steps))
            for group in optimiser.param_groups:
                group["lr"] = rate
            scale = self._backward(module, objective, batch, optimiser, scale)
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, self.clip_norm)
            for parameter, start, pull in pulled:
                if parameter.grad is None:  # the loss does not depend on it, but the pull does
                    parameter.grad = torch.zeros_like(parameter)
                pull.add_to(parameter.grad, parameter.detach(), start)
            optimiser.step()
        if self.state == "kept":
            turn.kept[_STATE] = optimiser.state_dict()["state"]

    def _backward(
        self, module: nn.Module, objective: Objective, batch: Any, optimiser: torch.optim.Optimizer, scale: float
    ) -> float:
        """Compute the gradient of a batch. Return the factor by which the loss of the next one is multiplied.

        In float16, gradients are multiplied by a power of two, so that small ones do not vanish (Micikevicius et al. 2018,
        Section 3.2). Where they overflow, the paper leaves out the step. A round has few steps, so here the same step is
        computed again, with half the factor.
        """
        buffers = [(buffer, buffer.clone()) for buffer in module.buffers()] if scale > 1 else []
        while True:
            optimiser.zero_grad()
            finite = True
            for part, share in self._parts(batch, objective):
                with self._casting(next(module.parameters())):
                    loss = objective(module, part)
                finite &= bool(loss.isfinite())
                (loss.float() * (share * scale)).backward()  # type: ignore[no-untyped-call]
            if scale == 1 or not finite:
                break
            gradients = [each.grad for each in module.parameters() if each.grad is not None]
            if all(bool(gradient.isfinite().all()) for gradient in gradients):
                torch._foreach_mul_(gradients, 1 / scale)
                break
            scale /= 2
            for buffer, before in buffers:
                buffer.copy_(before)
        return scale

    def factor(self, round_index: int, progress: float) -> float:
        """The factor of the rate in a step. `progress` is the share of the round's steps that were taken."""
        over_rounds = self._factor("round_schedule", min(1.0, round_index / max(1, self.rounds)))
        warm = min(1.0, (round_index + 1) / self.warmup_rounds) if self.warmup_rounds else 1.0
        return warm * over_rounds * self._factor("step_schedule", progress)

    def _factor(self, which: str, progress: float) -> float:
        name = getattr(self, which)
        found = SCHEDULES[name](progress)
        if not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise InputError(
                f"training.{which} = '{name}' returned {found!r} at {progress:.3g}. A schedule returns a factor of the rate, "
                "which is not negative."
            )
        return float(found)

    def _parts(self, batch: Any, objective: Objective) -> Iterator[tuple[Any, float]]:
        """The parts of a batch, and the share of its targets that each of them has. Parts without a target are left out."""
        if self.accumulate == 1 or batch.size <= 1:
            yield batch, 1.0
            return
        each, whole = -(-batch.size // self.accumulate), objective.weight(batch)
        for start in range(0, batch.size, each):
            part = batch.part(start, min(start + each, batch.size))
            if weight := objective.weight(part):
                yield part, weight / whole

    def _casting(self, parameter: Tensor) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(parameter.device.type, dtype=getattr(torch, self.precision))
