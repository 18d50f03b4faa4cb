"""Distributed linear regression."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.tasks.history import History, MeanEstimator, Meter, check_clients


def linear_regression(
    clients: Sequence[tuple[Tensor, Tensor]],
    channel: MeanEstimator,
    *,
    iterations: int,
    rate: float,
    start: Tensor | None = None,
) -> History:
    """Weights for features `(m, dim)` and targets `(m,)` that clients keep, from `start`, or 0.

    Paper: Jiang et al. 2023, Sec. 5, task 3. Each client sends the gradient 2Xᵀ(Xw − y)/m of its mean squared error; the server
    takes a step of `rate` along their mean. The loss is the mean squared error, over all examples.
    """
    dim = check_clients([x for x, _ in clients], what="linear regression")
    for number, (x, y) in enumerate(clients):
        if tuple(y.shape) != (len(x),):
            raise InputError(
                f"client {number} has {len(x)} examples, but targets of shape {tuple(y.shape)}. Give one for each."
            )
    if not 0 < rate < float("inf"):
        raise InputError(f"the rate is a positive number, got {rate!r}.")
    if start is not None and tuple(start.shape) != (dim,):
        raise InputError(f"start is a vector of {dim} numbers, got shape {tuple(start.shape)}.")
    meter = Meter(channel, iterations=iterations, clients=len(clients))
    w = torch.zeros(dim) if start is None else start.to(torch.float32)
    total = sum(len(y) for _, y in clients)
    residuals = [x @ w - y for x, y in clients]
    for _ in range(iterations):
        gradients = [2 * (x.T @ r) / len(r) for (x, _), r in zip(clients, residuals, strict=True)]
        w = w - rate * meter.mean(torch.stack(gradients))
        residuals = [x @ w - y for x, y in clients]
        meter.note(sum(float(r.double().square().sum()) for r in residuals) / total)
    return meter.history(w)
