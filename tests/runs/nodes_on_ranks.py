"""A script that a launch starts: runs without a server, on ranks and in one process. `python nodes_on_ranks.py KIND NODES`."""

import json
import sys
from typing import Any

import sketchfed

SKETCHED: dict[str, Any] = {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.3}}
KINDS: dict[str, dict[str, Any]] = {
    "gossip": {"algorithm": {"name": "gossip"}, **SKETCHED},
}


def tables(kind: str, nodes: int) -> dict[str, Any]:
    made = {key: dict(table) for key, table in KINDS[kind].items()}
    made["algorithm"] |= {"rounds": 5, "local_rate": 0.2, "batch": 4}
    made |= {"data": {"name": "tiny:data", "clients": nodes}, "model": {"name": "tiny:model"}}
    return {"graph": {"name": "ring"}, **made}

def main(kind, nodes):
    t = tables(kind, int(nodes))
    a = sketchfed.run({**t, "engine": {"name": "ranks"}})
    b = sketchfed.run({**t, "engine": {"name": "local"}})
    for x in (a.metrics[-1], b.metrics[-1]): print({k: v for k, v in x.items() if v is not None})
    strip = lambda run: [{k: v for k, v in l.items() if k != "seconds"} for l in run.metrics]
    print("same" if strip(a) == strip(b) and bool((a.weights == b.weights).all()) else "different")

main(*sys.argv[1:])
