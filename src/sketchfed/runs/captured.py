"""Measures how much of the gradient a round's packets carry.

The measurement uses the training data without noise, so it is for the operator of a simulation, not for publication.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sketchfed.codecs.linear import LinearCode
from sketchfed.kernels.draws import subset
from sketchfed.runs.workload import Workload
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, LocalWork, Trainer, Turn

EXAMPLES = 2_048
"""The number of training examples in the sample that represents all of them."""
_CHUNK = 256
_STEP = LocalWork(rate=2.0**20, steps=1)  # a long step loses little to rounding when the weights are subtracted


def training_sample(workload: Workload, seed: PublicSeed) -> list[Examples]:
    """Draw at most `EXAMPLES` training examples, in chunks. Each client contributes in proportion to its data.

    The same seed always gives the same sample.
    """
    ends = list(accumulate((len(part) for part in workload.parts), initial=0))
    size = min(EXAMPLES, ends[-1])
    counts = [size * end // ends[-1] - size * start // ends[-1] for start, end in pairwise(ends)]
    drawn = [
        part[torch.from_numpy(subset(seed.child("sample", client).stream, dim=len(part), size=count)).long()]
        for client, (part, count) in enumerate(zip(workload.parts, counts, strict=True))
        if count and not workload.dataset.unread(part)
    ]
    data, rows = workload.dataset, torch.cat(drawn)
    chunks = (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))
    return [Examples(data.prepare(data.x_train[chunk]), data.y_train[chunk]) for chunk in chunks]


def descent(trainer: Trainer, weights: Tensor, examples: Examples, seed: PublicSeed) -> Tensor:
    """The negative gradient of the summed losses of the examples, `(dim,)`, up to a constant factor."""
    return (trainer.train(weights, examples, _STEP, Turn(seed)).cpu() - weights).mul_(examples.size)


def captured_share(code: LinearCode, parts: Sequence[Tensor]) -> float | None:
    """The share of a gradient's energy that a code carries. None if the gradient is zero or not finite.

    `parts` add up to the gradient.
    """
    gradient = reduce(torch.add, parts)
    if not 0 < float(gradient.norm()) < float("inf"):
        return None
    sent = code.mapped(gradient)
    return min(1.0, float(sent.double().square().sum() / gradient.double().square().sum()))  # may exceed 1 by rounding
