"""Algorithm 1 as its theorems see it: full gradients, every client in every round, float64."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.planner.problem import check_rates, check_steps
from sketchfed.planner.regression import Regression
from sketchfed.sketches import Sketch

_FAR = 1e6  # beyond this a trajectory has diverged, and is left where it is


SketchAt = Callable[[int, int], Sketch]
"""The sketch of a run and a round."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Where all trajectories are after `round` exchanges; tensors are `(runs, rates, dim)`."""

    round: int
    w: Tensor
    average: Tensor
    """The mean of ū^{t,k} over all local steps so far (Thm 5.3); w⁰ before the first."""


def simulate(
    problem: Regression,
    *,
    rates: Sequence[float],
    local_steps: int = 1,
    runs: int = 1,
    sketch_at: SketchAt | None = None,
    start: Tensor | None = None,
) -> Iterator[Snapshot]:
    """Iterative sketching (Song et al. 2023, Alg. 1) at several step sizes and with `runs` sequences of sketches at once.

    `sketch_at(run, round)` is the sketch of a round, shared by all step sizes; None means no sketching. The server's mean of
    sketches is computed as the sketch of the mean, which linearity allows. Line 9 of the algorithm is read with the sketch
    that made the message, desk_{t−1}: with desk_t, drawn independently, nothing would be recovered. Yields w⁰ and then the
    state after every round, forever; it is the caller who stops. The tensors are reused: copy what you keep.
    """
    check_steps(local_steps)
    if not rates:
        raise InputError("simulate needs at least one rate.")
    for rate in rates:
        check_rates(rate)
    w = torch.zeros(runs, len(rates), problem.dim, dtype=torch.float64)
    if start is not None:
        w += start
    steps = torch.tensor(list(rates), dtype=torch.float64)[:, None].expand(runs, len(rates), 1).clone()
    total = torch.zeros_like(w)
    yield Snapshot(round=0, w=w, average=w)
    number = 0
    while True:
        points = w.reshape(1, -1, problem.dim).repeat(problem.clients, 1, 1)
        for _ in range(local_steps):
            total += points.mean(0).view_as(w)
            points.addcmul_(problem.gradients(points), steps.reshape(1, -1, 1), value=-1)
        change = points.mean(0).view_as(w) - w
        if sketch_at is None:
            w += change
        else:
            for run in range(runs):
                sketch = sketch_at(run, number)
                w[run] += sketch.adjoint(sketch.apply(change[run]))
        steps[w.norm(dim=-1, keepdim=True) > _FAR] = 0
        number += 1
        yield Snapshot(round=number, w=w, average=total / (number * local_steps))
