"""Accuracy and consensus against bytes per node, per link and in total, on every graph, dense and sketched."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sketchfed import run as train
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, UnknownNameError
from sketchfed.graphs import metropolis, spectral_gap
from sketchfed.runs import Case, Row, Workload
from sketchfed_lab.experiments import decentralised_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.climbing import DOUBLES, HALF_DECADES, Axis, Point, Tuning, values
from sketchfed_lab.experiments.decentralised_peer import gossiped, graph_of
from sketchfed_lab.experiments.decentralised_report import ALONE, DENSE, NOBODY, SERVED, STABLE, TORCH


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`inverse_ratios` are dim/size by spread, for `tuning_nodes` nodes. Of more nodes, only the first is run."""

    data: str
    hidden: int
    batch: int
    local_steps: int
    spreads: list[str]
    graphs: list[str]
    inverse_ratios: dict[str, list[int]]
    tuning_nodes: int
    tuning_seeds: list[int]
    seeds: dict[str, list[int]]
    rounds: int
    scores: int
    tested: int
    processes: int

    def __post_init__(self) -> None:
        for kind, names, known in (("spread", self.spreads, SPREADS), ("graph", self.graphs, GRAPHS)):
            for name in names:
                if name not in known:
                    raise UnknownNameError(kind, name, known)


SPREADS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet": {"partition": "dirichlet", "concentration": 0.3},
}
TUNED_ON = {
    **dict.fromkeys(("ring", "path", "star"), "ring"),
    **dict.fromkeys(("random_regular", "torus", "erdos_renyi", "small_world", "complete"), "random_regular"),
}
"""On which graph the settings of each graph were found: one of the two with few links, and of those with many."""
GRAPHS = tuple(TUNED_ON)

_NOTHING = 1e-12
"""A step towards the neighbours that changes nothing."""
MIXING = Axis(DOUBLES.value, most=0)
RATES = {"local_rate": HALF_DECADES, "global_rate": DOUBLES}
MIXES = {"local_rate": HALF_DECADES, "mixing": MIXING}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An algorithm, whether it sends sketches, what is tuned, and where the search starts."""

    algorithm: str
    axes: Mapping[str, Axis]
    sketches: bool = True
    codec: bool = False
    """Whether the sketch is that of a codec."""
    start: Mapping[int, Point]
    """By dim/size."""
    served: bool = False
    """Whether the settings are the same on all graphs, because the nodes do what they would with a server."""


ARMS = {
    "server": Arm(algorithm="fedavg", axes=RATES, sketches=False, start={1: (-1, 0)}, served=True),
    "alone": Arm(algorithm="gossip", axes={"local_rate": HALF_DECADES}, sketches=False, start={1: (-1,)}, served=True),
    "dense": Arm(algorithm="gossip", axes=MIXES, sketches=False, start={1: (-1, 0)}),
    "differences": Arm(algorithm="gossip", axes=MIXES, codec=True, start={10: (-2, -3), 50: (-2, -5)}),
    STABLE: Arm(algorithm="gossip", axes={"local_rate": HALF_DECADES}, codec=True, start={10: (-2,), 50: (-2,)}),
    "models": Arm(algorithm="gossip_models", axes=MIXES, start={10: (-2, 0), 50: (-2, 0)}),
    "sums": Arm(algorithm="gossip_exact", axes=RATES, start={10: (-1, -1), 50: (-1, -2)}, served=True),
}
"""Each search starts at a local rate of 0.1 or 0.3. `torch` is D-PSGD written in torch, with the settings of `dense`."""

Place = tuple[str, str, str, int]
"""What is tuned by itself: spread, graph, arm, and dim/size."""


def case(settings: Settings, place: Place, nodes: int, tuned: Mapping[str, float], *, seed: int, validation: float) -> Case:
    """One run."""
    spread, graph, name, inverse = place
    arm = ARMS[DENSE if name == TORCH else name]
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": settings.data, "clients": nodes, "validation": validation, **SPREADS[spread]},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {
            "name": arm.algorithm,
            "rounds": settings.rounds,
            "batch": settings.batch,
            "local_steps": settings.local_steps,
            **tuned,
        },
        "engine": {"evaluate_every": max(1, settings.rounds // settings.scores), "workers": 1},
    }
    if arm.sketches:
        tables["sketch"] = {"ratio": 1 / inverse}
    if arm.codec:
        tables["codec"] = {"name": "sketched"}
    if name == ALONE:
        tables["algorithm"]["mixing"] = _NOTHING
    if graph != SERVED:
        tables["graph"] = {"name": "ring" if name == ALONE else graph}
    key = {"nodes": nodes, "spread": spread, "graph": graph, "arm": name, "inverse_ratio": inverse, **tuned}
    return Case(key=key | {"tested": settings.tested, "seed": seed, "validation": validation}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune every arm on held-out examples, run it on every graph with all seeds, and write the tables and figures."""
    chosen = tuned(settings, folder)
    final = [
        case(settings, place, nodes, chosen[tuned_at(place)], seed=seed, validation=0.0)
        for nodes, places in everything(settings).items()
        for seed in settings.seeds[str(nodes)]
        for place in places
    ]
    rows = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs", compute=measured)
    decentralised_report.write(rows, shapes(settings), folder)


def shapes(settings: Settings) -> decentralised_report.Shapes:
    """Links, largest degree, diameter and spectral gap of each graph, as it is drawn with the first seed."""
    found = {}
    for nodes, seeds in settings.seeds.items():
        for graph in settings.graphs:
            place = (settings.spreads[0], graph, DENSE, 1)
            made = graph_of(case(settings, place, int(nodes), {}, seed=seeds[0], validation=0.0).tables, int(nodes))
            degree = max(map(made.degree, range(made.nodes)))
            found[int(nodes), graph] = (len(made.edges), degree, made.diameter, spectral_gap(metropolis(made)))
    return found


def everything(settings: Settings) -> dict[int, list[Place]]:
    """What is run, for each number of nodes. Graphs with most links come last."""
    found: dict[int, list[Place]] = {}
    for nodes in map(int, settings.seeds):
        tuning = nodes == settings.tuning_nodes
        found[nodes] = [(spread, SERVED, "server", 1) for spread in settings.spreads]
        found[nodes] += [(spread, NOBODY, ALONE, 1) for spread in settings.spreads]
        for graph in settings.graphs:
            for spread in settings.spreads:
                sizes = settings.inverse_ratios[spread][: None if tuning else 1]
                found[nodes].append((spread, graph, DENSE, 1))
                names = SKETCHED if tuning else SKETCHED[:3]
                found[nodes] += [(spread, graph, name, inverse) for inverse in sizes for name in names]
                found[nodes] += [(spread, graph, TORCH, 1)] if tuning and TUNED_ON[graph] == graph else []
    return found


SKETCHED = ("differences", "models", "sums", STABLE)
"""Arms with sketches. The last one is not run with more nodes."""


def tuned_at(place: Place) -> Place:
    """The place from which a place takes its settings."""
    spread, graph, name, inverse = place
    arm = ARMS[DENSE if name == TORCH else name]
    where = graph if name == ALONE else SERVED if arm.served else TUNED_ON[graph]
    return spread, where, DENSE if name == TORCH else name, inverse


def tuned(settings: Settings, folder: Path) -> dict[Place, dict[str, float]]:
    """The settings for each place, found with few nodes."""
    tuning = Tuning(
        path=folder / "tuning.jsonl",
        seeds=settings.tuning_seeds,
        last=decentralised_report.LAST,
        processes=settings.processes,
        compute=measured,
    )
    wanted = dict.fromkeys(tuned_at(place) for places in everything(settings).values() for place in places)
    chosen: dict[Place, dict[str, float]] = {}
    for place in wanted:
        arm = ARMS[place[2]]

        def held_out(tried: Mapping[str, float], seed: int, place: Place = place) -> Case:
            return case(settings, place, settings.tuning_nodes, tried, seed=seed, validation=0.1)

        chosen[place] = values(tuning.best(arm.start[place[3]], arm.axes, held_out), arm.axes)
    return chosen


def measured(case: Case) -> Row:
    """Train with the case's configuration, and score each node's own model on held-out examples.

    The row holds `curve`, a list of the values in `decentralised_report.COLUMNS` for each scored round, `diverged` and
    `seconds`. The nodes are scored on the first `tested` held-out examples, the mean of their models on all of them.
    """
    workload = Workload.from_config(load_config(case.tables))
    chunks = workload.test_chunks()
    test = (torch.cat([x for x, _ in chunks]), torch.cat([y for _, y in chunks]))
    some = (test[0][: case.key["tested"]], test[1][: case.key["tested"]])
    if case.key["arm"] == TORCH:
        return gossiped(case, workload, test, some, decentralised_report.point)
    clients = [tuple(workload.examples(client)) for client in range(len(workload.parts))]
    tables = {name: table for name, table in case.tables.items() if name not in ("data", "model")}
    lines: list[dict[str, Any]] = []
    diverged = False
    try:
        train(
            {**tables, "training": {"evaluate_clients": True}},
            model=workload.module,
            clients=clients,
            test=test,
            client_test=[some] * len(clients),
            on_round=lines.append,
        )
    except DivergedError:
        diverged = True
    curve = [
        decentralised_report.point(counted(line, len(clients), case.key["arm"])) for line in lines if line["loss"] is not None
    ]
    return {"curve": curve, "diverged": diverged, "seconds": lines[-1]["seconds"] if lines else 0.0}


def counted(line: Mapping[str, Any], clients: int, arm: str) -> Mapping[str, Any]:
    """What passed, as on a graph. A server is the busiest node of a star, and nodes that are alone send nothing."""
    if arm == ALONE:
        return {**line, "uplink_bytes": 0, "node_bytes": 0, "edge_bytes": 0, "steps": 0}
    if line.get("consensus") is not None:
        return line
    both = line["uplink_bytes"] + line["downlink_bytes"]
    passed = {"uplink_bytes": both, "node_bytes": line["downlink_bytes"], "edge_bytes": both // clients}
    return {**line, **passed, "consensus": 0.0, "steps": 2 * line["round"]}
