"""A script that torchrun starts: the same runs on ranks and in one process. `python on_ranks.py NAMES...`; rank 0 compares."""

import sys
from typing import Any

import torch
from tiny import ALGORITHMS, DATA, points, tables
from torch import Tensor, nn

import sketchfed
from sketchfed import Run

NOISE = {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 7}
MODEL = {"name": "mlp", "hidden": [5]}
PRIVATE = {"name": "private_iterative", "rounds": 3, "local_steps": 1, "local_rate": 0.2, "batch": 5}


def changed(kind: str, *, rounds: int, **algorithm: object) -> dict[str, Any]:
    made: dict[str, Any] = tables(kind, rounds=rounds)
    return {**made, "algorithm": {**made["algorithm"], **algorithm}}


KINDS: dict[str, dict[str, Any]] = {
    **{kind: tables(kind, rounds=4) for kind in ALGORITHMS},
    "weights that torch draws": {**tables("fedavg", rounds=3), "model": {"name": "tiny:model"}},
    "evaluation on clients": {**tables("error feedback", rounds=4), "training": {"evaluate_clients": True}},
    "noise and secure sums": {"data": DATA, "model": MODEL, "algorithm": PRIVATE, "privacy": NOISE, "secure": {}},
    "noise of the server": {
        "data": DATA,
        "model": MODEL,
        "algorithm": {"name": "iterative", "rounds": 3, "participation": 0.5, "local_rate": 0.2},
        "privacy": {**NOISE, "name": "gaussian", "observer": "public", "hidden_cohorts": True},
    },
    "memories of SCAFFOLD": changed("fedavg", rounds=4, scaffold=True, participation=0.5, global_momentum=0.0),
    "fewer clients than ranks": changed("few bits, few participants, momentum", rounds=8, participation=0.25),
}


def train(model: nn.Module, data: tuple[Tensor, Tensor], context: Any) -> None:
    """A loop that keeps something: how often its client took part."""
    context.kept["turns"] = context.kept.get("turns", 0) + 1
    x, y = data
    for _ in range(context.kept["turns"]):
        loss = nn.functional.cross_entropy(model(x), y)
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            parameter.data -= 0.1 * gradient


def objects() -> dict[str, Any]:
    x, y = points(48)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return {"model": model, "clients": [(x[k::6], y[k::6]) for k in range(6)], "train": train}


def ran(name: str, engine: str) -> Run:
    if name != "own loop":
        return sketchfed.run({**KINDS[name], "engine": {"name": engine}})
    config = {"algorithm": {"rounds": 4, "participation": 0.5}, "engine": {"name": engine}}
    return sketchfed.run(config, **objects())


def lines(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics]


def main(names: list[str]) -> None:
    for name in names or [*KINDS, "own loop"]:
        made = ran(name, "ranks")
        alone = ran(name, "local")  # ranks other than 0 have the result as well
        same = torch.equal(made.weights, alone.weights) and lines(made) == lines(alone)
        print(f"{name}: {'same' if same else 'different'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
