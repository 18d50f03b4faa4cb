import json
from pathlib import Path

import pytest


def metrics(
    rounds=5,
    *,
    up=1_000,
    down=3_000,
    accuracy=lambda n: 1 - 0.5**n,
    loss=lambda n: 0.5**n,
    epsilon=lambda n: None,
    captured=None,
):
    """Lines of metrics.jsonl: four participants a round, each sending `up` and receiving `down` bytes, two seconds a round.

    Without `captured` they are as runs wrote them that did not know of it.
    """
    return [
        {
            "round": n,
            "loss": loss(n),
            "accuracy": accuracy(n),
            "participants": 4,
            "uplink_bytes": 4 * up * n,
            "downlink_bytes": 4 * down * n,
            "epsilon": epsilon(n),
            "seconds": 2.0 * n,
        }
        | ({} if captured is None else {"captured": captured(n)})
        for n in range(1, rounds + 1)
    ]


@pytest.fixture
def run(tmp_path):
    """Write a run's folder: `run("a", label="fedavg", config="rate = 1", rounds=3, up=100)`."""
    return writer(tmp_path)


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory):
    """The same for folders that several tests look at."""
    return writer(tmp_path_factory.mktemp("shared"))


def without_server(lines, **changes):
    """The lines of a run without a server: all that nodes sent arrived, and nodes come nearer to each other."""
    return [
        line
        | {
            "downlink_bytes": line["uplink_bytes"],
            "consensus": 2.0 / line["round"],
            "farthest_loss": 2 * line["loss"],
            "farthest_accuracy": line["accuracy"] / 2,
            "node_bytes": line["uplink_bytes"] // 3,
            "edge_bytes": line["uplink_bytes"] // 2,
            "lost": 0,
            "refused": 0,
            "steps": line["round"],
        }
        | changes
        for line in lines
    ]


def graph_file(edges, *, nodes: int, name: str = "ring", sent=lambda a, b: 1_000, **changes):
    """graph.json of a run on these edges. `sent` are the bytes from a node to another."""
    return {
        "name": name,
        "nodes": nodes,
        "round": 5,
        "diameter": 2,
        "spectral_gap": 0.25,
        "redraw": 0,
        "links": [[a, b, sent(a, b), sent(b, a)] for a, b in edges],
    } | changes


def writer(path: Path):
    def write(name: str, *, config: str = "", seed: int = 0, lines=None, summary=None, graph=None, **shape) -> Path:
        folder = path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(f'name = "{name}"\nseed = {seed}\n{config}\n')
        lines = metrics(**shape) if lines is None else lines
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        told = {
            "name": name,
            "label": name,
            "model": "mlp 64-10",
            "dim": 650,
            "clients": 20,
            "data": "digits",
            "finished": True,
        }
        (folder / "summary.json").write_text(json.dumps(told | (summary or {})))
        if graph is not None:
            (folder / "graph.json").write_text(json.dumps(graph))
        return folder

    return write
