"""Steps and bytes of exact sums along a tree against the diameter of the graph, and their bits against a server's."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed import run as train
from sketchfed.errors import UnknownNameError
from sketchfed.graphs import GRAPHS, Graph
from sketchfed.rounds import Exchange
from sketchfed.runs import Case, Row
from sketchfed.wire import Bits, unpack
from sketchfed_lab.experiments import diameter_report
from sketchfed_lab.experiments.arms import run_arms


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`diameters` holds, for each kind of graph, the diameters at which it is built."""

    data: str
    hidden: int
    inverse_ratio: int
    diameters: dict[str, list[int]]
    rounds: int
    seeds: list[int]
    processes: int

    def __post_init__(self) -> None:
        for kind in self.diameters:
            if kind not in KINDS:
                raise UnknownNameError("kind of graph", kind, KINDS)


def path(diameter: int) -> Graph:
    """A line of diameter + 1 nodes."""
    return GRAPHS["path"](nodes=diameter + 1)


def ring(diameter: int) -> Graph:
    """The smaller of the two rings of this diameter, which has an even number of nodes."""
    return GRAPHS["ring"](nodes=2 * diameter)


def torus(diameter: int) -> Graph:
    """A square torus with sides of `diameter` nodes: half of them in each direction is the farthest."""
    return GRAPHS["torus"](nodes=diameter**2, rows=diameter)


def tree(diameter: int) -> Graph:
    """A full binary tree in which two leaves are this far apart. The diameter is even."""
    nodes = 2 ** (diameter // 2 + 1) - 1
    return Graph(nodes, tuple(((node - 1) // 2, node) for node in range(1, nodes)))


def comb(diameter: int) -> Graph:
    """A line with one more node on each node of it: many nodes for its diameter, and many leaves."""
    spine = diameter - 1
    line = tuple((node, node + 1) for node in range(spine - 1))
    return Graph(2 * spine, (*line, *((node, spine + node) for node in range(spine))))


KINDS = {"path": path, "ring": ring, "torus": torus, "tree": tree, "comb": comb}
"""Graphs by their diameter."""
SERVER = "a server"


def cases(settings: Settings) -> list[Case]:
    """Each graph, and a server with as many clients, with every seed."""
    found: dict[str, Case] = {}
    for seed in settings.seeds:
        for kind, diameters in settings.diameters.items():
            for diameter in diameters:
                graph = KINDS[kind](diameter)
                for name in (kind, SERVER):
                    made = case(settings, name, graph, diameter, seed)
                    found[made.name] = made
    return list(found.values())


def case(settings: Settings, kind: str, graph: Graph, diameter: int, seed: int) -> Case:
    """One run. That of a server has the nodes of the graph as clients."""
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": settings.data, "clients": graph.nodes},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {"name": "gossip_exact", "rounds": settings.rounds, "local_steps": 2, "batch": 16, "local_rate": 0.1},
        "sketch": {"ratio": 1 / settings.inverse_ratio},
        "engine": {"evaluate_every": settings.rounds, "workers": 1},
    }
    key: dict[str, Any] = {"kind": kind, "nodes": graph.nodes, "seed": seed}
    if kind != SERVER:
        tables["graph"] = {"name": "edges", "edges": [list(edge) for edge in graph.edges]}
        key["diameter"] = diameter
    return Case(key=key, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Measure, and write the table and the figure."""
    wanted, path = cases(settings), folder / "results.jsonl"
    rows = run_arms(wanted, path, processes=settings.processes, title="sums", compute=measured)
    diameter_report.write(rows, folder)


def measured(case: Case) -> Row:
    """Run it, and look into every message.

    The row holds a digest of the `weights` after the last round, and bytes of a round: in `total`, and of the busiest `node`.
    On a graph, it also holds the bytes of the busiest `edge`, the `steps` of a round, the largest `consensus` of all rounds
    (0 if all nodes hold the same bits), and of all messages: the most `messages` of a link in one direction in a round, the
    most `numbers` of a message, the most `bits` of a number in a sum, and the `largest` message in bytes.
    """
    seen: list[Exchange] = []
    result = train(dict(case.tables), on_exchange=seen.extend)
    rounds, last = case.tables["algorithm"]["rounds"], result.metrics[-1]
    bits = hashlib.sha256(result.weights.numpy().tobytes()).hexdigest()[:16]
    size = round(result.dim * case.tables["sketch"]["ratio"])
    row: Row = {"weights": bits, "dim": result.dim, "size": size}
    if case.key["kind"] == SERVER:
        both = last["uplink_bytes"] + last["downlink_bytes"]
        return row | {"total": both / rounds, "node": last["downlink_bytes"] / rounds}
    graph = Graph(case.key["nodes"], tuple((a, b) for a, b in case.tables["graph"]["edges"]))
    return {
        **row,
        **_counted(seen),
        "consensus": max(line["consensus"] for line in result.metrics),
        "diameter": graph.diameter,
        "radius": graph.tree().depth,
        "edges": len(graph.edges),
        "steps": last["steps"] / rounds,
        "total": last["uplink_bytes"] / rounds,
        "node": last["node_bytes"] / rounds,
        "edge": last["edge_bytes"] / rounds,
    }


def _counted(seen: Sequence[Exchange]) -> Mapping[str, int]:
    messages: Counter[tuple[Any, ...]] = Counter()
    numbers = bits = 0
    said = [each.reply or b"" for each in seen]
    for each, message in zip(seen, said, strict=True):
        messages[each.round, each.client, unpack(each.request).scalars["node"]] += 1
        arrays = unpack(message).arrays.values()
        numbers = max(numbers, sum(math.prod(array.shape) for array in arrays))
        bits = max([bits, *(array.bits for array in arrays if isinstance(array, Bits))])
    return {"messages": max(messages.values()), "numbers": numbers, "bits": bits, "largest": max(map(len, said))}
