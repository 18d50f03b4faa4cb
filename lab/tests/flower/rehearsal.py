"""A federation with a script of faults, and the same runs in this process with the same clients missing."""

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

import sketchfed.runs.hosts
from sketchfed import Run, resume, run
from sketchfed.flower import Loopback
from sketchfed.rounds import LocalEngine
from sketchfed_lab.faults.chaos import rehearsing

Missing = Mapping[tuple[int, str], Collection[int]]
"""Whose replies are missing, by round, counted from 0, and stage."""


class Rehearsal:
    """Runs on a federation whose clients fail as `script` says."""

    def __init__(self, federation: Loopback, script: Path, operator: ThreadPoolExecutor) -> None:
        self.federation, self.path, self._operator = federation, script, operator

    def script(self, *rules: dict[str, object]) -> None:
        """The faults from now on; what was served before is forgotten."""
        for record in self.path.parent.glob(f"{self.path.stem}.*.jsonl"):
            record.unlink()
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(rules))
        fresh.replace(self.path)

    def engine(self, **settings: object) -> dict[str, object]:
        """The table [engine] for this federation."""
        where = {"address": self.federation.address, "root_certificates": str(self.federation.root_certificates)}
        return {"name": "flower", "deadline": 60.0, "wait": 120.0, **where, **settings}

    def run(self, tables: dict[str, object], folder: Path, on_round=None, **settings: object) -> Run:
        with rehearsing(self.path.parent / "app"):
            return run({**tables, "engine": self.engine(**settings)}, folder=folder, on_round=on_round)

    def resume(self, folder: Path) -> Run:
        with rehearsing(self.path.parent / "app"):
            return resume(folder)

    def served(self, client: int) -> list[dict[str, object]]:
        """What a client was asked, and what happened to it."""
        record = self.path.with_suffix(f".{client}.jsonl")
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    def when(self, client: int, round: int, *acts: Callable[[], None]) -> Future[None]:
        """Act as soon as a client has begun to train for a round."""

        def wait() -> None:
            end = time.monotonic() + 200
            while not any((line["round"], line["stage"]) == (round, "train") for line in self.served(client)):
                assert time.monotonic() < end, f"client {client} never came to round {round}"
                time.sleep(0.05)
            for act in acts:
                act()

        return self._operator.submit(wait)

    def restart(self, client: int) -> None:
        """Kill the client's SuperNode and start it again: it has lost all that it kept, and whatever blocked it."""
        self.federation.kill_node(client)
        self.federation.start_node(client)


@contextmanager
def rehearsed(folder: Path, clients: int) -> Iterator[Rehearsal]:
    """A federation of so many nodes, with nothing in its script yet."""
    script = folder / "script.json"

    def settings(index: int) -> dict[str, str | int]:
        return {"partition-id": index, "num-partitions": clients, "chaos": str(script)}

    # What a thread starts ends with it, so the one that restarts nodes lives for as long as the federation.
    with ThreadPoolExecutor(1) as operator, Loopback(folder / "federation", nodes=clients, node_config=settings) as federation:
        yield Rehearsal(federation, script, operator)
    assert federation.pids() == []


def survivors(monkeypatch, tables: dict[str, object], missing: Missing, forgot: Missing | None = None) -> Run:
    """The run in this process, where clients answer as ever but their replies are missing; some had lost their memory."""

    class Losing(LocalEngine):
        begun = -1

        def ask(self, requests, stage="train"):
            self.begun += stage in ("train", "keys")
            for client in (forgot or {}).get((self.begun, stage), ()):
                self.memories.pop(client)
            gone = missing.get((self.begun, stage), ())
            return {client: reply for client, reply in super().ask(requests, stage).items() if client not in gone}

    with monkeypatch.context() as patched:
        patched.setattr(sketchfed.runs.hosts, "LocalEngine", Losing)
        return run(tables)


def left_out(caplog) -> dict[int, dict[int, str]]:
    """Who was left out of each round, counted from 0, and why, as the server's log says."""
    found: dict[int, dict[int, str]] = {}
    for record in caplog.records:
        if said := re.fullmatch(r"round (\d+) goes on without client ([\d, ]+): (.*)", record.getMessage(), re.DOTALL):
            clients = [int(client) for client in said[2].split(",")]
            found.setdefault(int(said[1]) - 1, {}).update(dict.fromkeys(clients, said[3]))
    return found


def same(one: Run, other: Run) -> bool:
    """Whether two runs came to the same, bit for bit, by the same rounds with as many clients each."""
    keys = ("round", "loss", "accuracy", "participants")
    lines = [[[line[key] for key in keys] for line in run.metrics] for run in (one, other)]
    return lines[0] == lines[1] and torch.equal(one.weights, other.weights)


def written(folder: Path) -> list[dict[str, object]]:
    """The metrics on the disk."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
