"""A small GPT on the plays of Shakespeare, split by speaker: perplexity against bytes, dense and through sketches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed.errors import UnknownNameError
from sketchfed.runs import Case
from sketchfed_lab.experiments import shakespeare_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.searching import halves_and_doubles, searched
from sketchfed_lab.experiments.shakespeare_task import counted, speakers

TASK = "sketchfed_lab.experiments.shakespeare_task"
ARMS: dict[str, dict[str, Any]] = {
    "dense": {"algorithm": {"name": "fedavg"}},
    "1/10": {"algorithm": {"name": "iterative"}, "sketch": {"name": "srht", "ratio": 0.1}},
    "1/10, 4 bits": {"algorithm": {"name": "iterative"}, "sketch": {"name": "srht", "ratio": 0.1, "bits": 4}},
    "1/100": {"algorithm": {"name": "iterative"}, "sketch": {"name": "srht", "ratio": 0.01}},
}
Rates = tuple[float, ...]
"""The local and the global rate."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A speaker with at least `shortest` characters is a client. In each round, `participants` of them take part.

    Each arm's rates are searched for from `local_rate` and its own of `global_rates` on, by the perplexity on the text that is
    held out for it. `tries` is the largest number of runs of a search, each of `tuning_rounds`.
    """

    arms: list[str]
    global_rates: list[float]
    local_rate: float
    tries: int
    tuning_rounds: int
    shortest: int
    clients: int
    participants: int
    local_steps: int
    batch: int
    rounds: int
    evaluate_every: int
    budgets: list[int]
    seeds: list[int]
    processes: int

    def __post_init__(self) -> None:
        for name in self.arms:
            if name not in ARMS:
                raise UnknownNameError("arm", name, ARMS)


def arm(settings: Settings, name: str, rates: Rates, *, seed: int, rounds: int, held: str = "test") -> Case:
    """One run. AdamW begins anew for each client in each round, as nothing is kept on clients."""
    local, step = rates
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": f"{TASK}:speakers", "partition": "natural", "shortest": settings.shortest, "held": held},
        "model": {"name": f"{TASK}:gpt"},
        "training": {"batch_loss": f"{TASK}:each_position", "optimiser": "adamw"},
        "engine": {"evaluate_every": settings.evaluate_every if held == "test" else rounds},
        **ARMS[name],
    }
    tables["algorithm"] = ARMS[name]["algorithm"] | {
        "rounds": rounds,
        "participation": settings.participants / settings.clients,
        "local_steps": settings.local_steps,
        "batch": settings.batch,
        "local_rate": local,
        "global_rate": step,
    }
    key = {"arm": name, "local_rate": local, "global_rate": step, "seed": seed, "rounds": rounds, "held": held}
    return Case(key=key, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune every arm by the same rule on held-out text, run it with all seeds, and write it up beside counts of characters."""
    best = tuned(settings, folder / "tuning.jsonl")
    final = [  # seed by seed, so that what is there at any time is balanced
        arm(settings, name, best[name], seed=seed, rounds=settings.rounds) for seed in settings.seeds for name in settings.arms
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    data = speakers(shortest=settings.shortest)
    counts = {"characters alone": counted(data, before=0), "after one character": counted(data, before=1)}
    shakespeare_report.write(rows, folder, clients=settings.clients, budgets=settings.budgets, counts=counts)


def tuned(settings: Settings, path: Path) -> Mapping[str, Rates]:
    """The rates with the lowest perplexity on the held-out tenth. Seeds of tuning and of results differ."""

    def scores(wanted: Sequence[tuple[str, Rates]]) -> list[float]:
        arms = [
            arm(settings, name, rates, seed=100, rounds=settings.tuning_rounds, held="validation") for name, rates in wanted
        ]
        rows = run_arms(arms, path, processes=settings.processes, title="tuning")
        return [float("-inf") if row["diverged"] else -row["curve"][-1][1] for row in rows]

    starts: dict[str, Rates] = {
        name: (settings.local_rate, step) for name, step in zip(settings.arms, settings.global_rates, strict=True)
    }
    return searched(starts, near=halves_and_doubles, scores=scores, tries=settings.tries)
