"""Hosts start the clients of a run: in this process, or wherever the engine named in the configuration runs them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.config import ENGINES, Config
from sketchfed.errors import InputError
from sketchfed.parts import check_class
from sketchfed.rounds import Engine, LocalEngine, Participant
from sketchfed.rounds.peers import PeerGroup, peer_of
from sketchfed.runs.problem import FederatedProblem
from sketchfed.training import ClientMemory

_NEEDED = {"flower": "flwr"}
"""Engines that need an extra of this package, each with a module that the extra installs."""


class Host(ABC):
    """Starts an engine for a run, and keeps in the run's folder what the engine needs to continue.

    Additional keyword arguments of a host are its options. They become keys of [engine].
    """

    patience: ClassVar[int]
    """How many times the server asks for a round that nobody answers."""
    remote: ClassVar[bool]
    """Whether clients keep their memory outside this process. If so, each round is saved before the next one begins."""

    @abstractmethod
    def __init__(self, config: Config, workload: FederatedProblem, folder: Path | None) -> None: ...

    @property
    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """The number of examples of each client."""

    @property
    @abstractmethod
    def sees_data(self) -> bool:
        """Whether this process also holds the clients' examples, as in a simulation."""

    @property
    def joint(self) -> str:
        """Randomness that the server and its clients drew together, as `Config.joint` says it. Empty if they drew none."""
        return ""

    @abstractmethod
    def begin(self, config: Config, participant: Participant, start: Replica | None) -> Engine:
        """Start the engine for a completed configuration. `start` is the replica that every client can rebuild, if any."""

    def stand_by(self, held_by_server: Callable[[], Replica]) -> None:  # noqa: B027 – most hosts have no use for it
        """Learn how to ask for the server's replica. Clients in the server's process need not hold the same numbers again."""

    @abstractmethod
    def keep(self) -> None:
        """Write to the run's folder what a later process needs in order to find the same clients."""

    @abstractmethod
    def resume(self, memories: dict[int, ClientMemory], replica: Replica | None) -> None:
        """Continue after a checkpoint with the clients' memories and the replica that they hold."""

    @abstractmethod
    def changed_memories(self) -> tuple[dict[int, ClientMemory], set[int]]:
        """Return all memories, and the clients whose memory changed since the last call and must be saved."""

    def about(self) -> dict[str, Any]:
        """What the summary of the run says about its clients' whereabouts."""
        return {}

    def conclude(self, lines: Sequence[Mapping[str, Any]], weights: Tensor) -> None:  # noqa: B027 – most hosts tell nobody
        """Learn the metrics of all rounds and the final weights, before the run ends."""

    @abstractmethod
    def close(self, error: BaseException | None = None) -> None:
        """Release all resources. `error` is the reason if the run ended early."""


class LocalHost(Host):
    """Runs all clients in threads of this process."""

    patience, remote = 1, False

    def __init__(self, config: Config, workload: FederatedProblem, folder: Path | None) -> None:
        self._workload = workload
        self._engine: LocalEngine | None = None
        self._group: PeerGroup | None = None

    @property
    def sees_data(self) -> bool:
        return True

    @property
    def sizes(self) -> Sequence[int]:
        return self._workload.sizes

    def begin(self, config: Config, participant: Participant, start: Replica | None) -> Engine:
        examples, judged = self._workload.examples, self._workload.judged
        if config.graph is not None and start is not None:
            topology = config.graph.topology(len(self.sizes), participant.seed)
            kind, workers = peer_of(participant.protection), config.engine.threads
            self._group = PeerGroup(kind, participant, start, topology, examples, workers=workers, judged=judged)
            return self._group
        known: dict[str, Any] = {"clients": len(self.sizes), "start": start, "workers": config.engine.threads}
        self._engine = LocalEngine(participant, examples, judged=judged, **known)
        return self._engine

    def stand_by(self, held_by_server: Callable[[], Replica]) -> None:
        if self._engine is not None:
            self._engine.held_by_server = held_by_server

    def keep(self) -> None:
        """Do nothing, because the checkpoint holds everything."""

    def resume(self, memories: dict[int, ClientMemory], replica: Replica | None) -> None:
        if self._engine is not None:
            self._engine.memories, self._engine.replica = memories, replica

    def changed_memories(self) -> tuple[dict[int, ClientMemory], set[int]]:
        return ({}, set()) if self._engine is None else self._engine.take_changes()

    def close(self, error: BaseException | None = None) -> None:
        for engine in (self._engine, self._group):
            if engine is not None:
                engine.close()


def make_host(config: Config, workload: FederatedProblem, folder: Path | None) -> Host:
    """Make the host that `engine.name` names."""
    name = config.engine.name
    if needed := _NEEDED.get(name):
        try:
            import_module(needed)
        except ImportError:
            raise InputError(
                f"engine.name = '{name}' needs {name.capitalize()}. Install it: pip install 'sketchfed[{name}]'."
            ) from None
    kind = ENGINES[name]
    check_class(kind, f"engine '{name}'", (Host,))
    host: Host = kind(config, workload, folder, **config.engine.options)
    return host
