"""A strategy for an existing ServerApp, with sketches instead of models, noise, a privacy ledger and secure sums."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from sketchfed.algorithms import State, cohort
from sketchfed.config import GIVEN, Config, DataSettings, ModelSettings, load_config
from sketchfed.errors import InputError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.drawing import drawn, must_draw
from sketchfed.flower.engine import FlowerEngine
from sketchfed.flower.enrolment import enrolled
from sketchfed.flower.layout import ArrayLayout
from sketchfed.flower.mod import check_app
from sketchfed.nodes.drawing import Drawn
from sketchfed.privacy.claims import Claim
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.protection import Clear
from sketchfed.rounds.server import Server
from sketchfed.training.threads import one_thread

log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Sketched(Strategy):
    """A strategy around `FedAvg`. Clients with `ClientApp(mods=[sketchfed_mod])` send what [algorithm] and other tables say.

    Of the inner strategy, the fractions and minimum numbers of nodes, the record keys and the functions that aggregate metrics
    are used. Each client has the same weight in the mean. With [privacy] or [secure], clients do not send their metrics, and
    the model is not evaluated on them, because neither has noise.
    """

    def __init__(
        self,
        strategy: FedAvg,
        config: Mapping[str, Any] | str | Path | None = None,
        *,
        ledger: Path | str | None = None,
        wait: float = 120.0,
    ) -> None:
        """Make the strategy.

        `config` is a TOML file or its tables, without [data], [model] and [engine]. `ledger` names the file of the privacy
        ledger. What is spent is written there in advance, and an existing ledger is continued. Without a file, the ledger is
        lost when the process ends. `wait` is the number of seconds to wait for nodes.
        """
        if type(strategy).aggregate_train is not FedAvg.aggregate_train:
            raise InputError(
                f"{type(strategy).__name__} aggregates in a way of its own, and sums of sketches leave only means. Use "
                "FedAvg here, with algorithm.global_momentum or algorithm.server for the server's step."
            )
        self.strategy, self.config = strategy, load_config(config or {"algorithm": {"name": "iterative"}})
        check_app(self.config)
        if (self.config.data, self.config.model) != (DataSettings(), ModelSettings()):
            raise InputError("data and model are the app's own. Remove [data] and [model].")
        if self.config.privacy is not None and self.config.privacy.unit == "example":
            raise InputError("an app trains on all of a client at once. Use privacy.unit = 'client'.")
        self._ledger, self._wait = None if ledger is None else Path(ledger), wait
        self.server: Server | None = None
        """The server of the last `start`. It has the bytes in `tally`, and `epsilon`."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Train for `num_rounds` rounds, as `Strategy.start` does."""
        layout = ArrayLayout.of(
            initial_arrays,
            arrays_key=self.strategy.arrayrecord_key,
            config_key=self.strategy.configrecord_key,
            train_config=dict(train_config or {}),
            evaluate_config=dict(evaluate_config or {}),
        )
        without = replace(self.config.algorithm, local_momentum=0.0, global_momentum=0.0)
        if replace(self.config, algorithm=without).label != "fedavg":
            layout.check_sketchable()
        with one_thread():
            server = self.server = self._server(grid, layout, initial_arrays, num_rounds, timeout)
        result = Result()
        _noted(result.evaluate_metrics_serverapp, 0, evaluate_fn and evaluate_fn(0, initial_arrays))
        for number in range(1, num_rounds + 1):
            if not server.affordable():
                log.warning("stopped after round %d: another would exceed the privacy budget.", server.round)
                break
            with one_thread():
                server.advance()
            _say(server, num_rounds)
            result.arrays = layout.record(server.state.replica.weights)
            _noted(result.train_metrics_clientapp, number, self._aggregated(self.strategy.train_metrics_aggr_fn))
            _noted(result.evaluate_metrics_clientapp, number, self._evaluated(server))
            _noted(result.evaluate_metrics_serverapp, number, evaluate_fn and evaluate_fn(number, result.arrays))
        return result

    def _server(self, grid: Grid, layout: ArrayLayout, arrays: ArrayRecord, rounds: int, timeout: float) -> Server:
        inner, session = self.strategy, token_bytes(16)
        clients = max(inner.min_available_nodes, len(list(grid.get_node_ids())))
        share = max(inner.fraction_train, min(1.0, inner.min_train_nodes / clients))
        config = replace(
            self.config,
            data=DataSettings(name=GIVEN, clients=clients),
            model=ModelSettings(name=GIVEN),
            algorithm=replace(self.config.algorithm, rounds=rounds, participation=share),
        )
        members = enrolled(grid, config, session=session, clients=clients, wait=self._wait)
        (run, _), *_ = Counter(member.run for member in members).most_common(1)
        both = drawn(grid, members, config, session=session) if must_draw(config) else Drawn(())
        if both.nonces:
            config = replace(config, joint=both.joint(session))
        self._engine = engine = FlowerEngine(grid, session=session, members=members, deadline=timeout)
        config = _completed(config, layout.dim, clients)
        protection = config.protection(dim=layout.dim, sizes=engine.sizes)
        secure = config.secure is not None and config.secure.aggregation
        engine.agree(
            Agreement(
                config=config,
                sizes=engine.sizes,
                identities=tuple(member.identity for member in members) if secure else (),
                layout=replace(layout, run=run).text,
                nonces=both.nonces,
            )
        )
        state: State = config.algorithm.begin(layout.flat(arrays))
        server = Server(protection, engine, state, config.shared_seed, shared_start=False)
        if server.privacy_ledger is not None and self._ledger is not None:
            server.privacy_ledger = opened(self._ledger, server.privacy_ledger.claim)
        return server

    def _evaluated(self, server: Server) -> MetricRecord | None:
        """What clients report about the model on their own data. They already hold the model, or most of it."""
        inner, clients = self.strategy, self._engine.clients
        if not inner.fraction_evaluate or not isinstance(server.protection, Clear):
            return None
        count = min(clients, max(int(clients * inner.fraction_evaluate), inner.min_evaluate_nodes))
        server.survey(cohort(server.seed.child("evaluate"), server.round, population=clients, count=count))
        return self._aggregated(inner.evaluate_metrics_aggr_fn)

    def _aggregated(self, function: Callable[[list[RecordDict], str], MetricRecord]) -> MetricRecord | None:
        """The metrics of the last call, from clients whose metrics have the usual names."""
        read = [record for text in self._engine.metrics.values() if (record := _metrics(text)) is not None]
        alike = [record for record in read if record.keys() == read[0].keys()]
        if not alike or any(self.strategy.weighted_by_key not in record for record in alike):
            return None
        return function([RecordDict({"metrics": record}) for record in alike], self.strategy.weighted_by_key)

    # What a strategy must have; rounds go through `start`, where the server is.

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        raise InputError("sketches are made between rounds, so call start(...) in place of single steps.")

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise InputError("sketches are made between rounds, so call start(...) in place of single steps.")

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()
        log.info("\t└──> Sent as: %s", self.config.label)


def opened(path: Path, claim: Claim) -> PrivacyLedger:
    """Open the ledger in a file. An existing one is continued, so training that starts again spends what was left."""
    return PrivacyLedger.load(path, claim) if path.exists() else PrivacyLedger(claim, path)


def _completed(config: Config, dim: int, clients: int) -> Config:
    return config.completed(dim=dim, sizes=[1] * clients)


def _say(server: Server, rounds: int) -> None:
    up, down = server.tally.uplink_bytes, server.tally.downlink_bytes
    spent = "" if server.privacy_ledger is None else f", ε = {server.epsilon:.4g} {server.privacy_ledger.text}"
    log.info("[ROUND %d/%d] %d bytes up, %d down since the start%s", server.round, rounds, up, down, spent)


def _noted(history: dict[int, MetricRecord], number: int, found: MetricRecord | None) -> None:
    if found is not None:
        history[number] = found


def _metrics(text: str) -> MetricRecord | None:
    """The metrics that a client sent, if they are numbers by name. They are not verified."""
    try:
        read = json.loads(text)
        return MetricRecord(read) if isinstance(read, dict) else None
    except (ValueError, TypeError, RecursionError):
        return None
