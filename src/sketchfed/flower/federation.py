"""The federation of a run: the connection to a SuperLink, the clients, and what is kept of them in the run's folder."""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any

import msgspec
from flwr.serverapp import Grid

from sketchfed.algorithms import Replica
from sketchfed.config import GIVEN, Config, DataSettings
from sketchfed.errors import InputError, StorageError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.connection import Connection, joined
from sketchfed.flower.drawing import drawn, must_draw
from sketchfed.flower.engine import FlowerEngine
from sketchfed.flower.enrolment import Member, enrolled
from sketchfed.flower.link import SuperLink, UnknownSeriesError
from sketchfed.nodes.drawing import Drawn
from sketchfed.rounds import Engine, Participant
from sketchfed.runs.hosts import Host
from sketchfed.runs.own_loop import LoopWorkload
from sketchfed.runs.workload import Workload
from sketchfed.storage import replace_file, storing
from sketchfed.training import ClientMemory

log = logging.getLogger("sketchfed")

FILE, TRAFFIC = "federation.json", "traffic.jsonl"


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    session: bytes
    series: int | None
    members: list[Member]
    nonces: tuple[bytes, ...] = ()


class Federation(Host):
    """The clients of a run on Flower. With a `grid` it runs inside a ServerApp. Otherwise this process becomes a ServerApp."""

    patience = 3
    remote = True

    def __init__(
        self, config: Config, workload: Workload | LoopWorkload, folder: Path | None, *, grid: Grid | None = None
    ) -> None:
        self._workload, self._folder, self._open, self._traffic = workload, folder, ExitStack(), Traffic()
        kept = _load(folder)
        try:
            series = None
            if grid is None:
                connection = self._join(config, None if kept is None else kept.series)
                grid, series = connection.grid, connection.series_id
            self.session = token_bytes(16) if kept is None else kept.session
            members = (
                enrolled(grid, config, session=self.session, clients=len(workload.sizes), wait=config.engine.wait)
                if kept is None
                else kept.members
            )
            if kept is not None:
                self._drawn = Drawn(kept.nonces)
            else:
                self._drawn = drawn(grid, members, config, session=self.session) if must_draw(config) else Drawn(())
            self._series = series
            self.engine = FlowerEngine(
                grid, session=self.session, members=members, deadline=config.engine.deadline, on_traffic=self._traffic
            )
        except BaseException:
            self.close()
            raise

    def _join(self, config: Config, series: int | None) -> Connection:
        """Join the SuperLink, in the earlier series if it knows it. Nodes then still have what their clients kept."""
        link, wait = _link(config), config.engine.wait
        try:
            return self._open.enter_context(joined(link, series=series, wait=wait))
        except UnknownSeriesError as error:
            log.warning("%s", error)
            return self._open.enter_context(joined(link, wait=wait))

    @property
    def sizes(self) -> Sequence[int]:
        return self.engine.sizes

    @property
    def sees_data(self) -> bool:
        return self.engine.simulated

    @property
    def joint(self) -> str:
        return self._drawn.joint(self.session) if self._drawn.nonces else ""

    def begin(self, config: Config, participant: Participant, start: Replica | None) -> Engine:
        """Fix what clients are told: the completed configuration, and the task of the model."""
        dataset = self._workload.dataset
        if not self.engine.simulated:
            if config.data.client_validation is not None:
                raise InputError(
                    f"data.client_validation = {config.data.client_validation} splits clients of a named data set, but these "
                    "nodes have data of their own. Remove it: the nodes are then evaluated on the data that they train on."
                )
            config = replace(config, data=DataSettings(name=GIVEN, clients=self.engine.clients))
        secure = config.secure is not None and config.secure.aggregation
        self.engine.agree(
            Agreement(
                config=config,
                sizes=self.engine.sizes,
                identities=tuple(member.identity for member in self.engine.members) if secure else (),
                shape=dataset.shape,
                outputs=dataset.outputs,
                task=dataset.task,
                nonces=self._drawn.nonces,
            )
        )
        return self.engine

    def resume(self, memories: dict[int, ClientMemory], replica: Replica | None) -> None:
        """Do nothing, because nodes keep their own memories and replicas."""

    def changed_memories(self) -> tuple[dict[int, ClientMemory], set[int]]:
        return {}, set()

    def keep(self) -> None:
        """Write down who takes part, so that the run can continue with the same clients."""
        if self._folder is not None:
            kept = _Kept(
                session=self.session, series=self._series, members=list(self.engine.members), nonces=self._drawn.nonces
            )
            replace_file(self._folder / FILE, msgspec.json.format(msgspec.json.encode(kept), indent=1))
            self._traffic.keep_in(self._folder / TRAFFIC)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the SuperLink, and report whether the run was completed."""
        self._open.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


class Traffic:
    """One line for each call of the engine: what was sent, what Flower made of it, and how long it took."""

    def __init__(self) -> None:
        self._path: Path | None = None

    def keep_in(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with storing(self._path), self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _link(config: Config) -> SuperLink:
    engine = config.engine
    if not engine.address:
        raise InputError("engine.name = 'flower' needs engine.address, the SuperLink's host:port.")
    return SuperLink(
        address=engine.address,
        root_certificates=Path(engine.root_certificates) if engine.root_certificates else None,
        insecure=engine.insecure,
        secret=Path(engine.secret) if engine.secret else None,
    )


def _load(folder: Path | None) -> _Kept | None:
    path = None if folder is None else folder / FILE
    if path is None or not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{path} does not say who takes part: {error}. Start the run anew in another folder.") from error
