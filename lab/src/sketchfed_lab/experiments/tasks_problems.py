"""The problems of the three tasks of Jiang et al. 2023, Sec. 5: data, how it is spread over clients, and where tasks start."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from sketchfed import PublicSeed
from sketchfed.data import DataSet, load, partition
from sketchfed.draws import normals, subset
from sketchfed.tasks import History, MeanEstimator, k_means, linear_regression, power_iteration

SIDE = 32
CLUSTERS = 10
FINGERPRINTS, FEATURES = 10_000, 512


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A task with its data: `solve(channel, split, clients, iterations, seed)` runs it once."""

    dim: int
    solve: Callable[[MeanEstimator, str, int, int, PublicSeed], History]


def problem(task: str, rate: float | None = None) -> Problem:
    """The problem of a task; `rate` is that of the regression."""
    if task == "power-iteration":
        return Problem(dim=len(_principal()), solve=_eigenvector)
    if task == "k-means":
        return Problem(dim=_images().x_train.shape[1], solve=_centroids)
    return Problem(dim=_fingerprints().x_train.shape[1], solve=_regression(rate or 0.0))


def _eigenvector(channel: MeanEstimator, split: str, clients: int, iterations: int, seed: PublicSeed) -> History:
    """Images centred by the mean of all, so that second moments are the covariance; a normal vector to start from."""
    start = normals(seed.child("start"), len(_principal()))
    parts = [_centred()[rows] for rows in _rows(_images(), split, clients, seed)]
    return power_iteration(parts, channel, iterations=iterations, start=start, target=_principal())


def _centroids(channel: MeanEstimator, split: str, clients: int, iterations: int, seed: PublicSeed) -> History:
    """Images as they are; ten of them to start from."""
    data = _images()
    chosen = subset(seed.child("start"), CLUSTERS, of=len(data.x_train))
    parts = [data.x_train[rows] for rows in _rows(data, split, clients, seed)]
    return k_means(parts, channel, iterations=iterations, start=data.x_train[chosen])


def _regression(rate: float) -> Callable[[MeanEstimator, str, int, int, PublicSeed], History]:
    """Weights that start at 0."""

    def solve(channel: MeanEstimator, split: str, clients: int, iterations: int, seed: PublicSeed) -> History:
        data = _fingerprints()
        parts = [(data.x_train[rows], data.y_train[rows, 0]) for rows in _rows(data, split, clients, seed)]
        return linear_regression(parts, channel, iterations=iterations, rate=rate)

    return solve


def _rows(data: DataSet, split: str, clients: int, seed: PublicSeed) -> list[Tensor]:
    """Whose examples are which: shuffled, or two shards of a class each, or sorted by the target and cut."""
    if split == "iid":
        return partition(data, name="iid", clients=clients, seed=seed.child("split"))
    if data.task == "classification":
        return partition(data, name="shards", clients=clients, seed=seed.child("split"))
    return list(torch.argsort(data.y_train[:, 0], stable=True).tensor_split(clients))


@lru_cache(maxsize=1)
def _images() -> DataSet:
    """The test part of Fashion-MNIST as examples of 32 × 32 pixels from 0 to 1."""
    data = load("fashion_mnist")
    small = data.prepare(data.x_test)
    x = interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False).reshape(len(small), -1)
    return _only_training(data, x, data.y_test)


@lru_cache(maxsize=1)
def _centred() -> Tensor:
    x = _images().x_train
    return x - x.mean(0)


@lru_cache(maxsize=1)
def _principal() -> Tensor:
    x = _centred().double()
    vectors: Tensor = torch.linalg.eigh(x.T @ x).eigenvectors
    return vectors[:, -1].to(torch.float32)


@lru_cache(maxsize=1)
def _fingerprints() -> DataSet:
    """Signals of the first 512 access points (0 for one that was not heard, 1 for the strongest) and the longitude.

    All are standardised; access points that are never heard stay 0.
    """
    data = load("ujiindoorloc", target="position")
    count = min(FINGERPRINTS, len(data.x_train))
    rows = subset(PublicSeed(0).child("rows"), count, of=len(data.x_train))
    x, y = data.prepare(data.x_train[rows])[:, :FEATURES], data.y_train[rows, :1]
    return _only_training(data, _standardised(x), _standardised(y))


def _only_training(data: DataSet, x: Tensor, y: Tensor) -> DataSet:
    return replace(
        data,
        x_train=x,
        y_train=y,
        x_test=x[:1],
        y_test=y[:1],
        groups=None,
        outputs=data.outputs if y.ndim == 1 else 1,
        shape=tuple(x.shape[1:]),
        prepare=lambda rows: rows,
    )


def _standardised(x: Tensor) -> Tensor:
    deviation = x.std(0, correction=0)
    return torch.where(deviation > 0, (x - x.mean(0)) / deviation, 0.0)
