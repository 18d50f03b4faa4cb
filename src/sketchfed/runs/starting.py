"""Starts runs and resumes them: from what a configuration names, or from Python objects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from sketchfed.config import GIVEN, SHARING, Config, DataSettings, ModelSettings, load_config
from sketchfed.errors import InputError
from sketchfed.rounds.launch import Launch
from sketchfed.rounds.recorder import OnExchange
from sketchfed.runs.folder import CONFIG, RunFolder
from sketchfed.runs.following import follow
from sketchfed.runs.loop import Loop, MakeHost, OnRound
from sketchfed.runs.objects import FUNCTIONS, Objects, problem_of
from sketchfed.runs.result import Run
from sketchfed.runs.workload import Chosen
from sketchfed.training import BatchLoss, Collate, Evaluate, Loss, Train


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    clients: Sequence[Any] | None = None,
    test: Any = None,
    loss: Loss | str | None = None,
    metric: Chosen = None,
    task: str = "classification",
    redraw: bool | None = None,
    train: Train | None = None,
    evaluate: Evaluate | None = None,
    batch_loss: BatchLoss | None = None,
    collate: Collate | None = None,
    client_test: Sequence[Any] | None = None,
    folder: Path | str | None = None,
    on_round: OnRound | None = None,
    on_exchange: OnExchange | None = None,
) -> Run:
    """Train a model and return the result.

    `config` is a TOML file, or its tables as a mapping. With `model`, `clients` and `test`, a torch module is trained on your
    own data: `clients` holds a pair of tensors `(x, y)` or a torch Dataset for each client. By default, Datasets with random
    transforms are read again in every pass, and all others once. `redraw=True` reads all Datasets again in every pass, and
    `redraw=False` reads them once. `loss` and `metric` are functions of outputs and targets, or the names of such functions.

    With `batch_loss`, a function `batch_loss(model, batch)` of your own that returns the mean loss of a batch, clients hold
    data of any kind: lists, Datasets, DataLoaders, tensors, or dicts of tensors. `collate` makes a batch of a list of examples.

    With `train`, a function `train(model, data, context)` of your own trains each client, on whatever `clients` holds for it,
    and `evaluate(model, data, context)` returns metrics of `test` by name. See `ClientContext` for what they are told.

    With `evaluate_clients = true` in [training], the model is also evaluated on the data of each client, or on the data that
    `client_test` holds for it.

    With `folder`, the run is kept in that folder and can be resumed. Without it nothing is written, even if [engine] sets
    `record`. `on_round` is called with the metrics of each round. `on_exchange` is called with the bytes of all requests and
    replies (`sketchfed.rounds.Exchange`).

    >>> run({"algorithm": {"name": "iterative", "rounds": 2}, "data": {"clients": 4}}).metrics[-1]["uplink_bytes"]
    29208
    """
    chosen = load_config(config if config is not None else {})
    functions: dict[str, Any] = {"train": train, "evaluate": evaluate, "batch_loss": batch_loss, "collate": collate}
    follows = is_follower(chosen)
    if all(given is None for given in (model, clients, test, loss, metric, client_test, *functions.values())):
        if follows:
            return follow(chosen, problem_of)
        return prepare(chosen, folder=folder, on_exchange=on_exchange).finish(on_round)
    if (chosen.data, replace(chosen.model, **SHARING)) != (DataSettings(), ModelSettings()):
        raise InputError(
            "the configuration names [data] or [model], but both were given as objects. Remove these tables. Of [model], only "
            f"{', '.join(SHARING)} are for a module of your own."
        )
    built_in: dict[str, Any] = {"loss": loss, "metric": metric, "task": task, "redraw": redraw}
    objects = Objects(model=model, clients=clients, test=test, client_test=client_test, **functions, **built_in)
    if follows:
        return follow(objects.named_in(chosen), objects.problem)
    return _begun(_given(chosen, objects, on_exchange, None if folder is None else Path(folder)), folder).finish(on_round)


def is_follower(config: Config) -> bool:
    """Whether this process is a rank of a launch that serves clients, while rank 0 runs the server."""
    return config.engine.name == "ranks" and not Launch.needed().leads


def _is_follower_of(folder: Path, engine: str | None) -> bool:
    """Whether this process serves clients while rank 0 resumes a run. Only rank 0 needs the folder."""
    launch = Launch.of()
    if launch is None or launch.leads:
        return False
    if engine is None and (folder / CONFIG).exists():
        engine = RunFolder.config(folder).engine.name
    return engine in (None, "ranks")


def resume(
    folder: Path | str,
    *,
    device: str | None = None,
    engine: str | None = None,
    on_round: OnRound | None = None,
    **given: Any,
) -> Run:
    """Continue a run from its last checkpoint. The result is bitwise equal to that of an uninterrupted run.

    With another `device` than `engine.device` of the run, it continues there, with the bits of that device from then on. With
    `engine`, a run of `ranks` continues on `local`, or the other way round, with the same bits. If the model or the data were
    Python objects, pass `model`, `clients`, `test` and what else `run` was given again.
    """
    if _is_follower_of(Path(folder), engine):
        return follow(None, Objects(**given).problem if given else problem_of)
    return reopen(folder, device=device, engine=engine, **given).finish(on_round)


def prepare(
    config: Config, *, folder: Path | str | None = None, on_exchange: OnExchange | None = None, host: MakeHost | None = None
) -> Loop:
    """Prepare a new run for its first round. `host` makes the host; by default it is the one that `engine.name` names."""
    path = None if folder is None else RunFolder.free(Path(folder))
    return _begun(_named(config, on_exchange, folder=path, host=host), path)


def reopen(
    folder: Path | str,
    *,
    host: MakeHost | None = None,
    device: str | None = None,
    engine: str | None = None,
    **given: Any,
) -> Loop:
    """Prepare a run to continue after its last checkpoint.

    `host` has the same meaning as in `prepare`, and `device` and `engine` as in `resume`.
    """
    path = Path(folder)
    config = elsewhere(RunFolder.config(path), device=device, engine=engine)
    if GIVEN not in (config.model.name, config.data.name):
        if given:
            raise InputError(f"the run in {path} names its model and data, so it takes no {', '.join(given)}. Leave them out.")
        return _named(config, None, folder=path, host=host).keep_in(RunFolder.open(path))
    loops = [name for name in FUNCTIONS if getattr(config.training, name) == GIVEN]
    evaluated = "evaluate" in loops and not config.training.evaluate_clients
    tested = evaluated or not {"train", "batch_loss"} & set(loops)
    needed = ["model", "clients", *(["test"] if tested else []), *loops]
    if not set(needed) <= given.keys():
        listed = f"{', '.join(needed[:-1])} and {needed[-1]}"
        raise InputError(f"the run in {path} was given its model and data as objects. Pass {listed} again.")
    return _given(config, Objects(**given), folder=path).keep_in(RunFolder.open(path))


def elsewhere(config: Config, *, device: str | None = None, engine: str | None = None) -> Config:
    """The same run on another device or engine, if they are given. Refuse an engine on which it cannot continue."""
    changes: dict[str, Any] = {name: value for name, value in (("device", device), ("name", engine)) if value is not None}
    if engine is not None and not {engine, config.engine.name} <= {"local", "ranks"}:
        raise InputError(
            f"a run of engine.name = '{config.engine.name}' cannot go on with engine.name = '{engine}'. Only 'local' and "
            "'ranks' take over from each other, because both keep the clients' memories in the run's folder."
        )
    return replace(config, engine=replace(config.engine, **changes))


def _named(config: Config, on_exchange: OnExchange | None, *, folder: Path | None, host: MakeHost | None) -> Loop:
    """A run of what its configuration names. Nobody else has its problem, which therefore need not keep the first weights."""
    problem = problem_of(config)
    loop = Loop(config, problem, on_exchange, folder=folder, host=host)
    problem.forget_weights()
    return loop


def _begun(loop: Loop, folder: Path | str | None) -> Loop:
    return loop if folder is None else loop.keep_in(RunFolder.create(Path(folder)))


def _given(config: Config, objects: Objects, on_exchange: OnExchange | None = None, folder: Path | None = None) -> Loop:
    if config.engine.name not in ("local", "ranks"):
        raise InputError(
            f"model, clients and test were given as objects, which stay in this process, but engine.name = "
            f"'{config.engine.name}' runs clients elsewhere. Name model and data in the configuration, or remove engine.name."
        )
    config = objects.named_in(config)
    return Loop(config, objects.problem(config), on_exchange, folder=folder)
