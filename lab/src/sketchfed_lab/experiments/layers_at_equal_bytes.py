"""One sketch for a convolutional network, a sketch for each layer, and plain biases and norms, at equal bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch import nn

from sketchfed.runs import Case, Row
from sketchfed_lab.experiments.arms import accuracy, run_arms
from sketchfed_lab.experiments.tables import write_table


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every arm at every size is tuned over the same grid, by its mean held-out loss over `tuning_seeds`."""

    inverse_ratios: list[int]
    local_rates: list[float]
    global_rates: list[float]
    tuning_seeds: list[int]
    seeds: list[int]
    rounds: int
    processes: int


ARMS: dict[str, dict[str, Any]] = {
    "one sketch": {},
    "a sketch for each layer": {"blocks": "layer"},
    "plain biases and norms": {"plain": ["*.bias", "norm*"]},
    "both": {"blocks": "layer", "plain": ["*.bias", "norm*"]},
}


def small_net(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two convolutions with group norms, for digits of 8 by 8 pixels."""
    net = nn.Sequential()
    net.add_module("image", nn.Unflatten(1, (1, 8, 8)))
    net.add_module("conv1", nn.Conv2d(1, 16, 3, padding=1))
    net.add_module("norm1", nn.GroupNorm(4, 16))
    net.add_module("relu1", nn.ReLU())
    net.add_module("conv2", nn.Conv2d(16, 32, 3, padding=1, stride=2))
    net.add_module("norm2", nn.GroupNorm(4, 32))
    net.add_module("relu2", nn.ReLU())
    net.add_module("flat", nn.Flatten())
    net.add_module("head", nn.Linear(32 * 4 * 4, outputs))
    return net


def counts() -> tuple[int, int]:
    """The number of parameters, and how many of them are plain in arms with plain parameters."""
    named = {name: each.numel() for name, each in small_net(shape=(64,), outputs=10).named_parameters()}
    plain = sum(count for name, count in named.items() if name.endswith(".bias") or name.startswith("norm"))
    return sum(named.values()), plain


def arm(settings: Settings, name: str, inverse: int, *, local: float, step: float, seed: int, validation: float) -> Case:
    """One run. All arms of a size send equally many numbers."""
    dim, plain = counts()
    size = round(dim / inverse) - (plain if "plain" in ARMS[name] else 0)
    work = {"rounds": settings.rounds, "local_steps": 5, "batch": 32, "participation": 0.5}
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "digits", "clients": 20, "partition": "dirichlet", "concentration": 0.3, "validation": validation},
        "model": {"name": f"{__name__}:small_net"},
        "algorithm": {"name": "iterative", "local_rate": local, "global_rate": step, **work},
        "sketch": {"name": "srht", "size": size, **ARMS[name]},
        "engine": {"evaluate_every": max(1, settings.rounds // 10)},
    }
    key = {"arm": name, "inverse_ratio": inverse, "local_rate": local, "global_rate": step, "seed": seed}
    return Case(key=key | {"validation": validation}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune every arm on a validation split, run it with all seeds, and write the table."""
    places = [(inverse, name) for inverse in settings.inverse_ratios for name in ARMS]
    grid = [(local, step) for local in settings.local_rates for step in settings.global_rates]
    tuning = [
        arm(settings, name, inverse, local=local, step=step, seed=seed, validation=0.2)
        for inverse, name in places
        for local, step in grid
        for seed in settings.tuning_seeds
    ]
    chosen = best(run_arms(tuning, folder / "tuning.jsonl", processes=settings.processes, title="tuning"))
    final = [
        arm(settings, name, inverse, local=local, step=step, seed=seed, validation=0.0)
        for seed in settings.seeds
        for inverse, name in places
        for local, step in [chosen[inverse, name]]
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    lines = [_line(inverse, name, chosen[inverse, name], _of(rows, inverse, name)) for inverse, name in places]
    write_table(folder / "table.md", HEADINGS, lines, printed=range(len(HEADINGS)))


def best(rows: Sequence[Row]) -> dict[tuple[int, str], tuple[float, float]]:
    """The local and the global rate with the least mean loss, for every size and arm."""

    def setting(row: Row) -> tuple[Any, ...]:
        key = row["key"]
        return key["inverse_ratio"], key["arm"], key["local_rate"], key["global_rate"]

    found: dict[tuple[int, str], tuple[float, tuple[float, float]]] = {}
    for (inverse, name, local, step), group in groupby(sorted(rows, key=setting), setting):
        loss = mean(float("inf") if row["diverged"] else row["curve"][-1][1] for row in group)
        found[inverse, name] = min(found.get((inverse, name), (float("inf"), (local, step))), (loss, (local, step)))
    return {place: rates for place, (_, rates) in found.items()}


def _of(rows: Sequence[Row], inverse: int, name: str) -> list[Row]:
    return [row for row in rows if (row["key"]["inverse_ratio"], row["key"]["arm"]) == (inverse, name)]


HEADINGS = ("numbers sent", "arm", "of them plain", "local rate", "global rate", "accuracy", "its deviation", "loss")


def _line(inverse: int, name: str, rates: tuple[float, float], rows: Sequence[Row]) -> list[str]:
    dim, plain = counts()
    scores = [accuracy(row) for row in rows]
    losses = [float("inf") if row["diverged"] else row["curve"][-1][1] for row in rows]
    return [
        f"{round(dim / inverse)} of {dim:,}",
        name,
        str(plain if "plain" in ARMS[name] else 0),
        f"{rates[0]:g}",
        f"{rates[1]:g}",
        f"{mean(scores):.4f}",
        f"{stdev(scores):.4f}" if len(scores) > 1 else "",
        f"{mean(losses):.3f}",
    ]
