"""Parts as somebody else might bring them, found as `runs.brought:…`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.algorithms import FedAvg
from sketchfed.codecs import Dense
from sketchfed.privacy import GaussianNoise, Mechanism
from sketchfed.runs.hosts import LocalHost
from sketchfed.seeds import SecretSeed
from sketchfed.sketches.count import Count


@dataclass(frozen=True, kw_only=True)
class OwnSketch(Count):
    name = "own_sketch"


@dataclass(frozen=True, kw_only=True)
class OwnCodec(Dense):
    name = "own_codec"


@dataclass(frozen=True, kw_only=True)
class OwnAlgorithm(FedAvg):
    extra: float = 1.0

    name = "own_algorithm"


@dataclass(frozen=True, kw_only=True)
class OwnMechanism(GaussianNoise):
    """Normal noise that leaves a mark: every sum is rounded to multiples of 1/1024 after it."""

    name = "own_mechanism"

    def noised(self, total: Tensor, secret: SecretSeed) -> Tensor:
        return (super().noised(total, secret) * 1024).round() / 1024


class Deaf(LocalHost):
    """Clients of this process. One of them never answers."""

    def __init__(self, config, workload, folder, *, client=0):
        super().__init__(config, workload, folder)
        self._deaf = client

    def begin(self, config, participant, start):
        engine = super().begin(config, participant, start)
        ask = engine.ask
        engine.ask = lambda requests, stage="train": ask({c: r for c, r in requests.items() if c != self._deaf}, stage)
        return engine


def no_engine(config, workload, folder):
    return "engine"


def turns(data, *, clients, seed, first=0):
    return (np.arange(len(data.x_train)) + first) % clients


def all_to_one(data, *, clients, seed):
    return np.zeros(len(data.x_train), np.int64)


def too_few(data, *, clients, seed):
    return np.zeros(3, np.int64)


def too_many(data, *, clients, seed):
    return np.arange(len(data.x_train))


def margin_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.multi_margin_loss(outputs, targets)


def largest_share(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the class that is guessed most often: none of the chunks knows it alone."""
    return torch.bincount(outputs.argmax(1)).max() / len(targets)


def undefined(outputs: Tensor, targets: Tensor) -> float:
    return float("nan")


def many_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs


def loss(outputs: Tensor, targets: Tensor) -> float:
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Foreign(Mechanism):
    """Noise of which nobody has said what it costs."""

    name = "foreign"
    summary = "some noise"
    source = "here"
