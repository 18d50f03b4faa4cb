"""Runs an audit: records and attacks several defences on the same model and data, and an undefended run next to them."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from torch import nn

from sketchfed.audits.canaries import with_canaries
from sketchfed.audits.defence import Bench, Effort, OnStage, chosen_attacks, defence_record
from sketchfed.audits.defences import UNDEFENDED, embedded, is_undefended, undefended
from sketchfed.audits.evidence import Evidence, record, recorded_run, repeatable
from sketchfed.audits.findings import AUDIT, AuditRecord, DefenceRecord, read_record, write_record
from sketchfed.audits.outside import Outside, Property
from sketchfed.audits.power import with_power
from sketchfed.config import GIVEN, Config, DataSettings, ModelSettings, load_config
from sketchfed.errors import InputError
from sketchfed.runs.folder import RunFolder
from sketchfed.runs.identity import check_identity
from sketchfed.runs.objects import Objects
from sketchfed.runs.workload import Workload, check_followed, from_config, from_objects
from sketchfed.seeds import PublicSeed
from sketchfed.training import BatchLoss, Loss, OfBatch
from sketchfed.training.threads import one_thread
from sketchfed.version import __version__

PAGE = "audit.html"
_TRAINING = 0.15
"""The share of a defence's progress bar that is its training."""
OnDefence = Callable[[str, str, float], None]
"""Called with a defence, what is being done, and the share of its work that is done."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """One defence that is to be attacked."""

    name: str
    config: Config
    workload: Workload | None = None
    """The objects that it is trained on. None if the configuration names them."""
    recorded: Evidence | None = None
    """A run that was recorded earlier."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditTerms:
    """What all subjects of an audit have in common."""

    seed: int
    effort: Effort
    image: tuple[int, int, int] | None = None
    wanted: Property | None = None
    attacks: tuple[str, ...] = ()
    """The names of the attacks to try. All attacks, if empty."""


def audit(
    model: nn.Module | None = None,
    loss: Loss | str | None = None,
    data: Sequence[Any] | None = None,
    *,
    test: Any = None,
    algorithm: str | Mapping[str, Any] | None = None,
    defences: Mapping[str, Mapping[str, Any] | str | Path] | None = None,
    recorded: Path | str | None = None,
    batch_loss: BatchLoss | None = None,
    task: str = "classification",
    seed: int = 0,
    effort: Effort | None = None,
    image: tuple[int, int, int] | None = None,
    property: Property | None = None,
    attacks: Sequence[str] = (),
    folder: Path | str | None = None,
    on_stage: OnDefence | None = None,
) -> AuditRecord:
    """Train, attack and return the findings. With `folder`, also write audit.json and audit.html there.

    `model`, `loss`, `data` (a pair of tensors or a torch Dataset for each client) and `test` (the same, from people who take no
    part) are your own objects. Without them, `defences` name the model and the data. Without `defences`, the default audit
    runs. `algorithm` is a name, or the tables of a configuration. `defences` are several of these, by name. The undefended run
    is always added, because an attack must succeed there before its failure elsewhere means anything.

    `recorded` is the folder of a run that was given these objects, with `record = true` in [engine]. What it sent is attacked,
    instead of what it would send if it were trained again. `batch_loss` stands for `loss`, as in `run`. `attacks` names the
    attacks to try, including your own as `package.module:Class`. If it is empty, all known attacks are tried.
    """
    chosen = {name: load_config(tables) for name, tables in (defences or {}).items()}
    if algorithm is not None:
        tables = {"algorithm": {"name": algorithm}} if isinstance(algorithm, str) else dict(algorithm)
        config = load_config(tables)
        chosen[config.label] = config
    terms = AuditTerms(seed=seed, effort=effort or Effort(), image=image, wanted=property, attacks=tuple(attacks))
    if model is None and data is None and test is None:
        if recorded is not None or batch_loss is not None:
            raise InputError("recorded and batch_loss are for a model and data of your own. Pass model, data and test as well.")
        subjects = subjects_of(chosen, seed=seed) if chosen else [Subject(name=n, config=c) for n, c in embedded(seed).items()]
    elif model is None or data is None or test is None:
        raise InputError("model, data and test belong together: give all three, or leave all out for the embedded audit.")
    else:
        objects = Objects(model=model, clients=data, test=test, loss=loss, batch_loss=batch_loss, task=task)
        subjects = _given(chosen, objects, seed) if recorded is None else _recorded(Path(recorded), chosen, objects)
    return audited(subjects, terms, processes=1, folder=None if folder is None else Path(folder), on_stage=on_stage)


def subjects_of(configs: Mapping[str, Config], *, seed: int | None = None) -> list[Subject]:
    """Return the configurations, after the undefended one to which they are compared. All must have the same model and data."""
    found = {name: config if seed is None else replace(config, seed=seed) for name, config in configs.items()}
    first = next(iter(found.values()))
    for name, config in found.items():
        if (config.data, config.model, config.seed) != (first.data, first.model, first.seed):
            raise InputError(
                f"'{name}' has another [data], [model] or seed than '{next(iter(found))}', so an attack on one says nothing "
                "of the other. Audit them one by one."
            )
    plain = next((name for name, config in found.items() if is_undefended(config)), None)
    baseline = undefended(first) if plain is None else found.pop(plain)
    return [Subject(name=plain or UNDEFENDED, config=baseline)] + [Subject(name=n, config=c) for n, c in found.items()]


def audited(
    subjects: Sequence[Subject],
    terms: AuditTerms,
    *,
    processes: int,
    folder: Path | None = None,
    resume: bool = False,
    on_stage: OnDefence | None = None,
) -> AuditRecord:
    """Return the record of all subjects, in their order. It is written to the folder as it grows.

    Equal seeds give equal records. With `resume`, existing results are kept. If the audit is interrupted, finished results
    remain.
    """
    chosen_attacks(terms.attacks)  # refuses what there is not, now
    done = _kept(folder, terms) if resume and folder is not None else {}
    found = {s.name: done[s.name] for s in subjects if s.name in done and done[s.name].asked == s.config.to_toml()}
    left = [subject for subject in subjects if subject.name not in found]

    def so_far() -> AuditRecord:
        ready = [found[subject.name] for subject in subjects if subject.name in found]
        judged = with_power(ready) if ready and ready[0].name == subjects[0].name else ready
        return AuditRecord(
            setting=_setting(subjects[0].config, ready[0].dim if ready else 0),
            seed=terms.seed,
            version=__version__,
            effort=asdict(terms.effort),
            attacks=list(terms.attacks),
            defences=judged,
            finished=len(ready) == len(subjects),
        )

    def keep(made: DefenceRecord) -> None:
        found[made.name] = made
        if folder is not None:
            write_audit(so_far(), folder)

    try:
        if processes <= 1 or len(left) == 1:
            for subject in left:
                keep(_one(subject, terms, None if on_stage is None else _bound(on_stage, subject.name)))
        else:
            _in_parallel(left, terms, processes, keep, on_stage)
    except BaseException:
        if folder is not None and found:  # it may have come while the page was being written
            write_audit(so_far(), folder)
        raise
    complete = so_far()
    if folder is not None:
        write_audit(complete, folder)
    return complete


def write_audit(record: AuditRecord, folder: Path) -> Path:
    """Write audit.json and the page, and return the path of the page."""
    from sketchfed.audits.page import write_page

    folder.mkdir(parents=True, exist_ok=True)
    write_record(record, folder / AUDIT)
    return write_page(record, folder / PAGE)


def _one(subject: Subject, terms: AuditTerms, on_stage: OnStage | None = None) -> DefenceRecord:
    """Train, unless the run was recorded before, and attack."""
    seed = PublicSeed(terms.seed).child("audit")
    with one_thread():
        recorded, canaries = subject.recorded, None
        if recorded is None:
            config = repeatable(subject.config)
            workload = from_config(config) if subject.workload is None else subject.workload
            if terms.effort.canaries and workload.dataset.task == "classification":
                most = len(workload.dataset.x_test) // 4
                workload, canaries = with_canaries(workload, min(terms.effort.canaries, most), seed)
            total = config.algorithm.rounds

            def watch(line: dict[str, Any]) -> None:
                if on_stage is not None:
                    on_stage(f"training, round {line['round']}", _TRAINING * line["round"] / total)

            recorded, _ = record(config, workload, on_round=watch)
        outside = Outside.of(recorded.workload, seed, terms.image)
        bench = Bench(
            recorded=recorded,
            outside=outside,
            wanted=terms.wanted or outside.property,
            effort=terms.effort,
            seed=seed,
            canaries=canaries,
            attacks=terms.attacks,
        )

        def attacking(what: str, share: float) -> None:
            if on_stage is not None:
                on_stage(what, _TRAINING + (1 - _TRAINING) * share)

        made = defence_record(subject.name, bench, asked=subject.config.to_toml(), on_stage=attacking)
        attacking("done", 1.0)
        return made


def _in_parallel(
    subjects: Sequence[Subject],
    terms: AuditTerms,
    processes: int,
    keep: Callable[[DefenceRecord], None],
    on_stage: OnDefence | None,
) -> None:
    """Audit each subject in its own process. Their stages come through a queue. On an interrupt, the parent ends them."""
    context = get_context("spawn")
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    with context.Manager() as manager, pool:
        stages, others = manager.Queue(), set(active_children())
        futures: list[Future[DefenceRecord]] = [pool.submit(_in_process, subject, terms, stages) for subject in subjects]
        try:
            for future in _watched(futures, stages, on_stage):
                keep(future.result())
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _watched(
    futures: Sequence[Future[DefenceRecord]], stages: Any, on_stage: OnDefence | None
) -> Iterator[Future[DefenceRecord]]:
    """Yield futures as they complete, and report stages in between."""
    left = set(futures)
    while left:
        try:
            for future in as_completed(left, timeout=0.2):
                left.discard(future)
                yield future
        except TimeoutError:
            pass
        while on_stage is not None and not stages.empty():
            on_stage(*stages.get())


def _in_process(subject: Subject, terms: AuditTerms, stages: Any) -> DefenceRecord:
    return _one(subject, terms, lambda what, share: stages.put((subject.name, what, share)))


def _bound(on_stage: OnDefence, name: str) -> OnStage:
    return lambda what, share: on_stage(name, what, share)


def _given(configs: Mapping[str, Config], objects: Objects, seed: int) -> list[Subject]:
    """Make subjects on a user's own model and data."""
    for config in configs.values():
        check_followed(config)
    data = DataSettings(name=GIVEN, clients=len(objects.clients or ()))
    settings: dict[str, Any] = {"data": data, "model": ModelSettings(name=GIVEN), "seed": seed}
    named = {name: replace(config, **settings) for name, config in configs.items()}
    return _on_objects(subjects_of(named or {UNDEFENDED: replace(load_config({}), **settings)}), objects)


def _recorded(path: Path, configs: Mapping[str, Config], objects: Objects) -> list[Subject]:
    """Make subjects of a recorded run that was given these objects, after the undefended one."""
    if configs:
        raise InputError("recorded names a run that is over, with settings of its own. Remove algorithm and defences.")
    config = RunFolder.config(path)
    if GIVEN not in (config.model.name, config.data.name):
        raise InputError(f"the run in {path} names its model and data. Audit it from the command line: sketchfed audit {path}.")
    check_followed(config)
    check_identity(path, objects.problem(config), data_name=None)
    subjects = _on_objects(subjects_of({path.name: config}), objects)
    evidence = recorded_run(path, subjects[-1].workload)
    if evidence is None:
        raise InputError(f"the run in {path} was not recorded. Run it with record = true in [engine], and audit it then.")
    return [replace(each, recorded=evidence) if each.name == path.name else each for each in subjects]


def _on_objects(subjects: Sequence[Subject], objects: Objects) -> list[Subject]:
    """The subjects, each with a model of its own."""
    workload = from_objects(objects.model, objects.clients or (), objects.test, objects.loss, objects.task)  # type: ignore[arg-type]
    if objects.batch_loss is not None:
        workload = replace(workload, loss=OfBatch(objects.batch_loss))
    return [replace(subject, workload=replace(workload, module=deepcopy(objects.model))) for subject in subjects]  # type: ignore[arg-type]


def _kept(folder: Path, terms: AuditTerms) -> dict[str, DefenceRecord]:
    """Load what an earlier audit on the same terms left."""
    if not (folder / AUDIT).exists():
        return {}
    record = read_record(folder / AUDIT)
    same = (record.seed, record.effort, record.attacks) == (terms.seed, asdict(terms.effort), list(terms.attacks))
    return {each.name: each for each in record.defences} if same else {}


def _setting(config: Config, dim: int) -> str:
    data, model = ("own data" if config.data.name == GIVEN else config.data.name), config.model.name
    layers = "-".join(map(str, config.model.options.get("hidden", [])))
    named = "own model" if model == GIVEN else f"{model} {layers}".strip()
    clients = "" if config.data.clients is None else f" · {config.data.clients:,} clients"
    return f"{data} · {named} ({dim:,} parameters){clients}"
