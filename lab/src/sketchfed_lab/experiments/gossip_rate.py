"""How fast nodes agree, round by round, against the spectral gap: dense, by sketches of models, and by sketched differences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Change, Gossip, GossipModels, Replica, RoundContext
from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.graphs import GRAPHS, Graph, GraphSettings, spectral_gap
from sketchfed.runs import Case, Row
from sketchfed.seeds import PublicSeed
from sketchfed_lab.experiments import gossip_rate_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.gossip_theory import (
    Array,
    best_step,
    dense_rate,
    differences_between,
    differences_rate,
    models_rate,
    paper_bound,
    paper_step,
)

_FLOOR = 1e-4
"""Below this share of the first disagreement, rounding of float32 begins to show."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`graphs` holds the numbers of nodes of each graph. `inverse_ratios` are dim/size."""

    graphs: dict[str, list[int]]
    dim: int
    family: str
    inverse_ratios: list[int]
    rounds: int
    seeds: list[int]
    processes: int

    def __post_init__(self) -> None:
        for name in self.graphs:
            if name not in GRAPHS.built_in:
                raise UnknownNameError("graph", name, list(GRAPHS.built_in))
        if any(self.dim % inverse for inverse in self.inverse_ratios):
            raise InputError(
                f"dim = {self.dim} must be a multiple of each of inverse_ratios, so that sketches are projections."
            )


Step = Callable[[Array, float], float]
"""γ from the eigenvalues of the weights and size/dim."""
STEPS: Mapping[str, Step | None] = {
    "dense": lambda _, share: 1.0,
    "models": lambda _, share: 1.0,
    "differences, best γ": best_step,
    "differences, default γ": None,
    "differences, γ = p": lambda _, share: share,
    "differences, paper's γ": paper_step,
}
"""The arms. Differences use the best γ of our recursion, the library's default, size/dim, and that of Koloskova et al. 2019."""


def cases(settings: Settings) -> list[Case]:
    """Every arm on every graph, with every seed. Random graphs are the same for all seeds."""
    found = []
    kept = {"dim": settings.dim, "family": settings.family, "rounds": settings.rounds}
    for graph, sizes in settings.graphs.items():
        for nodes in sizes:
            for arm in STEPS:
                for inverse in [1] if arm == "dense" else settings.inverse_ratios:
                    key = {"graph": graph, "nodes": nodes, "arm": arm, "inverse_ratio": inverse}
                    found += [Case(key={**key, "seed": seed}, tables=kept) for seed in settings.seeds]
    return found


def run(settings: Settings, folder: Path) -> None:
    """Measure, and write the table and the figure."""
    wanted, path = cases(settings), folder / "results.jsonl"
    rows = run_arms(wanted, path, processes=settings.processes, title="averaging", compute=measured)
    gossip_rate_report.write(rows, folder)


def measured(case: Case) -> Row:
    """Let nodes gossip from a start in which they disagree along the slowest mode of the graph, and do nothing else.

    The row holds the graph's `gap`, `edges` and `diameter`, the step `mixing`, and factors by which the disagreement shrinks in
    a round: `measured`, the mean over the second half of the rounds, `expected`, the same by our analysis, `theory`, that of
    the long run, and `bound`, that of the paper. `curve` is the disagreement relative to the start.
    """
    key, kept = case.key, case.tables
    graph, weights = graph_of(key["graph"], key["nodes"])
    eigenvalues, modes = np.linalg.eigh(weights)
    share = 1 / key["inverse_ratio"]
    algorithm = made(key["arm"], kept, key["nodes"], eigenvalues, share)
    step = algorithm.mixing_rate
    rates = [rate(key["arm"], each, share, step) for each in eigenvalues[:-1]]
    slowest = int(np.argmax(rates))
    directions = torch.randn(kept["dim"], generator=torch.Generator().manual_seed(key["seed"]))
    start = torch.tensor(modes[:, slowest], dtype=torch.float32)[:, None] * directions
    apart = averaged(algorithm, start, weights, PublicSeed(key["seed"]), rounds=kept["rounds"])
    last = max(at for at, each in enumerate(apart) if each > _FLOOR * apart[0])
    half = last // 2
    expected = rates[slowest]
    if key["arm"] not in ("dense", "models"):
        expected = differences_between(float(eigenvalues[slowest]), share, step, half, last)
    return {
        "gap": spectral_gap(weights),
        "edges": len(graph.edges),
        "diameter": graph.diameter,
        "mixing": step,
        "theory": rates[slowest],
        "expected": expected,
        "bound": paper_bound(spectral_gap(weights), share) if key["arm"] == "differences, paper's γ" else None,
        "measured": (apart[last] / apart[half]) ** (1 / (last - half)) if last > half else 0.0,
        "curve": [[at, float(f"{apart[at] / apart[0]:.5g}")] for at in range(0, len(apart), max(1, kept["rounds"] // 20))],
    }


def graph_of(name: str, nodes: int) -> tuple[Graph, Array]:
    """A graph and its weights. A random one is always drawn from the same seed."""
    topology = GraphSettings(name=name).topology(nodes, PublicSeed(0))
    return topology.graph(0), topology.weights(0)


def made(arm: str, kept: Mapping[str, Any], nodes: int, eigenvalues: Array, share: float) -> Gossip | GossipModels:
    """The library's algorithm of an arm, with its step."""
    find = STEPS[arm]
    table: dict[str, Any] = {"name": "gossip_models" if arm == "models" else "gossip"}
    if find is not None:
        table["mixing"] = find(eigenvalues, share)
    tables: dict[str, Any] = {"algorithm": table, "graph": {"name": "complete"}, "data": {"clients": nodes}}
    if arm != "dense":
        tables["sketch"] = {"name": kept["family"], "size": round(kept["dim"] * share)}
        tables |= {} if arm == "models" else {"codec": {"name": "sketched"}}
    found: Algorithm = load_config(tables).algorithm.resolved(kept["dim"], nodes)
    if not isinstance(found, Gossip | GossipModels):
        raise InputError(f"algorithm '{found.name}' does not gossip. Use one of the arms {', '.join(STEPS)}.")
    return found


def rate(arm: str, eigenvalue: float, share: float, step: float) -> float:
    """The factor of a mode in a round, in theory."""
    if arm == "dense":
        return dense_rate(eigenvalue)
    return (models_rate if arm == "models" else differences_rate)(eigenvalue, share, step)


def averaged(algorithm: Gossip | GossipModels, start: Tensor, weights: Array, seed: PublicSeed, *, rounds: int) -> list[float]:
    """How far the nodes are from their mean, before the first round and after each round. They do nothing but gossip."""
    models, mixing = start, torch.tensor(weights, dtype=torch.float32)
    nodes, dim = start.shape
    told = [Replica(round=0, weights=torch.zeros(dim)) for _ in range(nodes)]
    others = mixing - torch.diag(mixing.diag())
    found = [_apart(models)]
    for index in range(rounds):
        contexts = [RoundContext(round=index, seed=seed, client=node, population=nodes) for node in range(nodes)]
        if isinstance(algorithm, GossipModels):
            packets = [algorithm.said(models[node], contexts[node]) for node in range(nodes)]
            heard = torch.stack([algorithm.heard(packet, dim, contexts[0]) for packet in packets])
            sums, shares = others @ heard, others.sum(1)
            steps = [algorithm.towards(models[node], sums[node], float(shares[node]), contexts[node]) for node in range(nodes)]
            models = models + algorithm.mixing_rate * torch.stack(steps)
        else:
            for node in range(nodes):
                said, _ = algorithm.client(Change(models[node] - told[node].weights), None, contexts[node])
                told[node] = algorithm.moved(told[node], [said], contexts[node])
            estimates = torch.stack([each.weights for each in told])
            models = models + algorithm.mixing_rate * (mixing @ estimates - estimates)
        found.append(_apart(models))
    return found


def _apart(models: Tensor) -> float:
    return float((models - models.mean(0)).double().square().sum(1).mean().sqrt())
