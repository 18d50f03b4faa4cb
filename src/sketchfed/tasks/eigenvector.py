"""Distributed power iteration."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sketchfed.errors import InputError
from sketchfed.tasks.history import History, MeanEstimator, Meter, check_clients


def power_iteration(
    clients: Sequence[Tensor],
    channel: MeanEstimator,
    *,
    iterations: int,
    start: Tensor,
    target: Tensor | None = None,
) -> History:
    """The principal eigenvector of second moments XᵀX/m of data `(m, dim)` that clients keep.

    Paper: Jiang et al. 2023, Sec. 5, task 1. From the global estimate v each client makes one step with its own data,
    XᵀXv/‖XᵀXv‖, and sends that; the server takes the direction of the mean. Data should be centred if the covariance is
    meant. Where clients' data differ, the mean of unit vectors has a fixed point close to the eigenvector, not at it.

    The loss is ‖v − target‖ with the sign of v that makes it smaller; `target` is the eigenvector of all data unless given.
    """
    dim = check_clients(clients, what="power iteration")
    for name, vector in (("start", start), ("target", target)):
        if vector is not None and (tuple(vector.shape) != (dim,) or not bool(vector.norm() > 0)):
            raise InputError(f"{name} is a vector of {dim} numbers that is not zero, got shape {tuple(vector.shape)}.")
    meter = Meter(channel, iterations=iterations, clients=len(clients))
    top = normalize(_principal(clients) if target is None else target.to(torch.float32), dim=0)
    v = normalize(start.to(torch.float32), dim=0)
    for _ in range(iterations):
        local = normalize(torch.stack([x.T @ (x @ v) for x in clients]), dim=1)
        mean = meter.mean(local)
        v = normalize(mean, dim=0) if mean.any() else v
        meter.note(float(min((v - top).norm(), (v + top).norm())))
    return meter.history(v)


def _principal(clients: Sequence[Tensor]) -> Tensor:
    moments = torch.stack([x.T.double() @ x.double() for x in clients]).sum(0)
    vectors: Tensor = torch.linalg.eigh(moments).eigenvectors
    return vectors[:, -1].to(torch.float32)
