"""A problem whose rounds take a millisecond: three kinds of points in four dimensions."""

import torch
from torch import Tensor, nn

from sketchfed.data import DataSet


def points(count: int, *, first: int = 0) -> tuple[Tensor, Tensor]:
    """Points with their kinds; those of another `first` are others."""
    numbers = torch.arange(first, first + count)
    kinds = numbers % 3
    noise = torch.sin(12.9898 * torch.arange(1, 5) * (numbers[:, None] + 1))
    return torch.eye(4)[kinds] + 0.3 * noise, kinds


def data(*, count: int = 48) -> DataSet:
    """For [data] name = "tiny:data"."""
    x, y = points(count + 24)
    return DataSet(
        name="tiny",
        x_train=x[:count],
        y_train=y[:count],
        x_test=x[count:],
        y_test=y[count:],
        outputs=3,
        shape=(4,),
        prepare=lambda x: x,
    )


def model(shape: tuple[int, ...], outputs: int, *, width: int = 5) -> nn.Module:
    """For [model] name = "tiny:model": torch draws its first weights."""
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))


DATA = {"name": "tiny:data", "clients": 4}
ALGORITHMS = {
    "fedavg": {"algorithm": {"name": "fedavg", "global_momentum": 0.5}},
    "few bits, few participants, momentum": {
        "algorithm": {"name": "iterative", "participation": 0.5, "global_momentum": 0.5},
        "sketch": {"ratio": 0.5, "bits": 4},
    },
    "moments": {
        "algorithm": {"name": "iterative", "participation": 0.5, "server": "yogi"},
        "sketch": {"ratio": 0.5},
    },
    "projection": {
        "algorithm": {"name": "iterative", "form": "projection", "participation": 0.5},
        "sketch": {"ratio": 0.3},
    },
    "layers and plain biases": {
        "algorithm": {"name": "iterative", "form": "projection", "participation": 0.5},
        "sketch": {"ratio": 0.3, "blocks": "layer", "plain": ["*.bias"], "bits": 8},
    },
    "error feedback": {
        "algorithm": {"name": "fedavg", "error_feedback": True, "participation": 0.5},
        "codec": {"name": "sketched"},
        "sketch": {"ratio": 0.3, "bits": 8},
    },
    "fetchsgd": {"algorithm": {"name": "fetchsgd", "rows": 3}, "sketch": {"name": "count", "ratio": 0.5}},
    "blind clients": {
        "algorithm": {"name": "dbcl", "participation": 0.5, "global_momentum": 0.5, "vary": 0.3, "public_start": True},
        "sketch": {"ratio": 0.5},
    },
    "a subspace that follows": {
        "algorithm": {"name": "dome", "participation": 0.5},
        "subspace": {"name": "incremental_svd", "size": 8},
    },
    "the printed subspace": {"algorithm": {"name": "dome", "paper": True}, "subspace": {"name": "history_pca", "size": 8}},
    "a frozen subspace": {"algorithm": {"name": "dome"}, "subspace": {"name": "frozen", "size": 8}},
    "a smooth subspace": {
        "algorithm": {"name": "dome"},
        "subspace": {"name": "fresh", "size": 6, "image": [2, 2], "frequencies": 3},
    },
    "a centred subspace": {
        "algorithm": {"name": "dome", "participation": 0.5},
        "subspace": {"name": "incremental_svd", "size": 6, "image": [2, 2], "frequencies": 3, "centre": True},
    },
}
"""One of each kind of state: none, momentum and history, memories of clients, sketches of the server, weights of its own."""


def tables(kind: str, *, rounds: int, **engine: object) -> dict[str, dict[str, object]]:
    """A configuration of one of `ALGORITHMS`."""
    own = ALGORITHMS[kind]
    algorithm = {"rounds": rounds, "local_steps": 2, "batch": 5, "local_rate": 0.2, **own["algorithm"]}
    return {**own, "data": DATA, "model": {"name": "mlp", "hidden": [5]}, "algorithm": algorithm, "engine": engine}
