"""Distributed k-means."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sketchfed.errors import InputError
from sketchfed.tasks.history import History, MeanEstimator, Meter, check_clients


def k_means(clients: Sequence[Tensor], channel: MeanEstimator, *, iterations: int, start: Tensor) -> History:
    """Centroids of data `(m, dim)` that clients keep, from the centroids `start` `(number, dim)`.

    Paper: Jiang et al. 2023, Sec. 5, task 2. From the global centroids each client makes one iteration of Lloyd's algorithm
    with its own data and sends its centroids, each a vector for itself; the server takes their means. Every client counts the
    same, as in a mean; Lloyd's algorithm on all data would weigh by examples.

    The paper does not say what becomes of clusters without examples. Here a client that has none near a centroid sends nothing
    for it, and a centroid that nobody sent stays. To send back the old centroid would send its error once more with another on
    top, and where errors exceed what they are errors of they grow without bound.

    The loss is the sum of squared distances of all clients' examples to their nearest centroids.
    """
    dim = check_clients(clients, what="k-means")
    if start.ndim != 2 or start.shape[1] != dim or not len(start):
        raise InputError(f"start holds centroids of {dim} numbers, one a row, got shape {tuple(start.shape)}.")
    meter = Meter(channel, iterations=iterations, clients=len(clients))
    centroids = start.to(torch.float32)
    squares = sum(float(x.square().sum()) for x in clients)
    local = _visit(clients, centroids)
    for _ in range(iterations):
        centroids = torch.where(local.present.any(0)[:, None], meter.mean(local.means, local.present), centroids)
        local = _visit(clients, centroids)
        meter.note(squares + local.rest)
    return meter.history(centroids)


class Local(NamedTuple):
    """What clients have near each centroid: their own centroids `(clients, number, dim)`, and which of them there are.

    `rest` is the sum of ‖x − c‖² − ‖x‖² over all examples.
    """

    means: Tensor
    present: Tensor
    rest: float


def _visit(clients: Sequence[Tensor], centroids: Tensor) -> Local:
    """Both from one look at each client's data, since reading it is what takes time: ‖x − c‖² − ‖x‖² = ‖c‖² − 2⟨x, c⟩."""
    means, counts = torch.empty(len(clients), *centroids.shape), torch.empty(len(clients), len(centroids))
    half, rest = 0.5 * centroids.square().sum(1), 0.0
    for client, x in enumerate(clients):
        values, labels = (half - x @ centroids.T).min(1)
        member = one_hot(labels, len(centroids)).to(x.dtype)
        counts[client] = member.sum(0)
        means[client] = member.T @ x / counts[client].clamp(min=1)[:, None]
        rest += 2 * float(values.double().sum())
    return Local(means, counts > 0, rest)
