"""sketchfed as its users run it: a configuration, clients in threads, every message packed to bytes."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from sketchfed.data import DataSet
from sketchfed.runs import Workload, run
from sketchfed.training import Examples, PerceptronTrainer
from sketchfed_lab.benchmarks.peers.laps import Laps
from sketchfed_lab.benchmarks.peers.memory import forget_peak
from sketchfed_lab.benchmarks.peers.work import WIDTHS, Work, pixels


def images(*, rows: int) -> DataSet:
    """The first `rows` images, prepared as the data set 'mnist' does it. They are not scored, so ten are held out."""
    x, y = pixels()
    return DataSet(
        name="images",
        x_train=x[:rows],
        y_train=y[:rows],
        x_test=x[:10],
        y_test=y[:10],
        outputs=WIDTHS[-1],
        shape=x.shape[1:],
        prepare=lambda stored: stored.float() / 255,
    )


def measure(
    work: Work, *, cores: int, sketched: bool, engine: Mapping[str, Any] = MappingProxyType({}), folder: Path | None = None
) -> Laps:
    """Do all rounds, with updates sketched to a tenth or as they are."""
    laps, begun = Laps(skipped=work.warmup, rounds=work.rounds), False

    def note(line: dict[str, Any]) -> None:
        if line["participants"] != work.participants:
            raise RuntimeError(f"only {line['participants']} of {work.participants} clients returned an update")
        nonlocal begun
        if not begun:
            forget_peak()  # what loading took is over
        begun = True
        laps()

    rounds = 1 + work.warmup + work.rounds
    config = {
        "data": {
            "name": "sketchfed_lab.benchmarks.peers.ours:images",
            "rows": work.clients * work.examples,
            "clients": work.clients,
        },
        "model": {"name": "mlp", "hidden": list(WIDTHS[1:-1])},
        "algorithm": {
            "name": "fedavg",
            "rounds": rounds,
            "participation": work.participants / work.clients,
            "batch": work.batch,
            "local_rate": work.rate,
        },
        "codec": {"name": "sketched" if sketched else "dense"},
        "engine": {"workers": cores, "evaluate_every": rounds, **engine},
    }
    with nullcontext() if work.train else _untrained():
        run(config, on_round=note, folder=folder)
    return laps


def _untrained() -> AbstractContextManager[object]:
    """Clients whose local training is a copy of the weights, and whose data is not even loaded."""

    def train(_: PerceptronTrainer, weights: Tensor, *others: object) -> Tensor:
        return weights.clone()  # the caller changes what it gets

    stack = ExitStack()
    stack.enter_context(patch.object(PerceptronTrainer, "train", train))
    stack.enter_context(patch.object(Workload, "examples", lambda *_: Examples(torch.zeros(1, 1), torch.zeros(1))))
    return stack
