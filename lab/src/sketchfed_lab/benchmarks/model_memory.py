"""A round of one client with a large model and one step, for `models.py`: CPU seconds, and the peak of memory.

`python model_memory.py SIDE WIDTH ROUNDS` prints a line of JSON. A process has one peak, so each side has a process of its own.
"""

import gc
import json
import logging
import sys
import time
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchfed import run
from sketchfed.data import DataSet
from sketchfed.kernels import hadamard_
from sketchfed.models import build
from sketchfed.seeds import PublicSeed
from sketchfed_lab.benchmarks.peers.memory import peak_bytes

_HERE = "sketchfed_lab.benchmarks.model_memory"
EXAMPLES, SHAPE, OUTPUTS, RATE = 10, (784,), 10, 0.01
ROUND, CUSTOM = "a round, iterative 1/100", "a round of a custom module"
STEP, CUSTOM_STEP, TRANSFORM = "a plain step", "a plain step of a custom module", "two Hadamard transforms"


def dim(width: int) -> int:
    """The number of parameters of the perceptron 784-width-width-10."""
    return (SHAPE[0] + 1) * width + (width + 1) * width + (width + 1) * OUTPUTS


def images() -> DataSet:
    """One batch of noise."""
    generator = torch.Generator().manual_seed(7)
    x, y = torch.rand(EXAMPLES, *SHAPE, generator=generator), torch.randint(0, OUTPUTS, (EXAMPLES,), generator=generator)
    return DataSet(name="noise", x_train=x, y_train=y, x_test=x, y_test=y, outputs=OUTPUTS, shape=SHAPE, prepare=lambda x: x)


class Net(nn.Module):
    """A module that no trainer knows. Nearly all of its parameters are in one layer, so their gradients come at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(*SHAPE, width), nn.Linear(width, width), nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]


def net(shape: tuple[int, ...], outputs: int, *, width: int) -> nn.Module:
    """The module as a configuration names it."""
    return Net(width)


def rounds(width: int, count: int, *, custom: bool = False) -> list[float]:
    """Seconds of each round but the first, which compiles and draws the first weights."""
    logging.getLogger("sketchfed").setLevel(logging.ERROR)
    ends: list[float] = []
    work = {"name": "iterative", "rounds": count + 2, "local_steps": 1, "local_rate": RATE}
    config = {
        "data": {"name": f"{_HERE}:images", "clients": 1},
        "model": {"name": f"{_HERE}:net", "width": width} if custom else {"name": "mlp", "hidden": [width, width]},
        "algorithm": work,
        "sketch": {"ratio": 0.01},
        "engine": {"workers": 1, "evaluate_every": count + 2},
    }
    run(config, on_round=lambda _: ends.append(time.process_time()))
    return [after - before for before, after in pairwise(ends[:-1])]  # the last round is also scored


def steps(width: int, count: int, *, custom: bool = False) -> list[float]:
    """Seconds of a step of torch's SGD on the same model and data."""
    known, data = {"shape": SHAPE, "outputs": OUTPUTS}, images()
    module = Net(width) if custom else build("mlp", **known, seed=PublicSeed(7), hidden=[width, width])  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    found = []
    for _ in range(count):
        start = time.process_time()
        optimizer.zero_grad()
        functional.cross_entropy(module(data.x_train), data.y_train).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(time.process_time() - start)
    return found


def transforms(width: int, count: int) -> list[float]:
    """Seconds of two bare transforms of a power of two at least as large as the model, in place."""
    vector, found = torch.randn(1 << (dim(width) - 1).bit_length()) * 1e-20, []
    for _ in range(count):
        start = time.process_time()
        hadamard_(hadamard_(vector))
        found.append(time.process_time() - start)
        vector.mul_(1 / len(vector))
    return found


if __name__ == "__main__":
    side, width, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    gc.disable()
    sides = {ROUND: rounds, STEP: steps, TRANSFORM: transforms}
    sides |= {CUSTOM: partial(rounds, custom=True), CUSTOM_STEP: partial(steps, custom=True)}
    seconds = sides[side](width, count)
    print(json.dumps({"seconds": min(seconds), "peak_bytes": peak_bytes(), "dim": dim(width)}))
