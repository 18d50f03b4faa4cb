"""What a run left in its folder, read back and checked: nothing in a file is taken on trust."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sketchfed.errors import InputError
from sketchfed.report.checks import (
    REMEDY,
    flag,
    is_printable,
    json_object,
    number,
    number_or_null,
    printable,
    refusal,
    shown,
    whole,
)
from sketchfed.report.networks import GRAPH, NetworkRecord, network_record

_ON_CLIENTS, _SCORED = "clients_", "clients_scored"


@dataclass(frozen=True, kw_only=True)
class ClientFigures:
    """One metric on the clients' own data: the mean over clients, that of the worst tenth, and the spread between them."""

    mean: float
    worst: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class NodeFigures:
    """How far nodes without a server are apart after a round, and what passed between them since the start."""

    consensus: float | None
    """The root mean square distance of the nodes' models from their mean."""
    farthest_accuracy: float | None
    """The accuracy of the node whose model is farthest from the mean."""
    farthest_loss: float | None
    node_bytes: int
    """What the node sent that sent the most."""
    edge_bytes: int
    """What passed over the link that carried the most, in both directions."""
    lost: int
    """Messages that did not arrive in time."""
    refused: int
    """Messages that could not be used."""
    gone: int = 0
    """Nodes whose processes are missing. The mean of the models leaves them out."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the report takes from a line of metrics.jsonl.

    Bytes, ε and seconds are totals since the start; None is what was not measured.
    """

    round: int
    loss: float | None
    accuracy: float | None
    participants: int
    uplink_bytes: int
    downlink_bytes: int
    captured: float | None
    """Which share of the gradient's energy the packets carry; None also for runs that did not record it."""
    epsilon: float | None
    seconds: float
    clients_scored: int | None = None
    """How many clients were evaluated on their own data."""
    on_clients: Mapping[str, ClientFigures] = field(default_factory=dict)
    """What they measured, by metric."""
    apart: NodeFigures | None = None
    """What is known of a run without a server. `uplink_bytes` is then what nodes sent, and `downlink_bytes` what arrived."""

    @property
    def total_bytes(self) -> int:
        """Both directions, all clients. Without a server, what nodes sent: what arrived are the same messages."""
        return self.uplink_bytes + (self.downlink_bytes if self.apart is None else 0)

    @property
    def reached_accuracy(self) -> float | None:
        """The accuracy that a goal is compared with. Without a server, that of the node whose model is farthest from the mean.

        The mean of all models gains accuracy even if nodes tell each other nothing, and no node has it.
        """
        return self.accuracy if self.apart is None else self.apart.farthest_accuracy

    @property
    def reached_loss(self) -> float | None:
        """The held-out loss that a goal is compared with. Without a server, that of the same node."""
        return self.loss if self.apart is None else self.apart.farthest_loss

    @property
    def evaluated(self) -> bool:
        """Was the model of this round tried on held-out data?"""
        return self.loss is not None or self.accuracy is not None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run's summary.json. `versions` are those of the software that ran, where the run recorded them.

    `privacy` is what the run's ε is about: δ, unit, adjacency and observer; None for a run that claims none.
    """

    name: str
    label: str
    model: str
    dim: int
    clients: int
    data: str
    finished: bool
    privacy: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as its folder tells it: its exact configuration, a line a round, and what it was called."""

    folder: Path
    config_text: str
    config: Mapping[str, Any]
    metrics: tuple[Round, ...]
    summary: Summary
    network: NetworkRecord | None = None
    """The graph of a run without a server."""

    @property
    def seed(self) -> object:
        return self.config.get("seed")

    @property
    def rounds(self) -> int:
        """The last round; 0 for a run that has not finished one."""
        return self.metrics[-1].round if self.metrics else 0

    @property
    def uplink_bytes(self) -> int:
        return self.metrics[-1].uplink_bytes if self.metrics else 0

    @property
    def downlink_bytes(self) -> int:
        return self.metrics[-1].downlink_bytes if self.metrics else 0

    @property
    def total_bytes(self) -> int:
        return self.metrics[-1].total_bytes if self.metrics else 0

    @property
    def apart(self) -> NodeFigures | None:
        """What is known after the last round of a run without a server. None if there is a server."""
        return self.metrics[-1].apart if self.metrics else None

    @cached_property
    def last_apart(self) -> NodeFigures | None:
        """The same after the last round that was scored."""
        return next((line.apart for line in reversed(self.metrics) if line.apart is not None and line.evaluated), None)

    @property
    def seconds(self) -> float:
        return self.metrics[-1].seconds if self.metrics else 0.0

    @property
    def epsilon(self) -> float | None:
        """Privacy spent so far, or None if the run claims none."""
        return self.metrics[-1].epsilon if self.metrics else None

    @cached_property
    def participations(self) -> int:
        """How often a client took part: the participants of all rounds, summed."""
        return sum(line.participants for line in self.metrics)

    @property
    def mean_captured(self) -> float | None:
        """Over the rounds in which it was measured, or None if it never was."""
        shares = [line.captured for line in self.metrics if line.captured is not None]
        return sum(shares) / len(shares) if shares else None

    @property
    def final_accuracy(self) -> float | None:
        """Accuracy when it was last evaluated, or None if it never was."""
        return next((line.accuracy for line in reversed(self.metrics) if line.accuracy is not None), None)

    @property
    def best_accuracy(self) -> float | None:
        return max((line.accuracy for line in self.metrics if line.accuracy is not None), default=None)

    @property
    def final_loss(self) -> float | None:
        """Held-out loss when it was last evaluated, or None if it never was."""
        return next((line.loss for line in reversed(self.metrics) if line.loss is not None), None)

    @property
    def best_loss(self) -> float | None:
        return min((line.loss for line in self.metrics if line.loss is not None), default=None)

    @property
    def best_reached_accuracy(self) -> float | None:
        """The highest `reached_accuracy` of all rounds."""
        return max((found for line in self.metrics if (found := line.reached_accuracy) is not None), default=None)

    @property
    def best_reached_loss(self) -> float | None:
        """The lowest `reached_loss` of all rounds."""
        return min((found for line in self.metrics if (found := line.reached_loss) is not None), default=None)

    @cached_property
    def last_on_clients(self) -> Round | None:
        """The last round in which clients were evaluated on their own data."""
        return next((line for line in reversed(self.metrics) if line.on_clients), None)

    def first_at_accuracy(self, target: float) -> Round | None:
        """The first evaluated round at or above the target; its `total_bytes` are the bytes by then."""
        reached = ((line, line.reached_accuracy) for line in self.metrics)
        return next((line for line, accuracy in reached if accuracy is not None and accuracy >= target), None)

    def first_at_loss(self, target: float) -> Round | None:
        """The first evaluated round whose held-out loss is at or below the target."""
        reached = ((line, line.reached_loss) for line in self.metrics)
        return next((line for line, loss in reached if loss is not None and loss <= target), None)


def read(folder: Path) -> RunRecord:
    """Read a run's folder. A last line of metrics that a crash cut short is ignored; anything else amiss is refused."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}. Give one that `sketchfed run` wrote, such as runs/digits.")
    config_text = _text(folder / "config.toml")
    try:
        config = tomllib.loads(config_text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{folder / 'config.toml'} is not TOML: {error}. {REMEDY}") from None
    summary = _summary(folder / "summary.json")
    graph = folder / GRAPH
    return RunRecord(
        folder=folder,
        config_text=config_text,
        config=config,
        metrics=_metrics(folder / "metrics.jsonl"),
        summary=summary,
        network=network_record(_text(graph), str(graph), nodes=summary.clients) if graph.exists() else None,
    )


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{file} is missing, so {file.parent} is not the folder of a run. "
            "Give one that `sketchfed run` wrote, such as runs/digits."
        ) from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}. Make it a readable file. {REMEDY}") from None


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: byte {error.start} is none of it. {REMEDY}") from None


def _summary(file: Path) -> Summary:
    where = str(file)
    values = json_object(_text(file), where)
    versions = values.get("versions", {})
    if not isinstance(versions, dict) or not all(map(is_printable, versions)):
        raise refusal(where, "versions", versions, "a table of names and versions")
    return Summary(
        name=printable(values, "name", where),
        label=printable(values, "label", where),
        model=printable(values, "model", where),
        dim=whole(values, "dim", where, least=1),
        clients=whole(values, "clients", where, least=1),
        data=printable(values, "data", where),
        finished=flag(values, "finished", where),
        privacy=None if values.get("privacy") is None else printable(values, "privacy", where),
        versions={key: printable(versions, key, where) for key in versions},
    )


def _metrics(file: Path) -> tuple[Round, ...]:
    *lines, last = _bytes(file).split(b"\n")
    rounds: list[Round] = []
    for place, line in enumerate(lines, start=1):
        _append(rounds, line, f"{file}, line {place}")
    if last:  # no line break after it: whole if it is an object, else what a crash left of one
        try:
            complete = isinstance(json.loads(last), dict)
        except (ValueError, RecursionError):
            complete = False
        if complete:
            _append(rounds, last, f"{file}, line {len(lines) + 1}")
    return tuple(rounds)


def _append(rounds: list[Round], line: bytes, where: str) -> None:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text. {REMEDY}") from None
    values = json_object(text, where)
    this = Round(
        round=whole(values, "round", where, least=1),
        loss=number_or_null(values, "loss", where),
        accuracy=number_or_null(values, "accuracy", where, least=0.0, most=1.0),
        participants=whole(values, "participants", where),
        uplink_bytes=whole(values, "uplink_bytes", where),
        downlink_bytes=whole(values, "downlink_bytes", where),
        captured=number_or_null({"captured": None} | values, "captured", where, least=0.0, most=1.0),
        epsilon=number_or_null(values, "epsilon", where, least=0.0),
        seconds=number(values, "seconds", where, least=0.0),
        clients_scored=None if values.get(_SCORED) is None else whole(values, _SCORED, where),
        on_clients=_on_clients(values, where),
        apart=_apart(values, where),
    )
    if rounds:
        _check_follows(this, rounds[-1], where)
    rounds.append(this)


def _apart(values: Mapping[str, Any], where: str) -> NodeFigures | None:
    """What a run without a server measured. Its lines have a key 'consensus'."""
    if "consensus" not in values:
        return None
    return NodeFigures(
        consensus=number_or_null(values, "consensus", where, least=0.0),
        farthest_accuracy=number_or_null(values, "farthest_accuracy", where, least=0.0, most=1.0),
        farthest_loss=number_or_null(values, "farthest_loss", where),
        node_bytes=whole(values, "node_bytes", where),
        edge_bytes=whole(values, "edge_bytes", where),
        lost=whole(values, "lost", where),
        refused=whole(values, "refused", where),
        gone=whole(values, "nodes_gone", where) if "nodes_gone" in values else 0,
    )


def _on_clients(values: Mapping[str, Any], where: str) -> dict[str, ClientFigures]:
    """The metrics of clients. Each has three keys, all of them null if no client had a value."""
    found = {}
    for key in values:
        name, keys = key.removeprefix(_ON_CLIENTS), (key, f"{key}_worst", f"{key}_spread")
        if not key.startswith(_ON_CLIENTS) or not name.isidentifier() or any(values.get(part) is None for part in keys):
            continue
        if not is_printable(name):
            raise refusal(where, "the name of a metric", name, "at most 200 printable characters")
        mean, worst = (number(values, part, where) for part in keys[:2])
        found[name] = ClientFigures(mean=mean, worst=worst, spread=number(values, keys[2], where, least=0.0))
    return found


def _check_follows(this: Round, before: Round, where: str) -> None:
    """Rounds count up and totals never fall: a file that says otherwise is two runs in one, or damaged."""
    if this.round <= before.round:
        raise InputError(f"{where}: round {this.round} comes after round {before.round}; rounds count up. {REMEDY}")
    for total in ("uplink_bytes", "downlink_bytes"):
        now, then = getattr(this, total), getattr(before, total)
        if now < then:
            raise InputError(f"{where}: '{total}' falls from {then} to {now}, but it is a total since the start. {REMEDY}")
    if (this.epsilon is None) != (before.epsilon is None):
        raise InputError(
            f"{where}: 'epsilon' is {shown(this.epsilon)} after {shown(before.epsilon)}; "
            f"a run accounts for privacy in every round or in none. {REMEDY}"
        )
    if this.epsilon is not None and before.epsilon is not None and this.epsilon < before.epsilon:
        raise InputError(
            f"{where}: 'epsilon' falls from {before.epsilon} to {this.epsilon}; spent privacy stays spent. {REMEDY}"
        )
