"""A lower bound on ε from a single run with canaries, which tests what is claimed.

An audit finds mistakes: noise that is too small, added in the wrong place or drawn twice. It does not prove privacy. A bound
below the claim only says that this attack, on these canaries, did not get further.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.privacy.base import check_count, positive
from sketchfed.privacy.flattening import Flattening
from sketchfed.seeds import PublicSeed

_MOST_EPSILON = 64.0

Experiment = Callable[[npt.NDArray[np.bool_]], object]
"""Trains, or only sums, with the marked canaries. Returns a score for each canary, which is higher if it looks included."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The result of an audit: the number of correct guesses about the canaries, and the lower bound on ε that follows."""

    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    lower: float

    def refutes(self, epsilon: float) -> bool:
        """Whether a claim of (ε, δ) is refuted with this confidence."""
        return self.lower > epsilon

    def __str__(self) -> str:
        return (
            f"ε ≥ {self.lower:.2f} at δ = {self.delta:g} with confidence {self.confidence:g} "
            f"({self.correct} of {self.guesses} guesses about {self.canaries} canaries right)"
        )


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the probability of at least `correct` correct guesses, if the run is (ε, δ)-private for one canary.

    Paper: Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run", Thm 5.2. Each canary is included with
    probability ½, independently; guesses may be withheld. Under ε alone each guess is right with probability e^ε/(1 + e^ε) at
    most; δ adds 2·canaries·δ·max_i P(correct − i ≤ B < correct)/i, for B binomial.
    """
    from scipy.stats import binom

    _check(canaries, guesses, correct, delta)
    if not isinstance(epsilon, int | float) or not epsilon >= 0:
        raise InputError(f"ε is a number from 0 on, got {epsilon!r}.")
    accuracy = 1 / (1 + math.exp(-epsilon))
    chance = float(binom.sf(correct - 1, guesses, accuracy))
    i = np.arange(1, correct + 1)
    short = np.cumsum(binom.pmf(correct - i, guesses, accuracy)) / i
    return min(1.0, chance + 2 * canaries * delta * float(short.max(initial=0.0)))


def epsilon_lower_bound(*, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """The ε up to which `p_value` is below 1 − confidence. 0 if it is not below that at 0.

    A run that is (ε, δ)-private gets a larger bound with probability 1 − confidence at most, provided that the number of
    guesses was fixed before the scores were seen.
    """
    _check(canaries, guesses, correct, delta)
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise InputError(f"a confidence lies between 0 and 1, got {confidence!r}.")

    def refuted(epsilon: float) -> bool:
        found = p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
        return found < 1 - confidence

    low, high = 0.0, _MOST_EPSILON
    if not refuted(low):
        return 0.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def audit(
    run: Experiment, *, canaries: int, delta: float, seed: PublicSeed, guesses: int | None = None, confidence: float = 0.95
) -> AuditResult:
    """Include each canary with probability ½, run once, and guess that those with the highest scores are in and the lowest out.

    `guesses` and the other arguments have the same meaning as in `audited`. What `run` draws must be independent of the
    inclusions, which come from the seed's child "audit".
    """
    check_count("canaries", canaries)
    _guesses(canaries, guesses, delta)
    included = seed.child("audit").words(canaries) >> np.uint32(31) == 1
    return audited(run(included.copy()), included, delta=delta, guesses=guesses, confidence=confidence)


def audited(
    scores: object, included: object, *, delta: float, guesses: int | None = None, confidence: float = 0.95
) -> AuditResult:
    """Judge guesses from scores `(canaries,)`. `included`, `(canaries,)`, comes from independent tosses of a fair coin.

    `guesses` is the number of guesses, by default a tenth of the canaries. Half of them say that the highest scores are in, and
    half that the lowest are out. There is no guess about the others. The number must not depend on the scores.
    """
    marks = np.asarray(included)
    if marks.ndim != 1 or marks.dtype != np.bool_ or not marks.size:
        raise InputError(
            f"inclusions are true or false for each canary, (canaries,), got {marks.dtype} of shape {marks.shape}."
        )
    canaries = len(marks)
    made = _guesses(canaries, guesses, delta)
    numbers = np.asarray(scores, dtype=np.float64)
    if numbers.shape != (canaries,) or np.isnan(numbers).any():
        raise InputError(f"an audited run must return {canaries:,} scores that are numbers, got shape {numbers.shape} or NaN.")
    order = np.argsort(numbers, kind="stable")
    correct = int(marks[order[canaries - made // 2 :]].sum() + (~marks[order[: made // 2]]).sum())
    lower = epsilon_lower_bound(canaries=canaries, guesses=made, correct=correct, delta=delta, confidence=confidence)
    return AuditResult(canaries=canaries, guesses=made, correct=correct, delta=delta, confidence=confidence, lower=lower)


def orthogonal_canaries(*, count: int, size: int, clip: float, seed: PublicSeed) -> Tensor:
    """Orthogonal rows `(count, size)` of norm `clip` without large numbers: canaries that are as far apart as possible.

    They lie in the space in which clipping and noise happen. For sketches, that is the space of the sketch.
    """
    check_count("count", count)
    check_count("size", size)
    if count > size or not positive(clip):
        raise InputError(
            f"there are at most size = {size:,} vectors at right angles, and their norm is positive; got count = {count:,} and "
            f"clip = {clip!r}."
        )
    rows = clip * np.eye(count, size)
    Flattening(size=size, seed=seed.child("canaries")).apply_(rows)
    return torch.from_numpy(rows.astype(np.float32))


def _guesses(canaries: int, guesses: int | None, delta: float) -> int:
    made = 2 * max(1, canaries // 20) if guesses is None else guesses
    _check(canaries, made, 0, delta)
    if made % 2:
        raise InputError(f"half of the guesses say in and half say out, so their number is even, got {made}.")
    return made


def _check(canaries: int, guesses: int, correct: int, delta: float) -> None:
    for name, value in (("canaries", canaries), ("guesses", guesses), ("correct guesses", correct)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"the number of {name} is an integer, got {value!r}.")
    if not 0 <= correct <= guesses <= canaries:
        raise InputError(
            f"no more guesses can be correct than were made, or made than there are canaries; got {correct} correct of "
            f"{guesses} about {canaries}."
        )
    if not isinstance(delta, int | float) or not 0 <= delta <= 1:
        raise InputError(f"δ is a probability, got {delta!r}.")
