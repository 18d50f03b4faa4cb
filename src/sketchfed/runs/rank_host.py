"""Runs on the ranks of a launch, seen from rank 0, which has the server."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Any

import safetensors.torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.config import Config
from sketchfed.errors import InputError, RankError
from sketchfed.rounds import Engine, Participant
from sketchfed.rounds.launch import Launch
from sketchfed.rounds.rank_group import RankGroup
from sketchfed.rounds.rank_hub import Message, joined, left
from sketchfed.rounds.ranks import RankEngine
from sketchfed.runs.hosts import LocalHost
from sketchfed.runs.identity import differences
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.rank_greeting import Greeting, greeting, identities
from sketchfed.runs.rank_nodes import leading
from sketchfed.storage import storing
from sketchfed.version import __version__
from sketchfed.wire import Packet

log = logging.getLogger("sketchfed")

FILE = "ranks.jsonl"
_COUNTED = ("payload_down", "payload_up", "sent", "received")


class RankHost(LocalHost):
    """The clients of a run on all ranks of a launch. Rank 0 keeps their memories, and the run's folder."""

    def __init__(self, config: Config, workload: FederatedProblem, folder: Path | None) -> None:
        super().__init__(config, workload, folder)
        if not Launch.needed().leads:
            raise InputError(
                "the server of a run runs on rank 0, and this is another rank. Call `sketchfed.run`, which then serves clients."
            )
        self._folder, self._lines = folder, list[dict[str, Any]]()
        self._path: Path | None = None
        self._secret, self._audience = token_bytes(32), list[int]()
        self._hub = joined(config.engine.wait, config.engine.deadline)
        self._hub.runs += 1
        plan = Packet(kind="plan", arrays={}, scalars={"run": self._hub.runs})
        for rank in self._hub.others:
            self._hub.send(rank, plan, [config.to_toml().encode(), self._secret])

    def begin(self, config: Config, participant: Participant, start: Replica | None) -> Engine:
        """Compare what all ranks have, and start the engine."""
        mine, waiting = greeting(config, self._workload), set(self._hub.others)
        while waiting:
            rank, message = self._hub.next()
            if message.packet.scalars.get("run") == self._hub.runs:  # others belong to a run that was given up
                self._welcome(rank, message, mine)
                waiting.discard(rank)
        for rank in self._hub.others:
            self._hub.send(rank, Packet(kind="go", arrays={}))
        if config.graph is not None and start is not None:
            self._group = leading(config, participant, self._workload, start, self._hub, self._moved)
            return self._group
        self._engine = RankEngine(
            self._hub,
            participant,
            self._workload.examples,
            sizes=self.sizes,
            start=start,
            judged=self._workload.judged,
            workers=config.engine.threads,
            identities=identities(self._secret),
            on_traffic=self._moved,
        )
        return self._engine

    def _welcome(self, rank: int, message: Message, mine: Greeting) -> None:
        """Refuse a rank that has other versions, data or settings."""
        place = self._hub.places[rank]
        if message.packet.kind == "refused":
            raise RankError(f"{place} cannot take part: {b''.join(message.parts).decode(errors='replace')}")
        said = Greeting.read(b"".join(message.parts), place)
        for name, version in mine.versions.items():
            if said.versions.get(name) != version:
                raise RankError(
                    f"{place} has {name} {said.versions.get(name)}, and rank 0 has {version}. Results depend on it, so install "
                    "the same version everywhere."
                )
        try:
            found = differences(mine.identity, said.identity, self._workload.data_name)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise RankError(f"{place} does not say what data it has. Start all ranks with sketchfed {__version__}.") from None
        if found:
            raise RankError(f"{place} {' It also '.join(found)} All ranks need the data, the loss and the model of rank 0.")
        if said.completed != mine.completed:
            raise RankError(
                f"{place} fills in other defaults of the configuration than rank 0. Install the same plug-ins everywhere."
            )
        if said.wants_result:
            self._audience.append(rank)

    def keep(self) -> None:
        """Write down what ranks exchange."""
        self._path = None if self._folder is None else self._folder / FILE

    def _moved(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        if self._path is not None:
            with storing(self._path), self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def about(self) -> dict[str, Any]:
        """How many ranks there are, and what they exchanged since this launch began or resumed the run."""
        totals = {key: sum(line[key] for line in self._lines) for key in _COUNTED}
        hosts = len({place.host for place in self._hub.places})
        return {"ranks": {"count": self._hub.size, "hosts": hosts, **totals}}

    def conclude(self, lines: Sequence[Mapping[str, Any]], weights: Tensor) -> None:
        """Tell the result to ranks whose program waits for it."""
        parts = [json.dumps(list(lines)).encode(), safetensors.torch.save({"weights": weights.contiguous()})]
        for rank in self._audience:
            self._hub.send(rank, Packet(kind="result", arrays={}), parts)

    def close(self, error: BaseException | None = None) -> None:
        if isinstance(self._group, RankGroup):
            self._group.close("" if error is None else str(error) or type(error).__name__)
        if self._engine is not None:
            self._engine.close(wait=error is None)
        if isinstance(error, RankError) or (error is not None and not isinstance(error, Exception)):
            left(self._hub, str(error) or type(error).__name__)
            return
        for rank in self._hub.others:
            self._hub.send(rank, Packet(kind="end", arrays={}), [str(error or "").encode()])
