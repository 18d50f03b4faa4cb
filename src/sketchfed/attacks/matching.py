"""Gradient matching: searches for examples whose training would have looked like what was seen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from sketchfed.attacks.labels import inferred
from sketchfed.attacks.observation import Observed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.seeds import PublicSeed

OBJECTIVES = ("cosine", "squares")
OPTIMISERS = ("adam", "lbfgs")
LABELS = ("inferred", "searched", "tried")
MOST = 8
"""The largest number of examples that are searched for together."""
_CUTS = (3 / 8, 5 / 8, 7 / 8)
_STALLED = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Guess:
    """Examples that an attack has found."""

    x: Tensor
    """`(count, *shape)`."""
    y: Tensor
    """Labels, `(count,)`."""
    mismatch: float
    """The objective at the end, without total variation. 0 is a perfect match, whatever the examples are."""


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Minimises the distance between A·change(x) and what was seen, over x, with gradients through the training itself.

    `squares` is ‖A∇F(w, x) − Ag‖² relative to ‖Ag‖². It is the objective of Zhu, Liu & Han 2019 (DLG) and, through a sketch, of
    Song et al. 2023, Sec. 7.2. `cosine`, with total `variation` and the signs of gradients for Adam, is that of Geiping et al.
    2020. It needs no scale, so it survives clipping. L-BFGS is exact if the objective is smooth. Adam is for ReLU and noise.

    Labels are given, `inferred` from the last layer, `searched` for as probabilities together with the examples, or all
    `tried`, for one example. Of all `restarts` and labels, the guess with the best objective is returned, because the adversary
    has nothing else to choose by.
    """

    objective: str = "cosine"
    optimiser: str = "adam"
    labels: str = "inferred"
    iterations: int = 400
    rate: float = 0.1
    variation: float = 1e-3
    restarts: int = 1
    low: float = 0.0
    high: float = 1.0
    """Inputs are known to lie between these bounds."""

    most: ClassVar[int] = MOST
    """The largest number of examples that are searched for together."""
    name: ClassVar[str] = "matching"
    summary: ClassVar[str] = "examples whose gradient looks like what was seen"
    source: ClassVar[str] = "Zhu et al. 2019; Geiping et al. 2020; Song et al. 2023, Sec. 7"

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("objective", self.objective, OBJECTIVES),
            ("optimiser", self.optimiser, OPTIMISERS),
            ("way to labels", self.labels, LABELS),
        ):
            if value not in known:
                raise UnknownNameError(kind, value, known)
        if self.iterations < 1 or self.restarts < 1 or not (self.rate > 0 and self.variation >= 0 and self.low < self.high):
            raise InputError(
                "iterations and restarts must be at least 1, rate positive, variation not negative and low below high, got "
                f"{self.iterations}, {self.restarts}, {self.rate}, {self.variation} and [{self.low}, {self.high}]."
            )

    def reconstruct(
        self,
        observation: Observed,
        *,
        shape: tuple[int, ...],
        seed: PublicSeed,
        count: int = 1,
        y: Tensor | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> Guess:
        """Find the `count` examples of this shape that match best. Equal seeds give equal guesses."""
        if not 1 <= count <= MOST:
            raise InputError(f"the attack looks for 1 to {MOST} examples together, got {count}. Observe smaller batches.")
        guesses = [
            self._once(observation, shape, count, labels, seed.child("restart", number), on_step)
            for labels in ([y] if y is not None else self._labels(observation, shape, count))
            for number in range(self.restarts)
        ]
        return min(guesses, key=lambda guess: guess.mismatch)

    def _labels(self, observation: Observed, shape: tuple[int, ...], count: int) -> list[Tensor | None]:
        """The labels to try, one after the other. None means that the search includes them."""
        if self.labels == "inferred":
            return [inferred(observation, count=count)]
        if self.labels == "searched":
            return [None]
        if count > 1:
            raise InputError(
                f"labels of {count} examples cannot be tried one by one. Give them, infer them, or search for them: "
                'labels = "searched".'
            )
        return [torch.tensor([label]) for label in range(_classes(observation, shape))]

    def _once(
        self,
        observation: Observed,
        shape: tuple[int, ...],
        count: int,
        y: Tensor | None,
        seed: PublicSeed,
        on_step: Callable[[], None] | None,
    ) -> Guess:
        dtype = torch.float32 if self.optimiser == "adam" else torch.float64  # line searches end where rounding begins
        x = _uniform(seed.child("x"), (count, *shape), self.low, self.high).to(dtype).requires_grad_()
        unknown, given = [x], y
        if given is None:
            logits = _uniform(seed.child("y"), (count, _classes(observation, shape)), -0.1, 0.1).to(dtype).requires_grad_()
            unknown.append(logits)

        def mismatch() -> Tensor:
            targets = logits.softmax(-1) if given is None else given
            return self._distance(observation.seen(x, targets), observation.values.to(dtype))

        def loss() -> Tensor:
            found = mismatch()
            return found + self.variation * variation(x) if self.variation and x.ndim == 4 else found

        (self._descend if self.optimiser == "adam" else self._newton)(unknown, loss, on_step)
        with torch.no_grad():
            x.clamp_(self.low, self.high)
        labels = logits.argmax(-1) if given is None else given
        return Guess(x=x.detach().float(), y=labels.detach(), mismatch=float(mismatch().detach()))

    def _distance(self, seen: Tensor, values: Tensor) -> Tensor:
        if self.objective == "cosine":
            return 1 - functional.cosine_similarity(seen, values, dim=0)
        return (seen - values).square().sum() / values.square().sum().clamp(min=1e-30)

    def _descend(self, unknown: list[Tensor], loss: Callable[[], Tensor], on_step: Callable[[], None] | None) -> None:
        """Use Adam on the signs of gradients. Its rate is divided by ten three times, and inputs are kept in range."""
        optimiser = torch.optim.Adam(unknown, lr=self.rate)
        cuts = [int(share * self.iterations) for share in _CUTS]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, cuts, gamma=0.1)
        for _ in range(self.iterations):
            gradients = torch.autograd.grad(loss(), unknown)
            for tensor, gradient in zip(unknown, gradients, strict=True):
                tensor.grad = gradient.sign()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                unknown[0].clamp_(self.low, self.high)
            if on_step is not None:
                on_step()

    def _newton(self, unknown: list[Tensor], loss: Callable[[], Tensor], on_step: Callable[[], None] | None) -> None:
        """Use L-BFGS with strong Wolfe line searches until nothing changes."""
        optimiser = torch.optim.LBFGS(
            unknown, lr=1.0, max_iter=1, history_size=50, tolerance_change=0, tolerance_grad=0, line_search_fn="strong_wolfe"
        )

        def closure() -> float:
            found = loss()
            for tensor, gradient in zip(unknown, torch.autograd.grad(found, unknown), strict=True):
                tensor.grad = gradient
            return float(found.detach())

        before = float("inf")
        for _ in range(self.iterations):
            now = float(optimiser.step(closure))  # type: ignore[no-untyped-call]
            if on_step is not None:
                on_step()
            if now >= before * (1 - _STALLED):
                break
            before = now


def variation(x: Tensor) -> Tensor:
    """The total variation of images `(n, channels, height, width)`: the mean distance between neighbouring pixels."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def _classes(observation: Observed, shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(observation.module(torch.zeros(1, *shape)).shape[-1])


def _uniform(seed: PublicSeed, shape: tuple[int, ...], low: float, high: float) -> Tensor:
    size = int(torch.Size(shape).numel())
    words = torch.from_numpy(seed.words(size).astype("int64")).double()
    return (low + (high - low) * words / 2**32).float().reshape(shape)
