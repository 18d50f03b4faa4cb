"""The work that `models.py` times: rounds of federated averaging of some models, by one side, in a process of its own.

`python model_cells.py SIDE PLAN` does one round for each line of its input, and answers with a line of JSON: the cell, and
the CPU seconds of the round. The side of pfl-research runs under a Python that has no sketchfed, so this file imports nothing
of it unless the side is ours.
"""

import gc
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from work import data, local_epoch  # type: ignore[import-not-found]  # not as part of sketchfed_lab: see above

CLIENTS, PARTICIPANTS, BATCH = 100, 10, 10
SKIPPED = 2
"""The rounds of each cell that nobody counts: they load, compile and allocate."""


def mlp() -> nn.Module:
    """784-200-200-10, the perceptron of McMahan et al. 2017."""
    widths = (784, 200, 200, 10)
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and max-pooling."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Transformer(nn.Module):
    """Two encoder layers over the rows of an image, and the mean of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(28, 64)
        self.places = nn.Parameter(torch.zeros(28, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.first(x.squeeze(1)) + self.places).mean(1))  # type: ignore[no-any-return]


Norm = Callable[[int], nn.Module]
"""Makes a normalisation layer for this many channels."""


def grouped(channels: int) -> nn.Module:
    """Group normalisation, which keeps no statistics."""
    return nn.GroupNorm(4, channels)


class Block(nn.Module):
    """Two convolutions with normalisation, beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.first_norm, self.second_norm = norm(after), norm(after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second_norm(self.second(functional.relu(self.first_norm(self.first(x)))))
        return functional.relu(inner + self.shortcut(x))


def resnet(norm: Norm) -> nn.Module:
    """A small residual network."""
    blocks = [Block(before, after, stride, norm) for before, after, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU(), *blocks, *head)


@dataclass(frozen=True)
class Cell:
    """A model, the number of examples of each client, and the local learning rate."""

    make: Callable[[], nn.Module]
    examples: int
    rate: float


CELLS = {
    "MLP 784-200-200-10": Cell(mlp, 600, 0.1),
    "LeNet": Cell(lenet, 600, 0.05),
    "transformer": Cell(Transformer, 100, 0.05),
    "ResNet, GroupNorm": Cell(partial(resnet, grouped), 100, 0.05),
    "ResNet, BatchNorm": Cell(partial(resnet, nn.BatchNorm2d), 100, 0.05),
}


def shares(cell: Cell) -> list[tuple[Tensor, Tensor]]:
    """Each client's own images and labels."""
    images, labels = data()
    count = cell.examples
    rows = [slice(number * count, number * count + count) for number in range(CLIENTS)]
    return [(images[part].view(-1, 1, 28, 28), labels[part]) for part in rows]


class Clock:
    """Called at the end of each round: says how long the round took, and waits for the next line.

    The first rounds are not counted. What precedes the first call is the start of the side.
    """

    def __init__(self, cell: str, rounds: int) -> None:
        self.cell, self.rounds, self.done, self.start = cell, rounds, 0, 0.0

    def __call__(self, *_: object) -> None:
        taken, self.done = time.process_time() - self.start, self.done + 1
        if SKIPPED < self.done <= SKIPPED + self.rounds:
            print(json.dumps([self.cell, taken]), flush=True)
        if SKIPPED <= self.done < SKIPPED + self.rounds and not sys.stdin.readline():
            sys.exit()
        self.start = time.process_time()


def ours(cell: Cell, rounds: int, clock: Clock, *, algorithm: str) -> None:
    """sketchfed as its users run it: every message is packed to bytes and read again."""
    from sketchfed import run

    logging.getLogger("sketchfed").setLevel(logging.ERROR)
    asked = {
        "name": algorithm,
        "rounds": rounds,
        "participation": PARTICIPANTS / CLIENTS,
        "batch": BATCH,
        "local_rate": cell.rate,
    }
    config = {"algorithm": asked, "engine": {"workers": 1, "evaluate_every": rounds}}
    if algorithm == "iterative":
        config["sketch"] = {"ratio": 0.01}
    clients, model = shares(cell), cell.make()
    images, labels = clients[0]
    if any(True for _ in model.buffers()):
        config["model"] = {"buffers": "average"}
    run(config, model=model, clients=clients, test=(images[:10], labels[:10]), on_round=clock)


def loop(cell: Cell, rounds: int, clock: Clock, *, fused: bool) -> None:
    """A plain loop over clients with autograd, as one writes federated averaging in an afternoon."""
    clients, server, client = shares(cell), cell.make(), cell.make()
    for _ in range(rounds):
        received = server.state_dict()
        mean = {name: torch.zeros_like(value) for name, value in received.items()}
        floats = [name for name, value in received.items() if value.is_floating_point()]  # not the counts of batches
        for number in random.sample(range(CLIENTS), PARTICIPANTS):
            client.load_state_dict(received)
            local_epoch(client, *clients[number], batch=BATCH, rate=cell.rate, fused=fused)
            trained = client.state_dict()
            for name in floats:
                mean[name].add_(trained[name], alpha=1 / PARTICIPANTS)
        server.load_state_dict(mean)
        clock()


def pfl(cell: Cell, rounds: int, clock: Clock) -> None:
    """pfl-research: its own FedAvg, simulated in this process. It does not shuffle a client's batches."""
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
    from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import-not-found]
    from pfl.metrics import Metrics  # type: ignore[import-not-found]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    class Ticking(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, object]:
            clock()
            return False, Metrics()

    module = cell.make()
    module.loss = lambda x, y: functional.cross_entropy(module.train()(x), y)  # type: ignore[assignment]
    module.metrics = lambda x, y: {}  # type: ignore[assignment]
    kept = [PyTorchTensorDataset(list(share)) for share in shares(cell)]
    users = FederatedDataset(lambda number: kept[number], lambda: random.randrange(CLIENTS))
    model = PyTorchModel(module, partial(torch.optim.SGD, lr=cell.rate), torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, rounds, PARTICIPANTS, None),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=cell.rate),
        callbacks=[Ticking()],
        send_metrics_to_platform=False,
    )


SIDES: dict[str, Callable[[Cell, int, Clock], None]] = {
    "sketchfed, fedavg": partial(ours, algorithm="fedavg"),
    "sketchfed, iterative 1/100": partial(ours, algorithm="iterative"),
    "plain loop": partial(loop, fused=False),
    "plain loop, fused SGD": partial(loop, fused=True),
    "pfl-research": pfl,
}


def main(side: str, plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    gc.disable()
    for name in plan["cells"]:
        SIDES[side](CELLS[name], SKIPPED + plan["rounds"] + 1, Clock(name, plan["rounds"]))
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
