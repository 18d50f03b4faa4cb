"""Training from the first round to the last."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sketchfed import vectors
from sketchfed.algorithms import State
from sketchfed.config import GIVEN, Config
from sketchfed.errors import DivergedError, InputError
from sketchfed.kernels.pages import used_again
from sketchfed.protection import Clear
from sketchfed.rounds import Recorder
from sketchfed.rounds.buffered import make_server
from sketchfed.rounds.network import Network, NodeGroup
from sketchfed.rounds.recorder import Exchange, OnExchange
from sketchfed.rounds.server import Server
from sketchfed.rounds.trial import try_parts
from sketchfed.runs.clipping import clip_advice
from sketchfed.runs.folder import RunFolder
from sketchfed.runs.hosts import Host, make_host
from sketchfed.runs.identity import check_identity, keep_identity
from sketchfed.runs.on_clients import OnClients
from sketchfed.runs.on_graph import FARTHEST, described, farthest
from sketchfed.runs.problem import FederatedProblem, try_single_example
from sketchfed.runs.result import Run
from sketchfed.runs.taking_part import shared_replica, taking_part
from sketchfed.runs.versions import installed
from sketchfed.runs.wire_file import WIRE, WireFile
from sketchfed.runs.workload import KEYS
from sketchfed.training import Score
from sketchfed.training.threads import one_thread

log = logging.getLogger("sketchfed")

OnRound = Callable[[dict[str, Any]], None]
MakeHost = Callable[[Config, FederatedProblem, Path | None], Host]
"""Makes the host of a run from its configuration, its workload and its folder (None if the run is not kept)."""


class Loop:
    """A run in progress."""

    def __init__(
        self,
        config: Config,
        workload: FederatedProblem,
        on_exchange: OnExchange | None = None,
        *,
        folder: Path | None = None,
        host: MakeHost | None = None,
    ) -> None:
        """`folder` is where the run will be kept. Some hosts read from it before the run is kept there."""
        self._workload = workload
        self._folder: RunFolder | None = None
        self._wire: WireFile | None = None
        self._on_clients: OnClients | None = None
        self._on_exchange = on_exchange
        self._trainer = workload.trainer()
        self._host: Host = (host or make_host)(config, workload, folder)
        try:
            self._set_up(config)
        except BaseException as error:
            self._leave(error)
            raise
        self._lines: list[dict[str, Any]] = []
        self._before = 0.0

    def _set_up(self, config: Config) -> None:
        workload, sizes = self._workload, self._host.sizes
        if self._host.joint:
            config = replace(config, joint=self._host.joint)
        if config.asynchronous is not None and self._on_exchange is not None:
            config = replace(config, engine=replace(config.engine, record=True))  # refused for the same reason
        self._config, self._participant = taking_part(config, workload, self._trainer, sizes)
        participant = self._participant
        if config.training.evaluate_clients:
            self._on_clients = OnClients(workload, participant.seed)
        self._protection, self._algorithm = participant.protection, participant.algorithm
        if self._protection.batches is not None and self._host.sees_data:
            try_single_example(workload, self._trainer)
        self._scorer = workload.scorer(self._trainer, participant.seed, workers=config.engine.threads)
        self._algorithm.given(participant.seed, 0).trainer(self._trainer)  # refuses what it cannot train
        state = self._algorithm.begin(vectors.flatten(workload.module))
        try_parts(self._algorithm, state, participant.seed, len(sizes))
        start = shared_replica(participant, state, workload, everywhere=self._config.graph is not None)
        self._engine = self._host.begin(self._config, participant, start)
        self._server = self._make_server(state)
        _ = self._keys  # refuses a metric with the name of another column
        self._host.stand_by(lambda: self._server.state.replica)

    def _make_server(self, state: State) -> Server:
        seed, shared_start = self._config.shared_seed, self._workload.shared_start
        engine, recorded = self._engine, self._config.engine.record or self._on_exchange is not None
        if self._config.graph is not None:
            group = cast("NodeGroup", engine)
            network = Network(self._protection, group, state, seed, tell=self._record if recorded else None)
            network.wanted = self._looked_at
            return network
        if recorded:
            engine = Recorder(engine, round=lambda: self._server.round, tell=self._record)
        server = make_server(
            self._protection, engine, state, seed, shared_start=shared_start, asynchronous=self._config.asynchronous
        )
        server.patience = self._host.patience
        return server

    def _record(self, exchanges: Sequence[Exchange]) -> None:
        if self._wire is not None:
            self._wire.append(exchanges)
        if self._on_exchange is not None:
            self._on_exchange(exchanges)

    def keep_in(self, folder: RunFolder) -> "Loop":
        """Continue from the folder's last checkpoint, if there is one, and save the run in this folder."""
        try:
            folder.check_room(12 * self._trainer.dim + 2**20)
            if folder.begun:
                named = None if self._config.data.name == GIVEN else self._config.data.name
                check_identity(folder.path, self._workload, data_name=named)
            else:
                keep_identity(folder.path, self._workload)
            folder.keep(self._config)
            self._host.keep()
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
        """Close the scorer and the host."""
        scorer = getattr(self, "_scorer", None)
        if scorer is not None:
            scorer.close()
        self._host.close(error)

    @property
    def round(self) -> int:
        """The number of completed rounds."""
        return self._server.round

    @property
    def rounds(self) -> int:
        return self._config.algorithm.rounds

    @property
    def weights(self) -> Tensor:
        """The server's current weights."""
        return self._server.state.replica.weights[: self._trainer.dim]

    @property
    def models(self) -> Tensor:
        """The current models of all nodes of a graph, `(nodes, dim)`."""
        if not isinstance(self._server, Network):
            raise InputError("nodes have models of their own only in a run with [graph].")
        return torch.stack([self._server.group.weights(node) for node in range(self._engine.clients)])

    @property
    def title(self) -> str:
        """One line that describes the data, the model and the clients."""
        about = self._summary(finished=False)
        spread = self._config.data.partition if self._config.data.name != GIVEN else "as given"
        return f"{about['data']} · {about['model']} ({about['dim']:,} parameters) · {about['clients']:,} clients, {spread}"

    @property
    def _keys(self) -> tuple[str, ...]:
        """The keys of a line of metrics."""
        named = (*self._workload.keys, *(() if self._on_clients is None else self._on_clients.keys))
        measured = (*self._server.measured, *(FARTHEST if isinstance(self._server, Network) else ()))
        if taken := set(named) & set(measured):
            kind = "a run without a server" if isinstance(self._server, Network) else "an asynchronous run"
            raise InputError(f"metrics.jsonl of {kind} has a column '{min(taken)}'. Give that metric another name.")
        return (*named, *measured)

    def _restore(self, folder: RunFolder) -> None:
        saved = folder.checkpoints.load(self._server.state)
        privacy = None
        if self._server.privacy_ledger is not None:
            claim = self._server.privacy_ledger.claim
            privacy = folder.privacy(claim, begun=saved is not None, chained=saved is not None and saved.chained)
        self._server.privacy_ledger = privacy
        if saved is None:
            self._lines = folder.metrics(0, self._keys)
            if not self._workload.shared_start:
                self._save(folder, 0.0)  # the first weights cannot be rebuilt, so they must be saved
            return
        self._server = self._make_server(saved.state)
        self._server.tally, self._server.privacy_ledger = saved.tally, privacy
        self._server.go_on(saved.under_way)
        self._host.resume(saved.memories, saved.state.replica if self._algorithm.shows_weights else None)
        self._engine.acknowledge(saved.tally.known)
        self._lines, self._before = folder.metrics(saved.state.replica.round, self._keys), saved.seconds

    def finish(self, on_round: OnRound | None = None) -> Run:
        """Run all remaining rounds and return the result."""
        start = last_saved = time.monotonic()
        failure: BaseException | None = None
        try:
            with one_thread(), used_again():
                self._look_at_clip()
                if self._folder is not None:
                    self._summarise(self._folder, finished=False)
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
                self._host.conclude(self._lines, self.weights)
                if self._folder is not None:
                    self._summarise(self._folder, finished=True)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._leave(failure)
            for kept in (self._wire, self._folder):
                if kept is not None:
                    kept.close()
        weights = self.weights
        return Run(
            config=self._config,
            label=self._config.label,
            model=self._workload.description,
            dim=self._trainer.dim,
            clients=self._engine.clients,
            metrics=self._lines,
            weights=weights,
            module=vectors.restored(self._workload.module, weights),
            folder=self._folder.path if self._folder is not None else None,
        )

    @property
    def _pause(self) -> float:
        """Seconds between two checkpoints. It is 0 for remote clients: an acknowledged reply must be on disk right away."""
        return 0.0 if self._host.remote else self._config.engine.checkpoint_seconds

    @property
    def _done(self) -> bool:
        target, last = self._config.engine.target_accuracy, self._lines[-1] if self._lines else {}
        reached = target is not None and (last.get("accuracy") or 0.0) >= target
        return self._server.round >= self.rounds or reached or not self._server.affordable()

    def _look_at_clip(self) -> None:
        """Warn before round 1 if the clip norm never clips, or clips everything."""
        if isinstance(self._protection, Clear) or self.round or not self._host.sees_data or not self._workload.looks_inside:
            return
        replica, seed = self._server.state.replica, self._config.shared_seed
        said = clip_advice(
            self._protection, self._participant.trainer, replica, self._workload, seed, clients=self._engine.clients
        )
        if said is not None:
            log.warning("%s", said)

    def _say_spent(self) -> None:
        budget = None if self._protection.budget is None else self._protection.budget.settings.epsilon
        said = "stopped after round %d of %d: another round would exceed privacy.epsilon = %g. So far, %.4g is spent."
        log.warning(said, self.round, self.rounds, budget, self._server.epsilon)

    def _round(self, seconds: Callable[[], float]) -> dict[str, Any]:
        server, before, share = self._server, self._server.tally.replies, self._captured()
        try:
            server.advance()
            score = self._score()
            if score is not None and score.loss is not None and not abs(score.loss) < float("inf"):
                raise DivergedError(f"the loss after round {server.round} is {score.loss}")
        except DivergedError as error:
            raise DivergedError(f"{error}. {self._workload.advice(self._config.algorithm, self._trainer)}") from None
        own = {} if self._on_clients is None else self._on_clients.line(server, scored=score is not None)
        others = {key: None if score is None else score.others.get(key) for key in self._workload.keys[len(KEYS) :]}
        return {
            "round": server.round,
            "loss": None if score is None else score.loss,
            "accuracy": None if score is None else score.accuracy,
            "participants": server.tally.replies - before,
            "uplink_bytes": server.tally.uplink_bytes,
            "downlink_bytes": server.tally.downlink_bytes,
            "broadcast_bytes": server.tally.broadcast_bytes,
            "captured": share,
            "epsilon": server.epsilon,
            "seconds": round(seconds(), 3),
            **others,
            **own,
            **server.measured,
            **(farthest(server, self._scorer, scored=score is not None) if isinstance(server, Network) else {}),
        }

    def _captured(self) -> float | None:
        """The share of the gradient that the next round's packets carry, if that round will be scored.

        It is measured before the round, because the packets depend on the replica from which the clients start.
        """
        replica = self._server.state.replica
        if not self._scored(replica.round + 1) or not self._host.sees_data or self._algorithm.segments is not None:
            return None
        return self._scorer.captured(self._algorithm, replica)

    def _scored(self, number: int) -> bool:
        return number % self._config.engine.evaluate_every == 0 or number == self.rounds

    def _looked_at(self, number: int) -> bool:
        """Whether the model after this round is scored, or measured before the next one."""
        budget = self._protection.budget  # the round that spends it is scored
        limited = budget is not None and budget.settings.epsilon is not None
        return limited or self._scored(number) or self._scored(number + 1)

    def _score(self) -> Score | None:
        if not self._scored(self._server.round) and self._server.affordable():
            return None
        return self._scorer.score(self._server.state.replica)

    def _save(self, folder: RunFolder, seconds: float) -> None:
        folder.sync()
        if self._wire is not None:
            self._wire.sync(self.round)
        under_way = self._server.under_way()
        if under_way is None and not self._done:
            return  # the last checkpoint is better, because the run can continue from it
        memories, changed = self._host.changed_memories()
        ledger = self._server.privacy_ledger
        state, tally, chained = self._server.state, self._server.tally, ledger is not None and ledger.chained
        kept: dict[str, Any] = {"memories": memories, "changed": changed, "under_way": under_way or {}}
        folder.checkpoints.save(state, tally, seconds=seconds, chained=chained, **kept)
        self._keep_graph(folder)

    def _summarise(self, folder: RunFolder, *, finished: bool) -> None:
        self._keep_graph(folder)
        folder.summarise(self._summary(finished=finished))

    def _keep_graph(self, folder: RunFolder) -> None:
        if self._config.graph is not None and isinstance(self._server, Network):
            folder.keep_graph(described(self._server, self._config.graph))

    def _summary(self, *, finished: bool) -> dict[str, Any]:
        return {
            "name": self._config.name or self._config.label,
            "label": self._config.label,
            "data": self._workload.data_name,
            "model": f"{self._config.model.name} {self._workload.description}",
            "dim": self._trainer.dim,
            "clients": self._engine.clients,
            "finished": finished,
            "privacy": None if self._server.privacy_ledger is None else self._server.privacy_ledger.text,
            "versions": installed(),
            **self._host.about(),
        }
