"""How much of the gradient a round's packets carry.

It is measured on the training data without noise, so it is for the operator of a simulation, not for publication.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.kernels.draws import subset
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, LocalWork, Trainer
from sketchfed.workload import Workload

EXAMPLES = 2_048
"""So many training examples stand for all of them."""
_CHUNK = 256
_STEP = LocalWork(rate=2.0**20, steps=1)  # a long step: little of it is lost to rounding when the weights are subtracted


def sample(workload: Workload, seed: PublicSeed) -> list[Examples]:
    """At most `EXAMPLES` training examples in chunks, from each client in proportion to what it has; the same at any time."""
    ends = list(accumulate((len(part) for part in workload.parts), initial=0))
    size = min(EXAMPLES, ends[-1])
    counts = [size * end // ends[-1] - size * start // ends[-1] for start, end in pairwise(ends)]
    drawn = [
        part[torch.from_numpy(subset(seed.child("sample", client).stream, dim=len(part), size=count)).long()]
        for client, (part, count) in enumerate(zip(workload.parts, counts, strict=True))
        if count
    ]
    data, rows = workload.dataset, torch.cat(drawn)
    chunks = (rows[start : start + _CHUNK] for start in range(0, size, _CHUNK))
    return [Examples(data.prepare(data.x_train[chunk]), data.y_train[chunk]) for chunk in chunks]


def descent(trainer: Trainer, weights: Tensor, examples: Examples, seed: PublicSeed) -> Tensor:
    """The negative gradient of the examples' losses, summed, `(dim,)`; its length is in a unit of its own."""
    return (trainer.train(weights, examples, _STEP, seed) - weights).mul_(len(examples.x))


def share(algorithm: Algorithm, replica: Replica, parts: Sequence[Tensor], seed: PublicSeed) -> float | None:
    """What the next round's packets carry of the gradient whose parts these are; None if there is no gradient to carry."""
    gradient = reduce(torch.add, parts)
    if not 0 < float(gradient.norm()) < float("inf"):
        return None
    found = algorithm.captured(replica, gradient, seed)
    return None if found is None else min(found, 1.0)  # rounding must not make it more than all
