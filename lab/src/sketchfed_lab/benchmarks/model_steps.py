"""What `models.py` times as information: steps of LeNet as they are, compiled, and for several clients at once.

`python model_steps.py SIDE STEPS` takes that many steps with batches of 10, by SGD on one thread, and answers with a line of
JSON: the CPU seconds of one client's steps, and those of what comes before them, such as compiling.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))

from model_cells import lenet  # type: ignore[import-not-found]  # not as part of sketchfed_lab: it runs as a file

BATCH, RATE, TOGETHER, TRIED = 10, 0.05, 10, 3
PLAIN, COMPILED, BATCHED = "as it is", "torch.compile", "vmap(grad) of ten clients"


def plain(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of torch's own SGD."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def compiled(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same, with a compiled forward and backward pass."""
    return plain(torch.compile(module), x, y)  # type: ignore[arg-type]


def batched(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of ten clients at once, which hold the same data here."""
    weights = stacked(module)
    gradients = gradients_of(module)
    inputs, labels = x.expand(TOGETHER, *x.shape).clone(), y.expand(TOGETHER, *y.shape).clone()

    def step() -> None:
        found = gradients(weights, inputs, labels)
        for name, each in weights.items():
            each.sub_(found[name], alpha=RATE)

    return step


def stacked(module: nn.Module) -> dict[str, Tensor]:
    """The weights of ten clients, `(10, ...)` each."""
    weights, _ = stack_module_state([module] * TOGETHER)
    return {name: each.detach().clone() for name, each in weights.items()}


def gradients_of(module: nn.Module) -> Callable[..., dict[str, Tensor]]:
    """A function of the clients' weights, inputs and labels that returns their gradients."""

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(module, own, (x,)), y)

    return vmap(grad(loss))


SIDES = {PLAIN: plain, COMPILED: compiled, BATCHED: batched}


def main(side: str, steps: int) -> None:
    """Time the steps several times, and print the least time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, 1, 28, 28), torch.arange(BATCH) % 10
    before = time.process_time()
    step = SIDES[side](lenet(), x, y)
    step()
    ready, least = time.process_time() - before, float("inf")
    for _ in range(TRIED):
        start = time.process_time()
        for _ in range(steps):
            step()
        least = min(least, time.process_time() - start)
    print(json.dumps({"seconds": least / (TOGETHER if side == BATCHED else 1), "ready_seconds": ready}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
