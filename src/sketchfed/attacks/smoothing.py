"""A client's estimate of the server's weights and steps, from all broadcasts of sketched weights that it has kept.

Zhang & Wang 2021 bound what one way to combine two broadcasts reveals (Sec. 5.1), and give no bound for all ways (Remark 1).
The way used here combines all broadcasts with what is public about how weights move. A layer W (out × dim) is seen as W̃ = WS,
and a round moves it along its own sketch: W_{t+1} = W_t + U_t·S_tᵀ, where U_t (out × size) is unknown. If the first weights and
U are modelled as independent Gaussian numbers, Kalman's filter followed by a smoother gives the mean of all weights given all
broadcasts. The rows of W share one covariance (dim × dim). This is not in the paper.

A row has dim − size more unknowns than equations, however many rounds there are. But if wrong weights explain all broadcasts,
their error usually grows from round to round, and is soon larger than such short steps can explain. So all steps become known
except the last few and those shortly before a missed round, which acts like an end. At smaller sizes, more steps stay unknown.
Server momentum moves weights along earlier sketches too. That is not modelled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.attacks.estimation import Seen
from sketchfed.errors import InputError
from sketchfed.sketches import Sketch, dense

RoundClue = Seen | Sketch
"""What a client knows of a round: the broadcast or, if the client missed it, only the sketch, which follows from the seed."""

MOST_NUMBERS = 2**28
"""The largest amount of 8-byte numbers that is kept: 2 GiB."""
ROUNDING = 1e-12
"""The error variance of what was seen, for weights of variance 1. It is larger than that of float32, for stability."""
UNKNOWN_MOVEMENT = 0.01
"""The `movement` if too little was seen to estimate it."""


def smoothed_steps(rounds: Sequence[RoundClue], *, movement: float | None = None) -> Tensor:
    """The steps W_t − W_{t+1} between consecutive rounds, `(rounds − 1, out, dim)`: the differences of `smoothed_weights`."""
    weights = smoothed_weights(rounds, movement=movement)
    return weights[:-1] - weights[1:]


def smoothed_weights(rounds: Sequence[RoundClue], *, movement: float | None = None) -> Tensor:
    """The mean of each round's weights given everything that was seen, `(rounds, out, dim)`, in float64.

    `rounds` are consecutive. Any slice of a run will do. `movement` is the variance of an entry of U divided by that of an
    entry of the first weights, by default `estimated_movement`. The means depend on this ratio only. After the last round that
    was seen, weights stay as they are. Papers: Rauch, Tung & Striebel 1965 for the mean; Koopman 1993, "Disturbance smoother
    for state space models", for computing it from the gains of the filter, size × dim per round, without keeping its
    covariances.
    """
    out = _outputs(rounds)
    if movement is None:
        movement = estimated_movement(rounds)
    elif not 0 < movement < float("inf"):
        raise InputError(f"movement is a ratio of variances, above 0 and finite, got {movement}. Leave it out to estimate it.")
    sketches = [_sketch(each) for each in rounds]
    news = list(_filtered(rounds, movement, out))
    pull = torch.zeros(out, sketches[0].dim, dtype=torch.float64)  # how all that was seen later bears on a row
    changes = []
    for sketch, told in zip(reversed(sketches), reversed(news), strict=True):
        changes.append(movement * sketch.apply(pull))
        if told is not None:
            pull = pull + sketch.adjoint(told.surprise - pull @ told.gain.T)
    weights = pull.new_empty(len(rounds), *pull.shape)
    weights[0] = pull  # times the first covariance, the identity, from a mean of 0
    for index, change in enumerate(reversed(changes[1:])):
        weights[index + 1] = weights[index] + sketches[index].adjoint(change)
    return weights


def estimated_movement(rounds: Sequence[RoundClue]) -> float:
    """Estimate the variance of an entry of U divided by that of an entry of W, each by the method of moments.

    W: ‖W̃‖² over everything that was seen, where entries of variance 1 would give out·‖S‖². U: the distance between what was
    seen and constant weights, by least squares, where entries of variance 1 would give what their rounds add to it. This uses
    the first rounds only, up to 3/2·dim numbers per row. The estimate is rough, and good enough: 100 times too little hardly
    changes the result, and 100 times too much changes it only if little was seen, because sketches are small or rounds were
    missed.
    """
    out = _outputs(rounds)
    first = _first(rounds)
    seen = [each for each in first if isinstance(each, Seen)]
    nothing = torch.zeros(seen[0].sketch.dim, seen[0].sketch.dim, dtype=torch.float64)
    still = torch.linalg.pinv(sum((_outer(each.sketch) for each in seen), start=nothing), hermitian=True)
    expected, possible = 0.0, 0.0
    for index, each in enumerate(first):
        later = sum(isinstance(other, Seen) for other in first[index + 1 :])
        moved = dense(_sketch(each))
        unit = [(place >= len(seen) - later) * other.sketch.apply(moved) for place, other in enumerate(seen)]
        expected, possible = expected + out * _misfit(unit, seen, still), possible + out * sum(map(_square, unit))
    told = [each for each in rounds if isinstance(each, Seen)]
    weights = sum(_square(_exact(each)) for each in told) / (out * sum(_square(dense(each.sketch)) for each in told))
    if weights == 0 or expected <= 1e-9 * possible:
        return UNKNOWN_MOVEMENT
    return max(_misfit([_exact(each) for each in seen], seen, still) / expected / weights, ROUNDING)


@dataclass(frozen=True, kw_only=True, eq=False)
class _News:
    """What the filter computes for a round: its innovation over the covariance (out × size), and its gain (size × dim)."""

    surprise: Tensor
    gain: Tensor


def _filtered(rounds: Sequence[RoundClue], movement: float, out: int) -> Iterator[_News | None]:
    """Run Kalman's filter, with first weights of variance 1. Yields None for a round that was missed."""
    dim = _sketch(rounds[0]).dim
    mean, covariance = torch.zeros(out, dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)
    for each in rounds:
        sketch = _sketch(each)
        if isinstance(each, Seen):
            cross = sketch.apply(covariance).T
            root = torch.linalg.cholesky(sketch.apply(cross) + ROUNDING * torch.eye(sketch.size, dtype=torch.float64))
            white = torch.linalg.solve_triangular(root, cross, upper=False)
            gain = torch.linalg.solve_triangular(root.T, white, upper=True)
            innovation = _exact(each) - sketch.apply(mean)
            mean, covariance = mean + innovation @ gain, covariance - white.T @ white
            yield _News(surprise=torch.cholesky_solve(innovation.T, root).T, gain=gain)
        else:
            yield None
        covariance = covariance + movement * _outer(sketch)


def _first(rounds: Sequence[RoundClue]) -> Sequence[RoundClue]:
    """The rounds from the first that was seen on, until there are 3/2·dim numbers per row. All rounds, if there are fewer."""
    start = next(index for index, each in enumerate(rounds) if isinstance(each, Seen))
    told = 0
    for index, each in enumerate(rounds):
        told += each.sketch.size if isinstance(each, Seen) else 0
        if told >= 1.5 * _sketch(each).dim:
            return rounds[start : index + 1]
    return rounds[start:]


def _misfit(rows: Sequence[Tensor], seen: Sequence[Seen], still: Tensor) -> float:
    """The squared distance of rows, one matrix per broadcast, from the sketches of one constant matrix."""
    pairs = list(zip(rows, seen, strict=True))
    weights = sum((each.sketch.adjoint(told) for told, each in pairs), start=torch.zeros(())) @ still
    return sum(_square(told - each.sketch.apply(weights)) for told, each in pairs)


def _sketch(each: RoundClue) -> Sketch:
    return each.sketch if isinstance(each, Seen) else each


def _exact(each: Seen) -> Tensor:
    return each.rows.detach().to("cpu", torch.float64)


def _outer(sketch: Sketch) -> Tensor:
    """SSᵀ (dim × dim)."""
    return sketch.adjoint(dense(sketch).T)


def _square(t: Tensor) -> float:
    return float(t.square().sum())


def _outputs(rounds: Sequence[RoundClue]) -> int:
    """The number of rows of the layer. Refuses rounds of different layers, and rounds that need too much memory."""
    for index, each in enumerate(rounds):
        if not isinstance(each, Seen | Sketch):
            raise InputError(
                f"round {index} is of type {type(each).__name__}. Give what was Seen of it or, if it was missed, its sketch."
            )
    seen = [each for each in rounds if isinstance(each, Seen)]
    if not seen:
        raise InputError(f"nothing was seen in any of the {len(rounds)} rounds. Give what was Seen of at least one.")
    out, dim = len(seen[0].rows), seen[0].sketch.dim
    if any(_sketch(each).dim != dim for each in rounds) or any(len(each.rows) != out for each in seen):
        raise InputError(
            f"some rounds are not of {out:,} outputs and {dim:,} inputs, as others are. Give rounds of one layer only."
        )
    if not all(each.rows.isfinite().all() for each in seen):
        raise InputError("some of what was seen is NaN or infinite, so training has diverged. Give the rounds before that.")
    size = max(_sketch(each).size for each in rounds)
    fitting = (MOST_NUMBERS // dim - 4 * dim) // (size + 3 * out)
    if len(rounds) > fitting:
        change = f"Give {fitting:,} rounds at most, say the last." if fitting > 1 else "Choose a layer of fewer inputs."
        raise InputError(
            f"{len(rounds):,} rounds of {out:,} outputs and {dim:,} inputs, sketched to {size:,}, take more than "
            f"{MOST_NUMBERS:,} numbers: inputs · (4 · inputs + rounds · (size + 3 · outputs)). {change}"
        )
    return out
