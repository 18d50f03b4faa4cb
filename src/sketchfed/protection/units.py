"""The units whose contribution is bounded: a client's whole change, or the gradient of each example.

In both cases `Algorithm.client` makes the packet. At example level it receives a change that exists only in encoded form.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Change
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import NotLinearError
from sketchfed.privacy.base import Modular
from sketchfed.privacy.gaussian import GaussianNoise
from sketchfed.protection.batches import ExampleBatches, Noise, batch_of
from sketchfed.protection.work import ClientWork
from sketchfed.seeds import SecretSeed
from sketchfed.training import Examples, LocalWork, Trainer
from sketchfed.training.base import CHUNK
from sketchfed.wire import Packet, tensor_named

Training = Callable[[ClientWork, SecretSeed], Change]
"""Computes the change of a client from its work for the round and its secret."""


@dataclass(frozen=True)
class PlainTraining:
    """Ordinary local work, which needs no secret."""

    work: LocalWork

    def __call__(self, work: ClientWork, secret: SecretSeed) -> Change:
        return work.trained(self.work)


class ProtectedUnit(Protocol):
    """The unit whose contribution one clip norm bounds."""

    @property
    def batches(self) -> ExampleBatches | None:
        """How examples are drawn, if each example is a unit. Otherwise None."""

    @property
    def scale(self) -> float:
        """The factor that turns a sum of clipped contributions into a change."""

    def packet(
        self, work: ClientWork, mechanism: GaussianNoise, noise: Noise, secret: SecretSeed
    ) -> tuple[Packet, Tensor | None]:
        """Return the packet that a client sends, clipped contributions with `noise` on their sum, and the memory it keeps."""

    def integers(self, work: ClientWork, mechanism: Modular, secret: SecretSeed) -> Tensor:
        """Return the integers that a client masks: clipped and rounded contributions, `(mechanism.size,)`, before noise."""


@dataclass(frozen=True)
class WholeClient:
    """The unit is the whole change of a client."""

    algorithm: Algorithm
    train: Training

    batches = None
    scale = 1.0

    def packet(
        self, work: ClientWork, mechanism: GaussianNoise, noise: Noise, secret: SecretSeed
    ) -> tuple[Packet, Tensor | None]:
        code = self.algorithm.code(work.trainer.dim, work.context)
        packet, memory = self.algorithm.client(self.train(work, secret), work.memory, work.context)
        return code.packet(noise(mechanism.clipped_sum(code.values(packet)[None]), secret)), memory

    def integers(self, work: ClientWork, mechanism: Modular, secret: SecretSeed) -> Tensor:
        code = self.algorithm.code(work.trainer.dim, work.context)
        packet, _ = self.algorithm.client(self.train(work, secret), None, work.context)
        return mechanism.clipped_sum(code.values(packet)[None], secret, work.context.shared)


@dataclass(frozen=True)
class EachExample:
    """The unit is the gradient of one example."""

    algorithm: Algorithm
    batches: ExampleBatches
    steps: int

    @property
    def scale(self) -> float:
        work = self.algorithm.work
        return -work.rate / batch_of(work)

    def packet(
        self, work: ClientWork, mechanism: GaussianNoise, noise: Noise, secret: SecretSeed
    ) -> tuple[Packet, Tensor | None]:
        return self.algorithm.client(_NoisyCodes(self, work, mechanism, noise, secret), work.memory, work.context)

    def integers(self, work: ClientWork, mechanism: Modular, secret: SecretSeed) -> Tensor:
        packet, _ = self.algorithm.client(_Integers(self, work, mechanism, secret), None, work.context)
        return tensor_named(packet, "values", shape=(mechanism.size,), dtype=torch.int64)


class _Encoded(Change):
    """A change whose examples are clipped after encoding, so it exists only in encoded form."""

    def __init__(self, unit: EachExample, work: ClientWork, secret: SecretSeed) -> None:
        self._unit, self._work, self._secret = unit, work, secret

    @property
    def dim(self) -> int:
        return self._work.trainer.dim

    @property
    def unmoved(self) -> Tensor:
        raise NotLinearError(
            f"algorithm '{self._unit.algorithm.name}'",
            "it asks for whole changes, but privacy at example level clips each example after encoding.",
        )

    def _batches(self) -> Iterator[tuple[Examples, SecretSeed]]:
        return iter(self._unit.batches.draw(self._work.examples, self._work.context, self._secret))


class _NoisyCodes(_Encoded):
    """Local steps in which each step depends on earlier ones only through noisy codes.

    In each step the gradients of a batch are encoded, clipped one by one and added up. Noise is added to the sum, which has
    `size` numbers instead of `dim`. The client continues from what anyone could decode from that sum, so everything that it
    sends is a function of noisy sums. If the server adds the noise, there is one step, and what leaves the client has no noise
    yet. A code's offset is subtracted from the steps in equal parts.
    """

    def __init__(self, unit: EachExample, work: ClientWork, mechanism: GaussianNoise, noise: Noise, secret: SecretSeed) -> None:
        super().__init__(unit, work, secret)
        self._mechanism, self._noise = mechanism, noise

    def through(self, code: LinearCode) -> Tensor:
        trainer, local, steps = self._work.trainer, self._unit.algorithm.work, self._unit.steps
        weights, total = self._work.replica.weights.clone(), torch.zeros(code.size)
        for batch, own in self._batches():
            change = self._noise(self._summed(code, weights, batch), own).mul(-local.rate / batch_of(local))
            total += change
            if steps > 1:
                weights += trainer.gram(code.adjoint(change if code.offset is None else change + code.offset / steps))
        return total

    def _summed(self, code: LinearCode, weights: Tensor, batch: Examples) -> Tensor:
        trainer, rate = self._work.trainer, self._unit.algorithm.work.rate * self._unit.steps
        if code.map is None and code.offset is None:
            return code.apply(trainer.clipped_sum(weights, batch, self._mechanism.clip))
        summed = torch.zeros(code.size)
        for rows in encoded_gradients(code, trainer, weights, batch, rate):
            summed += self._mechanism.clipped_sum(rows)
        return summed


class _Integers(_Encoded):
    """One local step whose encoded gradients are rounded to integers."""

    def __init__(self, unit: EachExample, work: ClientWork, mechanism: Modular, secret: SecretSeed) -> None:
        super().__init__(unit, work, secret)
        self._mechanism = mechanism

    def through(self, code: LinearCode) -> Tensor:
        work, total = self._work, torch.zeros(code.size, dtype=torch.int64)
        [(batch, own)] = self._batches()
        gradients = encoded_gradients(code, work.trainer, work.replica.weights, batch, self._unit.algorithm.work.rate)
        for index, rows in enumerate(gradients):
            total += self._mechanism.clipped_sum(rows, own.child("rounding", index), work.context.shared)
        return total


def encoded_gradients(code: LinearCode, trainer: Trainer, weights: Tensor, batch: Examples, rate: float) -> Iterator[Tensor]:
    """Yield the encoded gradients of examples in chunks, `(some, size)`, each small enough for the cache."""
    if getattr(_kept, "rows", torch.empty(0, 0)).shape[1] != trainer.dim:
        _kept.rows = torch.empty(CHUNK, trainer.dim)
    for start in range(0, batch.size, CHUNK):
        part = batch.part(start, start + CHUNK)
        yield code.of_gradients(trainer.gradients(weights, part, out=_kept.rows), rate)


_kept = threading.local()  # allocating memory for the gradients takes longer than computing them
