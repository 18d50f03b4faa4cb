"""Runs without a server on the ranks of a launch: `python nodes_on_ranks.py TRIAL RANKS`. Ranks print what they found."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import tiny  # noqa: F401 – configurations name it
import torch

import sketchfed
from sketchfed import Run
from sketchfed.rounds.launch import Launch
from sketchfed.rounds.peers import Hop
from sketchfed.rounds.rank_control import LinkTransport

SKETCHED: dict[str, Any] = {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.3}}
FAILING = {"name": "complete", "losses": 0.2, "spoiled": 0.1, "node_failures": 0.15, "link_failures": 0.1, "stragglers": 0.1}
KINDS: dict[str, dict[str, Any]] = {
    "gossip": {"algorithm": {"name": "gossip"}, **SKETCHED},
    "gossip with failures": {"algorithm": {"name": "gossip"}, **SKETCHED, "graph": FAILING},
    "tracking": {"algorithm": {"name": "gossip_tracking", "local_steps": 1}, **SKETCHED},
    "models": {"algorithm": {"name": "gossip_models"}, "sketch": {"ratio": 0.3}, "training": {"evaluate_clients": True}},
    "exact": {"algorithm": {"name": "gossip_exact"}, "sketch": {"ratio": 0.3}},
    "noise": {
        "algorithm": {"name": "gossip"},
        **SKETCHED,
        "privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 7},
    },
    "exact with failures": {"algorithm": {"name": "gossip_exact"}, "sketch": {"ratio": 0.3}, "graph": FAILING},
}


def tables(
    kind: str, engine: str, *, nodes: int = 6, rounds: int = 5, graph: dict[str, Any] | None = None, **settings: object
) -> dict[str, Any]:
    made = {key: dict(table) for key, table in KINDS[kind].items()}
    made["algorithm"] |= {"rounds": rounds, "local_rate": 0.2, "batch": 4}
    made |= {"data": {"name": "tiny:data", "clients": nodes}, "model": {"name": "tiny:model"}}
    return {
        "graph": graph or {"name": "ring"},
        **made,
        "engine": {"name": engine, "deadline": 20.0, "checkpoint_seconds": 0.0, **settings},
    }


def lines(run: Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics]


def same(one: Run, other: Run) -> bool:
    return torch.equal(one.weights, other.weights) and lines(one) == lines(other)


def die_in_round_3(rank: int) -> None:
    """Let a rank kill itself in round 3, after one neighbour got its message, and before the others get theirs."""
    exchange = LinkTransport.exchange

    def dying(
        self: LinkTransport, outgoing: Mapping[Hop, bytes | None], expected: Collection[Hop], index: int, step: int
    ) -> Mapping[Hop, bytes]:
        if index < 2:
            return exchange(self, outgoing, expected, index, step)
        exchange(self, dict(list(outgoing.items())[:1]), (), index, step)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    if Launch.needed().rank == rank:
        LinkTransport.exchange = dying  # type: ignore[method-assign]


def one_node_on_each_of_eight() -> None:
    """A run as it should be, and then one in which rank 5 dies."""
    made = sketchfed.run(tables("gossip", "ranks", nodes=8))
    die_in_round_3(5)
    short = sketchfed.run(tables("gossip", "ranks", nodes=8, rounds=6))
    if Launch.needed().leads:
        alone = sketchfed.run(tables("gossip", "local", nodes=8))
        print(json.dumps({"same": same(made, alone), "metrics": lines(short)}))


TLS = {"certificate": "tls/server.pem", "key": "tls/server.key", "authority": "tls/ca.pem"}


def several_nodes_on_each() -> None:
    """All kinds of nodes, one of them over links with TLS. The last run is interrupted after three rounds."""
    found = {kind: sketchfed.run(tables(kind, "ranks", evaluate_every=2)) for kind in KINDS}
    protected = sketchfed.run(tables("gossip", "ranks", evaluate_every=2, **TLS))
    if Launch.needed().leads:
        alone = {kind: sketchfed.run(tables(kind, "local", evaluate_every=2)) for kind in KINDS}
        equal = {kind: same(found[kind], alone[kind]) for kind in KINDS} | {"over TLS": same(protected, alone["gossip"])}
        print(json.dumps(equal), flush=True)
    sketchfed.run(tables("gossip with failures", "ranks"), folder="interrupted", on_round=stop)


def stop(line: Mapping[str, Any]) -> None:
    if line["round"] == 3:
        raise KeyboardInterrupt


def resumed() -> None:
    """What another launch, and a run in one process, have begun."""
    for folder in ("from-ranks", "from-local"):
        made = sketchfed.resume(folder, engine="ranks")
        if Launch.needed().leads:
            print(json.dumps(same(made, sketchfed.run(tables("gossip with failures", "local")))), flush=True)


def rank_0_dies() -> None:
    die_in_round_3(0)
    made = sketchfed.run(tables("gossip", "ranks"))
    print(json.dumps(bool(torch.isfinite(made.weights).all())))


def a_rank_stands_still() -> None:
    """Rank 2 stops in round 3, for longer than the deadline, and goes on later."""
    exchange = LinkTransport.exchange

    def standing(
        self: LinkTransport, outgoing: Mapping[Hop, bytes | None], expected: Collection[Hop], index: int, step: int
    ) -> Mapping[Hop, bytes]:
        if index == 2:
            subprocess.Popen(["sh", "-c", f"sleep 7; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        return exchange(self, outgoing, expected, index, step)

    if Launch.needed().rank == 2:
        LinkTransport.exchange = standing  # type: ignore[method-assign]
    given = tables("gossip", "ranks", nodes=3, rounds=14, graph={"name": "complete"}, deadline=4.0)
    made = sketchfed.run(given, on_round=lambda line: time.sleep(0.6))
    print(json.dumps(lines(made)))


def a_rank_misses_many_rounds() -> None:
    """Rank 2 stands still, and the others go on as fast as they can."""
    exchange = LinkTransport.exchange

    def standing(
        self: LinkTransport, outgoing: Mapping[Hop, bytes | None], expected: Collection[Hop], index: int, step: int
    ) -> Mapping[Hop, bytes]:
        if index == 5:
            subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        return exchange(self, outgoing, expected, index, step)

    if Launch.needed().rank == 2:
        LinkTransport.exchange = standing  # type: ignore[method-assign]
    made = sketchfed.run(tables("gossip", "ranks", nodes=3, rounds=1_500, deadline=1.5, evaluate_every=500))
    print(json.dumps([row["nodes_gone"] for row in made.metrics]))


def the_root_dies() -> None:
    die_in_round_3(1)
    sketchfed.run(tables("exact", "ranks", nodes=3, graph={"name": "path"}))


def launch(trial: Callable[[], None], size: int) -> list[int]:
    """Run a trial in each of `size` processes, with what torchrun would tell them. Return how they ended.

    They are forks of this process, because starting torch takes seconds. What they print is in `rank-0.log` and so on.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        told = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": probe.getsockname()[1]}
    os.environ |= {name: str(value) for name, value in told.items()}
    children = []
    for rank in range(size):
        if child := os.fork():
            children.append(child)
            continue
        os.environ["RANK"] = str(rank)
        log = os.open(f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        trial()
        sys.exit()
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    Path("codes.json").write_text(json.dumps(launch(globals()[sys.argv[1]], int(sys.argv[2]))))
