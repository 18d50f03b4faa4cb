"""What ranks other than 0 do: they serve clients until rank 0 ends the run."""

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import safetensors.torch
import torch

from sketchfed import vectors
from sketchfed.config import Config, EngineSettings, load_config
from sketchfed.errors import RankError, SketchfedError, WireError, reason
from sketchfed.kernels.pages import used_again
from sketchfed.rounds import LocalEngine
from sketchfed.rounds.rank_hub import Hub, Message, joined, left, said_goodbye
from sketchfed.rounds.ranks import RESUME, Worker
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.rank_greeting import check_same, greeting, identities
from sketchfed.runs.result import Run
from sketchfed.runs.taking_part import shared_replica, taking_part
from sketchfed.training.threads import one_thread
from sketchfed.vectors import flatten
from sketchfed.wire import Packet

MakeProblem = Callable[[Config], FederatedProblem]


class _Server(NamedTuple):
    """What this rank needs to serve clients."""

    config: Config
    problem: FederatedProblem
    trainer: Any
    engine: LocalEngine
    worker: Worker


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
    result: Message | None = None
    share = ThreadPoolExecutor(1, "share", initializer=torch.set_num_threads, initargs=(1,))
    try:
        while True:
            _, message = hub.next(remedy=RESUME)
            kind = message.packet.kind
            if kind == "answer":  # from this rank's own thread
                hub.send(0, *message)
            elif kind == "ask":
                share.submit(_answered, hub, server.worker, message)
            elif kind == "result":
                result = message
            elif kind == "end":
                break
            else:
                raise RankError(f"rank 0 sent '{kind}', which has no place in a run. Start all ranks with one version.")
    except BaseException:
        share.shutdown(wait=False, cancel_futures=True)
        server.engine.close(wait=False)
        raise
    share.shutdown()
    server.engine.close()
    if not wants_result:
        return None
    if result is None:
        raise RankError(f"rank 0 ended the run without a result. {_text(message)}".rstrip())
    return _run(server, result)


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
    server.engine.close()
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
    engine = LocalEngine(
        participant,
        chosen.examples,
        clients=len(chosen.sizes),
        start=shared_replica(participant, state, chosen),
        workers=config.engine.threads,
        judged=chosen.judged,
        identities=identities(message.parts[1]),
    )
    said = greeting(completed, chosen, wants_result=wants_result).packed
    if not wants_result:
        chosen.forget_weights()
    return _Server(completed, chosen, trainer, engine, Worker(engine, participant, chosen.sizes)), said


def _tables(text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise WireError("rank 0 sent a configuration that is no TOML. Start all ranks with one version.") from error


def _run(server: _Server, result: Message) -> Run:
    """The result of the run, as rank 0 has it. The folder is on rank 0."""
    config, problem, dim = server.config, server.problem, server.trainer.dim
    try:
        lines, weights = json.loads(result.parts[0]), safetensors.torch.load(result.parts[1])["weights"]
        if weights.shape != (dim,):
            raise ValueError(f"weights of shape {tuple(weights.shape)}")
    except Exception as error:  # safetensors raises several kinds
        raise RankError("rank 0 sent no result of this run. Start all ranks with one version.") from error
    return Run(
        config=config,
        label=config.label,
        model=problem.description,
        dim=dim,
        clients=len(problem.sizes),
        metrics=lines,
        weights=weights,
        module=vectors.restored(problem.module, weights),
    )
