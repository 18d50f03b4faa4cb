"""Training from the first round to the last."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sketchfed import vectors
from sketchfed.algorithms import State
from sketchfed.config import GIVEN, Config, DataSettings, ModelSettings, load_config
from sketchfed.engines import Engine, LocalEngine, Participant, Recorder
from sketchfed.engines.recorder import Exchange, OnExchange
from sketchfed.errors import DivergedError, InputError
from sketchfed.protection.probe import CLIENTS, advice, norms
from sketchfed.runs.advice import advise
from sketchfed.runs.folder import RunFolder
from sketchfed.runs.recording import WIRE, WireFile
from sketchfed.runs.result import Run
from sketchfed.runs.scoring import Scorer
from sketchfed.seeds import PublicSeed
from sketchfed.server import Server
from sketchfed.training import Loss
from sketchfed.training.threads import one_thread
from sketchfed.workload import Workload, from_config, from_objects

if TYPE_CHECKING:
    from sketchfed.flower.federation import Federation

log = logging.getLogger("sketchfed")

OnRound = Callable[[dict[str, Any]], None]
PATIENCE = 3
"""How often a federation is asked for a round that nobody answers."""


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    clients: Sequence[Any] | None = None,
    test: Any = None,
    loss: Loss | str | None = None,
    task: str = "classification",
    folder: Path | str | None = None,
    on_round: OnRound | None = None,
    on_exchange: OnExchange | None = None,
) -> Run:
    """Train, and return what came of it.

    `config` is a TOML file, or its tables as a mapping. With `model`, `clients` and `test`, a torch module is trained on data
    that is there already: `clients` holds a pair of tensors `(x, y)` or a torch Dataset for each client. With `folder`, the
    run is kept there and can be resumed; without, nothing is written, whatever [engine] record says. `on_round` is called with
    the metrics of each round, `on_exchange` with the bytes of all requests and replies as they pass (`engines.Exchange`).

    >>> run({"algorithm": {"name": "iterative", "rounds": 2}, "data": {"clients": 4}}).metrics[-1]["uplink_bytes"]
    29208
    """
    chosen = load_config(config if config is not None else {})
    if all(given is None for given in (model, clients, test, loss)):
        return prepare(chosen, folder=folder, on_exchange=on_exchange).finish(on_round)
    if (chosen.data, chosen.model) != (DataSettings(), ModelSettings()):
        raise InputError("the configuration names [data] or [model], but both were given as objects. Remove these tables.")
    loop = _given(chosen, model, clients, test, loss, task, on_exchange)
    return _begun(loop, folder).finish(on_round)


def resume(folder: Path | str, *, on_round: OnRound | None = None, **given: Any) -> Run:
    """Go on with a run from its last checkpoint; it ends as if it had never stopped, bit for bit.

    Where the model or the data were Python objects, `model`, `clients`, `test`, `loss` and `task` must be given again.
    """
    return reopen(folder, **given).finish(on_round)


def prepare(
    config: Config, *, folder: Path | str | None = None, on_exchange: OnExchange | None = None, grid: Any = None
) -> "Loop":
    """A run that is ready for its first round; `grid` is Flower's, where this is the process of a ServerApp."""
    path = None if folder is None else RunFolder.free(Path(folder))
    return _begun(Loop(config, from_config(config), on_exchange, folder=path, grid=grid), path)


def reopen(folder: Path | str, *, grid: Any = None, **given: Any) -> "Loop":
    """A run that is ready to go on after its last checkpoint; `grid` as for `prepare`."""
    path = Path(folder)
    config = RunFolder.config(path)
    if GIVEN not in (config.model.name, config.data.name):
        if given:
            raise InputError(f"the run in {path} names its model and data, so it takes no {', '.join(given)}. Leave them out.")
        return Loop(config, from_config(config), folder=path, grid=grid).keep_in(RunFolder.open(path))
    if not {"model", "clients", "test"} <= given.keys():
        raise InputError(f"the run in {path} was given its model and data as objects. Pass model, clients and test again.")
    return _given(config, **{"loss": None, "task": "classification"} | given).keep_in(RunFolder.open(path))


def _begun(loop: "Loop", folder: Path | str | None) -> "Loop":
    return loop if folder is None else loop.keep_in(RunFolder.create(Path(folder)))


def _given(
    config: Config,
    model: nn.Module | None,
    clients: Sequence[Any] | None,
    test: Any,
    loss: Loss | str | None,
    task: str,
    on_exchange: OnExchange | None = None,
) -> "Loop":
    if config.engine.name != "local":
        raise InputError(
            f"model, clients and test were given as objects, which stay in this process; engine.name = '{config.engine.name}' "
            "sends names. Name them in the configuration, or remove engine.name."
        )
    if model is None or clients is None or test is None:
        raise InputError("model, clients and test belong together: give all three, or name them in the configuration.")
    config = replace(config, data=DataSettings(name=GIVEN, clients=len(clients)), model=ModelSettings(name=GIVEN))
    return Loop(config, from_objects(model, clients, test, loss, task), on_exchange)


def _federation(config: Config, *, clients: int, folder: Path | None, grid: Any) -> "Federation":
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise InputError("engine.name = 'flower' needs Flower. Install it: pip install 'sketchfed[flower]'.") from None
    from sketchfed.flower.federation import Federation

    return Federation(config, clients=clients, folder=folder, grid=grid)


class Loop:
    """A run under way."""

    def __init__(
        self,
        config: Config,
        workload: Workload,
        on_exchange: OnExchange | None = None,
        *,
        folder: Path | None = None,
        grid: Any = None,
    ) -> None:
        """`folder` says where the run will be kept, for those who must look there before it is."""
        self._workload = workload
        self._folder: RunFolder | None = None
        self._wire: WireFile | None = None
        self._on_exchange = on_exchange
        self._trainer = workload.trainer()
        self._federation: Federation | None = None
        if config.engine.name == "flower":
            self._federation = _federation(config, clients=len(workload.parts), folder=folder, grid=grid)
        try:
            self._set_up(config)
        except BaseException as error:
            self._leave(error)
            raise
        self._lines: list[dict[str, Any]] = []
        self._before = 0.0

    def _set_up(self, config: Config) -> None:
        workload, federation = self._workload, self._federation
        dim = self._trainer.dim
        sizes = [len(part) for part in workload.parts] if federation is None else federation.engine.sizes
        workers = config.engine.workers or os.cpu_count() or 1
        self._config = config.completed(dim=dim, sizes=sizes, module=workload.module)
        participant = Participant.of(self._config, workload.module, self._trainer, sizes)
        self._protection, self._algorithm = participant.protection, participant.algorithm
        self._scorer = Scorer(workload, self._trainer, participant.seed, workers=workers)
        state = self._algorithm.begin(vectors.flatten(workload.module))
        start = state.replica if workload.shared_start else None
        self._local: LocalEngine | None = None
        if federation is None:
            self._local = LocalEngine(participant, workload.examples, clients=len(sizes), start=start, workers=workers)
            self._engine: Engine = self._local
        else:
            federation.agree(self._config, workload)
            self._engine = federation.engine
        self._server = self._make_server(state)

    def _make_server(self, state: State) -> Server:
        seed, shared_start = PublicSeed(self._config.seed), self._workload.shared_start
        engine = self._engine
        if self._config.engine.record or self._on_exchange is not None:
            engine = Recorder(engine, round=lambda: self._server.round, tell=self._record)
        server = Server(self._algorithm, engine, state, seed, shared_start=shared_start, protection=self._protection)
        if self._federation is not None:
            server.patience = PATIENCE
        return server

    def _record(self, exchanges: Sequence[Exchange]) -> None:
        if self._wire is not None:
            self._wire.append(exchanges)
        if self._on_exchange is not None:
            self._on_exchange(exchanges)

    def keep_in(self, folder: RunFolder) -> "Loop":
        """Go on from the folder's last checkpoint, if it has one, and keep there what comes."""
        try:
            folder.check_room(12 * self._trainer.dim + 2**20)
            folder.keep(self._config)
            if self._federation is not None:
                self._federation.keep()
            self._restore(folder)
            if self._config.engine.record:
                self._wire = WireFile(folder.path / WIRE).open(self.round)
        except BaseException as error:
            folder.close()
            self._leave(error)
            raise
        self._folder = folder
        return self

    def _leave(self, error: BaseException | None = None) -> None:
        """Close all that does not close itself."""
        for opened in (getattr(self, "_local", None), getattr(self, "_scorer", None)):
            if opened is not None:
                opened.close()
        if self._federation is not None:
            self._federation.close(error)

    @property
    def round(self) -> int:
        """How many rounds are behind it."""
        return self._server.round

    @property
    def rounds(self) -> int:
        return self._config.algorithm.rounds

    @property
    def weights(self) -> Tensor:
        """The server's, as of now."""
        return self._server.state.replica.weights

    @property
    def title(self) -> str:
        """What is trained on what, in a line."""
        about = self._summary(finished=False)
        spread = self._config.data.partition if self._config.data.name != GIVEN else "as given"
        return f"{about['data']} · {about['model']} ({about['dim']:,} parameters) · {about['clients']:,} clients, {spread}"

    def _restore(self, folder: RunFolder) -> None:
        saved = folder.checkpoints.load(self._server.state)
        privacy = None
        if self._server.privacy is not None:
            privacy = folder.privacy(self._server.privacy.claim, begun=saved is not None)
        self._server.privacy = privacy
        if saved is None:
            self._lines = folder.metrics(0)
            if not self._workload.shared_start:
                self._save(folder, 0.0)  # nobody else could tell with which weights it began
            return
        self._server = self._make_server(saved.state)
        self._server.ledger, self._server.privacy = saved.ledger, privacy
        if self._local is not None:
            self._local.memories = saved.memories
            self._local.replica = saved.state.replica if self._algorithm.shows_weights else None
        self._engine.acknowledge(saved.ledger.known)
        self._lines, self._before = folder.metrics(saved.state.replica.round), saved.seconds

    def finish(self, on_round: OnRound | None = None) -> Run:
        """All rounds that are left."""
        start = last_saved = time.monotonic()
        failure: BaseException | None = None
        try:
            with one_thread():
                self._look_at_clip()
                if self._folder is not None:
                    self._folder.summarise(self._summary(finished=False))
                while not self._done:
                    self._lines.append(self._round(lambda: self._before + time.monotonic() - start))
                    if self._folder is not None:
                        self._folder.append(self._lines[-1])
                        if self._done or time.monotonic() - last_saved >= self._pause:
                            self._save(self._folder, self._lines[-1]["seconds"])
                            last_saved = time.monotonic()
                    if on_round is not None:
                        on_round(self._lines[-1])
                if not self._server.affordable() and self.round < self.rounds:
                    self._say_spent()
                if self._folder is not None:
                    self._folder.summarise(self._summary(finished=True))
        except BaseException as error:
            failure = error
            raise
        finally:
            self._leave(failure)
            for kept in (self._wire, self._folder):
                if kept is not None:
                    kept.close()
        weights = self._server.state.replica.weights
        return Run(
            config=self._config,
            label=self._config.label,
            model=self._workload.description,
            dim=self._trainer.dim,
            clients=self._engine.clients,
            metrics=self._lines,
            weights=weights,
            module=vectors.load(deepcopy(self._workload.module), weights),
            folder=self._folder.path if self._folder is not None else None,
        )

    @property
    def _pause(self) -> float:
        """Seconds between two checkpoints. What clients elsewhere are told to have counted must be on the disk by then."""
        return self._config.engine.checkpoint_seconds if self._local is not None else 0.0

    @property
    def _done(self) -> bool:
        target, last = self._config.engine.target_accuracy, self._lines[-1] if self._lines else {}
        reached = target is not None and (last.get("accuracy") or 0.0) >= target
        return self._server.round >= self.rounds or reached or not self._server.affordable()

    def _look_at_clip(self) -> None:
        """Warn before round 1 of a clip norm that does nothing, or too much."""
        if self._protection is None or self.round or not self._sees_data:
            return
        data = [self._workload.examples(client) for client in range(min(CLIENTS, self._engine.clients))]
        replica, seed = self._server.state.replica, PublicSeed(self._config.seed)
        said = advice(*norms(self._protection, self._trainer, replica, data, seed))
        if said is not None:
            log.warning("%s", said)

    def _say_spent(self) -> None:
        assert self._config.privacy is not None
        budget, spent = self._config.privacy.epsilon, self._server.epsilon
        said = "stopped after round %d of %d: another would exceed privacy.epsilon = %g, and %.4g is spent."
        log.warning(said, self.round, self.rounds, budget, spent)

    def _round(self, seconds: Callable[[], float]) -> dict[str, Any]:
        server, before, share = self._server, self._server.ledger.replies, self._captured()
        try:
            server.advance()
            loss, accuracy = self._score()
            if loss is not None and not abs(loss) < float("inf"):
                raise DivergedError(f"the loss after round {server.round} is {loss}")
        except DivergedError as error:
            raise DivergedError(f"{error}. {advise(self._config.algorithm, self._workload, self._trainer)}") from None
        return {
            "round": server.round,
            "loss": loss,
            "accuracy": accuracy,
            "participants": server.ledger.replies - before,
            "uplink_bytes": server.ledger.uplink_bytes,
            "downlink_bytes": server.ledger.downlink_bytes,
            "broadcast_bytes": server.ledger.broadcast_bytes,
            "captured": share,
            "epsilon": server.epsilon,
            "seconds": round(seconds(), 3),
        }

    def _captured(self) -> float | None:
        """Of the round that comes, if it will be scored: what is sent depends on what the clients start from."""
        replica = self._server.state.replica
        if not self._algorithm.adaptive or not self._scored(replica.round + 1) or not self._sees_data:
            return None
        return self._scorer.captured(self._algorithm, replica)

    @property
    def _sees_data(self) -> bool:
        """Whether clients' examples are in this process, as they are in a simulation."""
        return self._federation is None or self._federation.engine.simulated

    def _scored(self, number: int) -> bool:
        return number % self._config.engine.evaluate_every == 0 or number == self.rounds

    def _score(self) -> tuple[float | None, float | None]:
        if not self._scored(self._server.round) and self._server.affordable():
            return None, None
        return self._scorer.score(self._server.state.replica.weights)

    def _save(self, folder: RunFolder, seconds: float) -> None:
        folder.sync()
        if self._wire is not None:
            self._wire.sync(self.round)
        memories, changed = ({}, set()) if self._local is None else self._local.take_changes()
        folder.checkpoints.save(self._server.state, self._server.ledger, seconds=seconds, memories=memories, changed=changed)

    def _summary(self, *, finished: bool) -> dict[str, Any]:
        return {
            "name": self._config.name or self._config.label,
            "label": self._config.label,
            "data": self._workload.dataset.name,
            "model": f"{self._config.model.name} {self._workload.description}",
            "dim": self._trainer.dim,
            "clients": self._engine.clients,
            "finished": finished,
            "privacy": None if self._server.privacy is None else self._server.privacy.text,
            "versions": _versions(),
        }


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("sketchfed", "torch", "numpy")} | {"python": python_version()}
