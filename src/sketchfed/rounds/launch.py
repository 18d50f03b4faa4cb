"""A launch: the processes that torchrun started together, each with a number, its rank."""

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from sketchfed.errors import InputError, RankError

HOW = "torchrun --nproc-per-node 2 -m sketchfed run CONFIG --set engine.name=ranks"
_WHERE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_POLL = 0.05


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the launcher says about this process."""

    rank: int
    size: int
    """The number of ranks."""
    address: str
    port: int
    attempt: str = "0"
    """How often torchrun has started these processes again."""
    hosted: bool = False
    """Whether the launcher runs the store in which ranks find each other. Otherwise rank 0 runs it."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Launch | None":
        """The launch that the environment describes. None outside of one."""
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return None
        if missing := [name for name in _WHERE if name not in environment]:
            raise InputError(
                f"the environment has RANK and WORLD_SIZE, as in a launch, but not {', '.join(missing)}. Launch with: {HOW}."
            )
        try:
            rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        except ValueError:
            rank, size, port = -1, 0, 0
        if not (0 <= rank < size and 0 < port < 2**16):
            given = ", ".join(f"{name}={environment[name]}" for name in _WHERE)
            raise InputError(f"the environment describes no launch: {given}. Launch with: {HOW}.")
        return cls(
            rank=rank,
            size=size,
            address=environment["MASTER_ADDR"],
            port=port,
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
            hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @classmethod
    def needed(cls, environment: Mapping[str, str] = os.environ) -> "Launch":
        """The launch that the environment describes. Raises `InputError` outside of one."""
        found = cls.of(environment)
        if found is None:
            raise InputError(
                "engine.name = 'ranks' shares the clients between the processes of a launch, and this process was started "
                f"alone. Launch it with: {HOW}. Or use engine.name = 'local', which runs all clients in threads."
            )
        return found

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which runs the server."""
        return self.rank == 0

    def store(self, wait: float) -> Store:
        """The store in which ranks find each other."""
        seconds = timedelta(seconds=wait)
        try:
            if not self.leads or self.hosted:
                self._look_for_store(wait)
            found = TCPStore(self.address, self.port, None, self.leads and not self.hosted, seconds, wait_for_workers=False)
        except (RuntimeError, ValueError, OSError) as error:
            raise RankError(
                f"rank {self.rank} cannot reach the store of the launch at {self.address}:{self.port} within {wait:g} seconds. "
                "Check that rank 0 was started, and that MASTER_ADDR and MASTER_PORT (torchrun: --master-addr and "
                "--master-port) name its machine and a port that is open there."
            ) from error
        found.set_timeout(seconds)
        return PrefixStore(f"sketchfed/{self.attempt}", found)

    def _look_for_store(self, wait: float) -> None:
        """Wait until somebody listens where the store should be. Raises `OSError` if nobody does."""
        until = time.monotonic() + wait
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=max(0.1, wait)).close()
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(_POLL)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank runs."""

    rank: int
    host: str
    process: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (process {self.process})"


def met(launch: Launch, store: Store, wait: float) -> list[Place]:
    """Wait for all ranks, and return where each of them runs."""
    own = {"host": socket.gethostname(), "process": os.getpid()}
    until, found = time.monotonic() + wait, dict[int, Place]()
    try:
        store.set(f"place/{launch.rank}", json.dumps(own))
        while len(found) < launch.size:
            for rank in range(launch.size):
                if rank not in found and store.check([f"place/{rank}"]):
                    found[rank] = _place(rank, store.get(f"place/{rank}"))
            if len(found) < launch.size:
                if time.monotonic() > until:
                    missing = [str(rank) for rank in range(launch.size) if rank not in found]
                    raise RankError(
                        f"{len(found)} of {launch.size} ranks joined within {wait:g} seconds; rank {', '.join(missing[:5])} "
                        "did not. Look at its output, start all ranks with the same WORLD_SIZE, or raise engine.wait."
                    )
                time.sleep(_POLL)
    except (RuntimeError, ConnectionError) as error:
        raise RankError(f"rank {launch.rank} lost the store of the launch before all ranks had joined: {error}") from error
    return [found[rank] for rank in range(launch.size)]


def _place(rank: int, said: bytes) -> Place:
    try:
        given = json.loads(said)
        return Place(rank=rank, host=str(given["host"])[:255], process=int(given["process"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RankError(f"rank {rank} does not say where it runs. Start all ranks with the same version.") from error
