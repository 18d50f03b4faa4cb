"""What ranks other than 0 do: they serve clients until rank 0 ends the run."""

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from sketchfed import vectors
from sketchfed.algorithms import Replica
from sketchfed.config import Config, EngineSettings, load_config
from sketchfed.errors import RankError, SketchfedError, WireError, reason
from sketchfed.kernels.pages import used_again
from sketchfed.rounds import LocalEngine, Participant
from sketchfed.rounds.peers import PeerGroup
from sketchfed.rounds.rank_hub import Hub, Message, has_joined, joined, left, said_goodbye
from sketchfed.rounds.ranks import RESUME, Worker
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.rank_greeting import check_same, greeting, identities
from sketchfed.runs.rank_nodes import keep_models, take_rounds
from sketchfed.runs.result import Run
from sketchfed.runs.taking_part import shared_replica, taking_part
from sketchfed.training.threads import one_thread
from sketchfed.vectors import flatten
from sketchfed.wire import Packet, number_named

MakeProblem = Callable[[Config], FederatedProblem]


class _Server(NamedTuple):
    """What this rank needs to serve clients."""

    config: Config
    problem: FederatedProblem
    trainer: Any
    participant: Participant
    start: Replica | None
    secret: bytes
    run: int
    """The number of the run in the launch."""

    def engine(self) -> LocalEngine:
        """The engine of clients that rank 0 sends here."""
        return LocalEngine(
            self.participant,
            self.problem.examples,
            clients=len(self.problem.sizes),
            start=self.start,
            workers=self.config.engine.threads,
            judged=self.problem.judged,
            identities=identities(self.secret),
        )


def follow(given: Config | None, problem: MakeProblem) -> Run:
    """Serve clients in the next run of rank 0, until it ends. Return its result, as rank 0 has it.

    `given` is the configuration that this rank was given. If absent, rank 0 sends its own.
    """
    engine = EngineSettings() if given is None else given.engine
    hub = joined(engine.wait, engine.deadline)
    with _leaving_on_errors(hub):
        _, message = hub.next(remedy=RESUME)
        found = _serve(hub, given, problem, message, wants_result=True)
        if found is None:
            raise RankError("rank 0 has no run for this rank. Call `run` equally often on all ranks.")
        return found


def serve_all(given: Sequence[Config] | None, problem: MakeProblem) -> None:
    """Serve clients in all runs of rank 0. `given` are the configurations of these runs. If absent, rank 0 sends them."""
    engine = given[0].engine if given else EngineSettings()
    hub = joined(engine.wait, engine.deadline)
    with _leaving_on_errors(hub):
        unserved = list(given or ())
        while True:
            _, message = hub.next(remedy=RESUME)
            if message.packet.kind == "over":
                break
            _serve(hub, unserved.pop(0) if unserved else None, problem, message, wants_result=False)
            if not has_joined():
                return  # rank 0 is gone, and this rank went on without it
    said_goodbye()


@contextmanager
def _leaving_on_errors(hub: Hub) -> Iterator[None]:
    try:
        with one_thread(), used_again():
            yield
    except BaseException:
        left(hub)
        raise


def _serve(hub: Hub, given: Config | None, problem: MakeProblem, plan: Message, *, wants_result: bool) -> Run | None:
    server = _greeted(hub, given, problem, plan, wants_result=wants_result)
    if server is None:
        return None
    if server.config.graph is not None and server.start is not None:
        left_alone = take_rounds(server.config, server.participant, server.problem, server.start, hub, server.run)
        if left_alone is not None:
            return _alone(hub, server, left_alone, wants_result=wants_result)
    result = _until_end(hub, server)
    if not wants_result:
        return None
    if isinstance(result, str):
        raise RankError(f"rank 0 ended the run without a result. {result}".rstrip())
    return _run(server, result)


def _alone(hub: Hub, server: _Server, group: PeerGroup, *, wants_result: bool) -> Run | None:
    """End a run that rank 0 has left. The result is the mean model of this rank's nodes, without metrics."""
    left(hub)
    if not wants_result:
        keep_models(group, hub.launch.rank, Path())
        return None
    weights, _, _ = group.mean()
    return _result(server, [], weights)


def _until_end(hub: Hub, server: _Server) -> Message | str:
    """Serve clients until rank 0 ends the run. Return the result, or what rank 0 said if there is none."""
    engine, result = server.engine(), None
    worker = Worker(engine, server.participant, server.problem.sizes)
    share = ThreadPoolExecutor(1, "share", initializer=torch.set_num_threads, initargs=(1,))
    try:
        while True:
            _, message = hub.next(remedy=RESUME)
            kind = message.packet.kind
            if kind == "answer":  # from this rank's own thread
                hub.send(0, *message)
            elif kind == "ask":
                share.submit(_answered, hub, worker, message)
            elif kind == "result":
                result = message
            elif kind == "end":
                break
            else:
                raise RankError(f"rank 0 sent '{kind}', which has no place in a run. Start all ranks with one version.")
    except BaseException:
        share.shutdown(wait=False, cancel_futures=True)
        engine.close(wait=False)
        raise
    share.shutdown()
    engine.close()
    return _text(message) if result is None else result


def _answered(hub: Hub, worker: Worker, message: Message) -> None:
    """Compute an answer, and put it into this rank's inbox."""
    try:
        hub.post(worker.answer(message))
    except Exception as error:  # of a request, or of this process
        hub.post(RankError(f"this rank cannot answer rank 0: {reason(error)}"))


def _greeted(hub: Hub, given: Config | None, problem: MakeProblem, plan: Message, *, wants_result: bool) -> _Server | None:
    """Get ready, tell rank 0 what this rank has, and wait until all are ready. None if rank 0 gave up this run."""
    place, number = hub.places[hub.launch.rank], plan.packet.scalars.get("run", 0)
    try:
        server, said = _ready(given, problem, plan, place, wants_result=wants_result)
    except SketchfedError as error:
        hub.send(0, Packet(kind="refused", arrays={}, scalars={"run": number}), [str(error).encode()])
        with suppress(RankError):
            hub.next()
        raise
    hub.send(0, Packet(kind="ready", arrays={}, scalars={"run": number}), [said])
    _, message = hub.next()
    if message.packet.kind == "go":
        return server
    if wants_result:
        raise RankError(f"rank 0 ended the run before round 1. {_text(message)}".rstrip())
    return None


def _text(message: Message) -> str:
    return b"".join(message.parts).decode(errors="replace")


def _ready(
    given: Config | None, make: MakeProblem, message: Message, place: Any, *, wants_result: bool
) -> tuple[_Server, bytes]:
    if message.packet.kind != "plan" or len(message.parts) != 2:
        raise WireError("rank 0 sent no configuration. Start all ranks with one version.")
    plan = load_config(_tables(message.parts[0]))
    config = given or plan
    if given is not None:
        check_same(given, plan, place)
    chosen = make(config)
    trainer = chosen.trainer()
    completed, participant = taking_part(config, chosen, trainer, chosen.sizes)
    state = participant.algorithm.begin(flatten(chosen.module))
    start = shared_replica(participant, state, chosen, everywhere=completed.graph is not None)
    said = greeting(completed, chosen, wants_result=wants_result).packed
    if not wants_result:
        chosen.forget_weights()
    run = int(number_named(message.packet, "run", least=0, most=2**31))
    return _Server(completed, chosen, trainer, participant, start, message.parts[1], run), said


def _tables(text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise WireError("rank 0 sent a configuration that is no TOML. Start all ranks with one version.") from error


def _run(server: _Server, result: Message) -> Run:
    """The result of the run, as rank 0 has it. The folder is on rank 0."""
    dim = server.trainer.dim
    try:
        lines, weights = json.loads(result.parts[0]), safetensors.torch.load(result.parts[1])["weights"]
        if weights.shape != (dim,):
            raise ValueError(f"weights of shape {tuple(weights.shape)}")
    except Exception as error:  # safetensors raises several kinds
        raise RankError("rank 0 sent no result of this run. Start all ranks with one version.") from error
    return _result(server, lines, weights)


def _result(server: _Server, lines: list[dict[str, Any]], weights: Tensor) -> Run:
    config, problem = server.config, server.problem
    return Run(
        config=config,
        label=config.label,
        model=problem.description,
        dim=server.trainer.dim,
        clients=len(problem.sizes),
        metrics=lines,
        weights=weights,
        module=vectors.restored(problem.module, weights),
    )
