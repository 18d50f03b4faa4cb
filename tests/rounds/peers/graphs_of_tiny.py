"""Runs without a server whose rounds take a millisecond."""

from typing import Any

from sketchfed.config import load_config
from sketchfed.rounds.network import Network
from sketchfed.runs.starting import prepare

SKETCHED: dict[str, Any] = {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.3}}
KINDS: dict[str, dict[str, Any]] = {
    "dense": {"algorithm": {"name": "gossip"}},
    "sketched": {"algorithm": {"name": "gossip"}, **SKETCHED},
    "few bits": {"algorithm": {"name": "gossip"}, "codec": {"name": "sketched"}, "sketch": {"ratio": 0.3, "bits": 4}},
    "top-k": {"algorithm": {"name": "gossip"}, "codec": {"name": "top_k", "ratio": 0.3}},
    "tracking": {"algorithm": {"name": "gossip_tracking", "local_steps": 1}, **SKETCHED},
    "models": {"algorithm": {"name": "gossip_models"}, "sketch": {"ratio": 0.3}},
    "exact": {"algorithm": {"name": "gossip_exact"}, "sketch": {"ratio": 0.3}},
    "exact, some": {"algorithm": {"name": "gossip_exact", "participation": 0.5}, "sketch": {"ratio": 0.3, "bits": 32}},
    "blind neighbours": {"algorithm": {"name": "dbcl"}, "sketch": {"ratio": 0.5}},
}
FAILING = {"name": "torus", "rows": 3, "losses": 0.2, "spoiled": 0.1, "node_failures": 0.15, "link_failures": 0.1}


def tables(kind: str, graph: dict[str, Any] | None = None, *, nodes: int = 6, rounds: int = 5) -> dict[str, Any]:
    """The tables of a run of this kind on a graph."""
    made = {key: dict(table) for key, table in KINDS[kind].items()}
    made["algorithm"] |= {"rounds": rounds, "local_rate": 0.2, "batch": 4}
    return made | {
        "data": {"name": "runs.tiny:data", "clients": nodes},
        "model": {"name": "runs.tiny:model"},
        "graph": graph or {"name": "ring"},
    }


def network(kind: str, graph: dict[str, Any] | None = None, *, nodes: int = 6, **changes: Any) -> Network:
    """The network of such a run before its first round. `changes` are further tables."""
    server = prepare(load_config(tables(kind, graph, nodes=nodes) | changes))._server
    assert isinstance(server, Network)
    return server
