"""Measures a model between rounds: its score on held-out data, and how much of its gradient the packets carry."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.errors import NotLinearError, reason
from sketchfed.runs import captured
from sketchfed.runs.workload import KEYS, Workload
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Score, Trainer
from sketchfed.training.metrics import measured, metric_key
from sketchfed.vectors import flatten

log = logging.getLogger("sketchfed")
Result = TypeVar("Result")


class Scorer:
    """Measures in parallel. Results are bitwise equal for any number of workers, because chunks are added up in order."""

    def __init__(self, workload: Workload, trainer: Trainer, seed: PublicSeed, *, workers: int) -> None:
        self._workload, self._trainer, self._seed = workload, trainer, seed
        self._chunks = workload.test_chunks()
        if workload.metrics:  # refuse a metric that does not fit before training starts
            first = self._chunks[0]
            outputs = trainer.outputs(flatten(workload.module), first.x)
            for metric in workload.metrics:
                measured(metric, outputs, first.y)
        # Torch keeps a thread count per calling thread, so the setting of the main thread does not apply to the pool.
        self._pool = ThreadPoolExecutor(
            1 if trainer.sequential else workers, "score", initializer=torch.set_num_threads, initargs=(1,)
        )

    def score(self, replica: Replica) -> Score:
        """The loss, accuracy and metric on the held-out data."""
        weights = replica.weights
        score = self._workload.summarise(self._each(lambda chunk: self._trainer.score(weights, chunk), self._chunks))
        if (evaluation := self._workload.evaluation) is not None:
            found = evaluation.measured(weights, replica.round, self._seed)
            own = evaluation.expected(found, self._workload.keys[len(KEYS) + len(self._workload.metrics) :])
            score = Score(found.get("loss", score.loss), found.get("accuracy", score.accuracy), own)
        if not self._workload.metrics:
            return score
        outputs = self._each(lambda chunk: self._trainer.outputs(weights, chunk.x), self._chunks)
        targets = [chunk.y for chunk in self._chunks]
        every, true = torch.cat(outputs), torch.cat(targets)
        named = {metric_key(metric): measured(metric, every, true) for metric in self._workload.metrics}
        return score._replace(others={**named, **score.others})

    def captured(self, algorithm: Algorithm, replica: Replica) -> float | None:
        """The share of the training gradient that the next round's packets carry. None unless their code is orthonormal."""
        context = RoundContext(round=replica.round, seed=self._seed, client=0, replica=replica)
        try:
            code = algorithm.code(self._trainer.dim, context)
        except NotLinearError:
            return None
        if not code.orthonormal:
            return None
        own = self._seed.child("captured")

        def descent(chunk: Examples) -> Tensor | None:
            try:
                return captured.descent(self._trainer, replica.weights, chunk, own)
            except Exception as error:  # the model, loss or data of a client raised; its rounds report it
                log.debug("examples are left out of the captured share: %s", reason(error))
                return None

        parts = [part for part in self._each(descent, self._sample) if part is not None]
        return captured.captured_share(code, parts) if parts else None

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    @cached_property
    def _sample(self) -> list[Examples]:
        return captured.training_sample(self._workload, self._seed.child("captured"))

    def _each(self, function: Callable[[Examples], Result], chunks: Sequence[Examples]) -> list[Result]:
        return list(self._pool.map(function, chunks))
