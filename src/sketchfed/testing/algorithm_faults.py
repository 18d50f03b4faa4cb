"""Runs of the tiny federation in which a client fails in every round, and which may be interrupted or refused."""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
import torch

from sketchfed import vectors
from sketchfed.algorithms import Algorithm, Replica
from sketchfed.attacks.public import Public
from sketchfed.config import GIVEN, Config, DataSettings, EngineSettings, ModelSettings, load_config
from sketchfed.errors import InputError
from sketchfed.protection import Protection
from sketchfed.rounds import Engine, Exchange, Participant
from sketchfed.runs import Run, RunFolder
from sketchfed.runs.hosts import LocalHost
from sketchfed.runs.loop import Loop
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.workload import from_objects
from sketchfed.testing.algorithm_cases import CLIENTS, Protected, clients_data, module, working
from sketchfed.testing.federation import Tap
from sketchfed.testing.spoiled import spoiled_in_turn

ROUNDS = 3
ABSENT, SPOILT = 1, 2
"""The rounds in which a client is absent and in which a client's reply is spoiled. In round 0 a client spoils its part in
opening a secure sum; without secure sums nobody fails there."""


class StoppedError(Exception):
    """Stands for a power failure."""


@dataclass
class Faults:
    """What goes wrong: the last client that replies fails, in a stage of its own in each round."""

    turn: int | None = None
    """Which way of spoiling a reply is taken. If None, the client is absent instead."""
    interrupted: bool = False
    """Whether everything stops in the last round, after clients have worked and before the server has what they sent."""
    failed: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By round, the stage in which a client failed, and the client."""
    asked: list[str] = field(default_factory=list)
    """The stage of every call to clients, also of calls that were never answered."""

    def changed(self, replies: dict[int, bytes], stage: str, index: int) -> dict[int, bytes]:
        """The replies to one call as they arrive."""
        sends = stage in ("train", "masked")
        if self.interrupted and sends and index == SPOILT:
            raise StoppedError
        if not replies or not (sends if index else stage == "unmask"):
            return replies
        last = max(replies)
        self.failed[index] = stage, last
        others = {client: reply for client, reply in replies.items() if client != last}
        if index == ABSENT or (sends and self.turn is None):
            return others
        if not sends:
            return others | {last: replies[last][:-1]}
        return others | {last: spoiled_in_turn(replies[last], self.turn or 0, masked=stage == "masked")}


class FaultyHost(LocalHost):
    """Runs clients in this process, where some of them fail."""

    def __init__(self, config: Config, workload: FederatedProblem, folder: Path | None, *, faults: Faults) -> None:
        super().__init__(config, workload, folder)
        self.faults = faults
        self.round: Callable[[], int] = lambda: 0

    def begin(self, config: Config, participant: Participant, start: Replica | None) -> Engine:
        tap = Tap(super().begin(config, participant, start))
        self.faults.asked = tap.stages
        tap.tamper = lambda replies: self.faults.changed(replies, tap.stages[-1], self.round())
        return tap


@dataclass(frozen=True, kw_only=True)
class FaultyRun:
    """A finished run, everything that passed in it, and who failed."""

    result: Run
    exchanges: Sequence[Exchange]
    failed: dict[int, tuple[str, int]]

    @cached_property
    def protection(self) -> Protection:
        config = self.result.config
        sizes = [len(each.x) for each in clients_data()]
        return config.protection(dim=self.result.dim, sizes=sizes, module=module())

    @cached_property
    def public(self) -> Public:
        """What everybody knows of it."""
        empty = deepcopy(module())
        with torch.no_grad():
            for parameter in vectors.trainable(empty).values():
                parameter.zero_()
        return Public(
            protection=self.protection.unseeded(),
            module=empty,
            loss="cross_entropy",
            seed=self.result.config.shared_seed,
            shape=(6,),
            sizes=tuple(len(each.x) for each in clients_data()),
        )

    def asked(self, index: int) -> list[int]:
        """Who was asked to work in a round."""
        return [each.client for each in self.exchanges if each.round == index and each.stage in ("train", "masked")]

    def counted(self, index: int) -> list[int]:
        """Whose work counts in a round. In a secure sum, it still does if its client fails afterwards."""
        stage, failing = self.failed.get(index, ("", -1))
        return [client for client in self.asked(index) if client != failing or stage == "unmask"]


def config_of(algorithm: Algorithm, protected: Protected) -> Config:
    """The configuration of a tiny run that is saved after every round, as a file would give it."""
    config = Config(
        algorithm=working(algorithm, rounds=ROUNDS, **protected.changes),
        privacy=protected.privacy,
        secure=protected.secure,
        engine=EngineSettings(workers=1, checkpoint_seconds=0.0),
        data=DataSettings(name=GIVEN, clients=CLIENTS),
        model=ModelSettings(name=GIVEN),
    )
    return load_config(config)


def whole(config: Config, turn: int) -> FaultyRun:
    """A run from its first round to its last. `turn` says in which way a reply is spoiled."""
    exchanges, faults = list[Exchange](), Faults(turn=turn)
    result = _loop(config, faults, exchanges.extend).finish()
    return FaultyRun(result=result, exchanges=exchanges, failed=faults.failed)


def check_refused(algorithm: Algorithm, protected: Protected, reason: str) -> None:
    """Check that a run is refused with this reason, and that no client was sent anything before."""
    faults = Faults()
    with pytest.raises(InputError, match=re.escape(reason)):
        _loop(config_of(algorithm, protected), faults).finish()
    assert not faults.asked, f"it is refused too late: clients had been asked for {', '.join(dict.fromkeys(faults.asked))}"


def interrupted(config: Config, folder: Path) -> Run:
    """The same run, interrupted in its last round and resumed from its folder.

    The client whose reply was spoiled there is absent.
    """
    try:
        _loop(config, Faults(interrupted=True)).keep_in(RunFolder.create(folder)).finish()
    except StoppedError:
        return _loop(RunFolder.config(folder), Faults()).keep_in(RunFolder.open(folder)).finish()
    raise InputError("the run was not interrupted: in its last round, nobody was asked to work.")


def _loop(config: Config, faults: Faults, on_exchange: Callable[[Sequence[Exchange]], None] | None = None) -> Loop:
    hosts = list[FaultyHost]()

    def host(config: Config, workload: FederatedProblem, folder: Path | None) -> FaultyHost:
        hosts.append(FaultyHost(config, workload, folder, faults=faults))
        return hosts[-1]

    parts = [(each.x, each.y) for each in clients_data()]
    workload = from_objects(module(), parts, parts[0], None, "classification")
    loop = Loop(config, workload, on_exchange, host=host)
    hosts[-1].round = lambda: loop.round
    return loop
