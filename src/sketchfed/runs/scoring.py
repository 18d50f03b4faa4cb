"""What is measured of a model between rounds: its score on held-out data, and what packets carry of its gradient."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica
from sketchfed.runs import captured
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Score, Trainer
from sketchfed.workload import Workload

Result = TypeVar("Result")


class Scorer:
    """Measures in parallel, the same bits for any number of workers: chunks are computed alone and added up in order."""

    def __init__(self, workload: Workload, trainer: Trainer, seed: PublicSeed, *, workers: int) -> None:
        self._workload, self._trainer, self._seed = workload, trainer, seed
        self._chunks = workload.test_chunks()
        # Torch counts threads for each thread that calls it: what the main thread was told, these would not know.
        self._pool = ThreadPoolExecutor(
            1 if trainer.sequential else workers, "score", initializer=torch.set_num_threads, initargs=(1,)
        )

    def score(self, weights: Tensor) -> Score:
        """Loss and accuracy on the held-out data."""
        return self._workload.summarise(self._each(lambda chunk: self._trainer.score(weights, chunk), self._chunks))

    def captured(self, algorithm: Algorithm, replica: Replica) -> float | None:
        """The share of the training data's gradient that the packets of the round to come can carry."""
        own = self._seed.child("captured")
        parts = self._each(lambda chunk: captured.descent(self._trainer, replica.weights, chunk, own), self._sample)
        return captured.share(algorithm, replica, parts, self._seed)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    @cached_property
    def _sample(self) -> list[Examples]:
        return captured.sample(self._workload, self._seed.child("captured"))

    def _each(self, function: Callable[[Examples], Result], chunks: Sequence[Examples]) -> list[Result]:
        return list(self._pool.map(function, chunks))
