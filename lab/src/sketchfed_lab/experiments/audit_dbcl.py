"""Zhang & Wang 2021, Secs. 5 and 6.3 and App. A: what clients and the server learn, by the paper's attacks and by others."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed import PublicSeed
from sketchfed.attacks import (
    AllBroadcasts,
    ByAdjoint,
    ByPseudoInverse,
    FirstLayer,
    Guess,
    Matching,
    Observation,
    Observed,
    Seen,
    Target,
    View,
    by_pseudo_inverse,
    cosine,
    psnr,
    relative_error,
    repeated,
    smoothed_weights,
    ssim,
)
from sketchfed.audits import Evidence, record
from sketchfed.config import load_config
from sketchfed.data import DataSet, load
from sketchfed.draws import uniform
from sketchfed.errors import InputError
from sketchfed.models import build
from sketchfed.nn import ModelSketch
from sketchfed.runs import Case, Row, Workload
from sketchfed.training import Examples, one_thread
from sketchfed.wire import unpack
from sketchfed_lab.experiments import audit_dbcl_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.audit_dbcl_report import decibels, scored, short

PLAIN = "plain"
"""In place of a ratio: FedAvg, where nothing is sketched."""
THROUGH = "all broadcasts, through the sketch"
PUBLIC = 2_000
"""Images of the test set that stand for what everybody has."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Federations are written as data, model and ratio: "mnist mlp 0.5", or "mnist cnn plain" for FedAvg."""

    hidden: list[int]
    steps: list[str]
    participations: list[float]
    step_clients: int
    step_examples: int
    step_rounds: int
    step_batch: int
    step_rate: float
    client: list[str]
    client_rounds: int
    client_examples: int
    server: list[str]
    server_rounds: int
    server_examples: int
    together: int
    rate: float
    victims: int
    validation: int
    variations: list[float]
    iterations: int
    newton: int
    newton_starts: int
    seed: int
    processes: int


def arms(settings: Settings) -> list[Case]:
    """A federation each, with all attacks on it: on steps, on examples from a client's seat, and from the server's."""
    told = asdict(settings)
    found = [
        _arm(settings, "steps", each, told, participation=share) for each in settings.steps for share in settings.participations
    ]
    found += [_arm(settings, "client", each, told) for each in settings.client]
    return found + [_arm(settings, "server", each, told) for each in settings.server]


def _arm(settings: Settings, part: str, federation: str, told: dict[str, Any], **more: Any) -> Case:
    parts = federation.split()
    if len(parts) != 3 or parts[1] not in ("mlp", "cnn"):
        raise InputError(f"a federation is data, model 'mlp' or 'cnn', and ratio, such as 'mnist mlp 0.5', got '{federation}'.")
    key = {"part": part, "data": parts[0], "model": parts[1], "ratio": parts[2], "seed": settings.seed, **more}
    return Case(key=key, tables=told)


def run(settings: Settings, folder: Path) -> None:
    """Train and record every federation, attack what was recorded, and write it up."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="audits", compute=audited)
    audit_dbcl_report.write(rows, folder)


def audited(arm: Case) -> Row:
    """Record what the arm names, and attack it; `seconds` are those of the processor."""
    settings, start = Settings(**arm.tables), time.process_time()
    with one_thread():
        found = _on_steps(arm, settings) if arm.key["part"] == "steps" else _on_examples(arm, settings)
    return {"key": dict(arm.key), **found, "seconds": round(time.process_time() - start, 1)}


# Federations --------------------------------------------------------------------------------------------------------------


@cache
def images(name: str) -> DataSet:
    """A data set of images with values from 0 to 1; of its test set, a part is public."""
    dataset = load(name)
    if name == "cifar10":
        dataset = replace(dataset, prepare=_colour)
    if name == "digits":
        dataset = replace(dataset, prepare=_small, shape=(1, 8, 8))
    return replace(dataset, x_test=dataset.x_test[:PUBLIC], y_test=dataset.y_test[:PUBLIC])


def _colour(x: Tensor) -> Tensor:
    return (x.to(torch.float32) / 255).movedim(-1, 1).contiguous()


def _small(x: Tensor) -> Tensor:
    return load("digits").prepare(x).reshape(-1, 1, 8, 8)


def network(kind: str, dataset: DataSet, hidden: list[int], seed: PublicSeed) -> nn.Module:
    """The perceptron; or the CNN of Zhu et al. 2019, which Zhang & Wang attack: sigmoids, strides, weights U(−½, ½)."""
    if kind == "mlp":
        return build("mlp", shape=dataset.shape, outputs=dataset.outputs, seed=seed, hidden=hidden)
    channels, height, width = dataset.shape
    layers: list[nn.Module] = []
    for inputs, stride in ((channels, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(inputs, 12, 5, stride=stride, padding=2), nn.Sigmoid()]
    flat = 12 * -(-height // 4) * -(-width // 4)
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, dataset.outputs))
    for index, parameter in enumerate(module.parameters()):
        parameter.data = uniform(seed.child("parameter", index), parameter.shape, bound=0.5)
    return module


def recorded_run(key: Any, settings: Settings, work: dict[str, Any], *, clients: int, examples: int, seed: int) -> Evidence:
    """Run a federation with this many clients and examples per client. The seed draws the examples and the first weights."""
    dataset, public = images(key["data"]), PublicSeed(seed)
    order = torch.from_numpy(public.child("examples").words(len(dataset.x_train)).astype("int64")).argsort(stable=True)
    module = network(key["model"], dataset, settings.hidden, public.child("model"))
    parts = list(order[: clients * examples].reshape(clients, examples))
    tables: dict[str, Any] = {"seed": seed, "engine": {"workers": 1}}
    tables["algorithm"] = {"name": "fedavg", "local_rate": settings.rate, **work}
    if key["ratio"] != PLAIN:
        tables["algorithm"]["name"] = "dbcl"
        tables["sketch"] = {"name": "balanced", "ratio": float(key["ratio"])}
    workload = Workload(dataset=dataset, parts=parts, module=module, loss="cross_entropy", shared_start=False)
    return record(load_config(tables), workload)[0]


# A client and the server's steps ------------------------------------------------------------------------------------------


def _on_steps(arm: Case, settings: Settings) -> Row:
    """`estimates`: lines of estimate, layer, round, relative error and cosine."""
    work = {
        "rounds": settings.step_rounds,
        "participation": arm.key["participation"],
        "local_epochs": 1,
        "batch": settings.step_batch,
        "local_rate": settings.step_rate,
    }
    recorded = recorded_run(
        arm.key, settings, work, clients=settings.step_clients, examples=settings.step_examples, seed=settings.seed
    )
    view, estimates = recorded.view("client"), list[list[Any]]()
    for attack in (ByAdjoint(), ByPseudoInverse(), AllBroadcasts()):
        for index, step in attack.steps(view).items():
            moved = view.public.layout.views(recorded.weights[index + 1] - recorded.weights[index])
            for layer, estimate in step.items():
                truth = moved[layer].reshape(estimate.shape)
                found = relative_error(estimate, truth), cosine(estimate, truth)
                estimates.append([attack.name, layer, index, *map(short, found)])
    return {"accuracy": recorded.metrics[-1]["accuracy"], "seen": sorted(view.replicas()), "estimates": estimates}


# Examples -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """Victims of a recorded run: the truth, and by attack what it matches, or what it comes to without a search."""

    truths: list[Examples]
    rounds: list[int]
    matched: dict[str, list[Observed]] = field(default_factory=dict)
    solved: dict[str, list[Callable[[], Guess]]] = field(default_factory=dict)
    cosines: dict[str, list[float]] = field(default_factory=dict)
    """Of the victim's change in the sketched layers, as the attack takes it, with the true one."""


def _on_examples(arm: Case, settings: Settings) -> Row:
    """Every attack on the victims; the weight of total variation is the one that does best on those of another run."""
    make = client_case if arm.key["part"] == "client" else server_case
    case = make(arm.key, settings, settings.victims, settings.seed)
    other = make(arm.key, settings, settings.validation, settings.seed + 1)
    dataset, found = images(arm.key["data"]), dict[str, Any]()
    matchings = {weight: Matching(iterations=settings.iterations, variation=weight) for weight in settings.variations}
    for name, observed in case.matched.items():
        tuned = {
            weight: median(decibels(_searched(other.matched[name], matching, dataset), other.truths))
            for weight, matching in matchings.items()
        }
        best = max(tuned, key=tuned.__getitem__)
        found[name] = scored(_searched(observed, matchings[best], dataset), case.truths, dataset) | {"variation": best}
        found[name]["tuning"] = [[weight, short(value)] for weight, value in tuned.items()]
        if arm.key["part"] == "server" and arm.key["model"] == "cnn":
            found[f"{name}, DLG"] = scored(_searched(observed, _newton(settings), dataset), case.truths, dataset)
    for name, solvers in case.solved.items():
        found[name] = scored([_tried(solver) for solver in solvers], case.truths, dataset)
    for name, values in case.cosines.items():
        found[name]["cosines"] = [short(value) for value in values]
    truths = torch.cat([truth.x for truth in case.truths])
    public = dataset.prepare(dataset.x_test).mean(0, keepdim=True).expand_as(truths)
    chance = {"psnr": [short(v) for v in psnr(public, truths).tolist()], "ssim": short(float(ssim(public, truths).mean()))}
    originals = [Guess(x=truth.x, y=truth.y, mismatch=0.0) for truth in case.truths]
    return {"rounds": case.rounds, "attacks": found, "chance": chance, "originals": scored(originals, case.truths, dataset)}


def client_case(key: Any, settings: Settings, victims: int, seed: int) -> Attacked:
    """Two clients, one of which is the adversary: the mean of both, less its own part, is the other's.

    A victim is an example of the other client; single updates are from the middle one of the rounds in which it was used.
    """
    work = {"rounds": settings.client_rounds, "local_steps": 1, "batch": 1}
    recorded = recorded_run(key, settings, work, clients=2, examples=settings.client_examples, seed=seed)
    view = recorded.view("client")
    updates, uses = {update.round: update for update in view.updates()}, defaultdict[Any, list[int]](list)
    for index, update in updates.items():
        uses[update.used].append(index)
    rounds = [uses[used][len(uses[used]) // 2] for used in sorted(uses)[:victims]]
    case = Attacked(truths=[recorded.behind(index, updates[index].clients) for index in rounds], rounds=rounds)
    if key["ratio"] == PLAIN:
        case.matched["undefended"] = [updates[index].observation for index in rounds]
        return case
    case.matched["what is not sketched"] = [updates[index].observation for index in rounds]
    for name, weights in estimated_weights(view).items():
        plain, through, cosines = {}, {}, {}
        for index, update in updates.items():
            form, seen = view.public.sketch(index), update.observation
            assert form is not None
            assert form.loads is not None
            own, true = (form.adjoint(_said(recorded, index, client)) for client in (view.members[0], update.clients[0]))
            step = 2 * (weights[index + 1] - weights[index]) - own
            plain[index] = replace(seen, values=step, module=view.public.module, weights=weights[index], map=None, gram=None)
            through[index] = replace(update, observation=replace(seen, values=form.apply(step) / form.loads, map=None))
            cosines[index] = _cosine(form, step, true)
        case.cosines[name] = [cosines[index] for index in rounds]
        case.matched[name] = [plain[index] for index in rounds]
    case.matched[THROUGH] = [through[index].observation for index in rounds]
    case.cosines[THROUGH] = case.cosines[name]
    if key["model"] == "mlp":
        known = range(3 * settings.client_rounds // 4)  # the last steps are those that broadcasts tell least of
        for used in sorted(uses)[:victims]:
            chosen = [index for index in uses[used] if index in known] or uses[used]
            target = Target(updates=tuple(through[index] for index in chosen))
            case.solved.setdefault("all broadcasts, first layer, several updates", []).append(_solver(target, view))
    return case


def estimated_weights(view: View) -> dict[str, list[Tensor]]:
    """What a client takes for the weights `(dim,)` of each round, by the paper's two options and by all broadcasts together.

    The difference of two rounds is the estimate of a step that the attacks of the same name make.
    """
    public, seen = view.public, dict[str, list[Seen]]()
    broadcasts = list[dict[str, Tensor]]()
    for index, replica in view.replicas().items():
        assert index == len(broadcasts), "a client that missed no round"
        form = public.sketch(index)
        assert form is not None
        broadcasts.append(form.seen.views(replica.weights))
        for name, sketch in form.layers:
            seen.setdefault(name, []).append(Seen(rows=broadcasts[-1][name], sketch=sketch))
    undone: dict[str, Callable[[list[Seen]], Sequence[Tensor]]] = {
        "option I": lambda layer: [each.sketch.adjoint(each.rows) for each in layer],
        "option II": lambda layer: [by_pseudo_inverse(each, replace(each, rows=0 * each.rows)) for each in layer],
        "all broadcasts": lambda layer: list(smoothed_weights(layer).float()),
    }
    found: dict[str, list[Tensor]] = {}
    for estimate, undo in undone.items():
        matrices = {name: undo(layer) for name, layer in seen.items()}
        found[estimate] = [
            torch.cat(
                [(matrices[name][index] if name in matrices else parts[name]).reshape(-1) for name in public.layout.names]
            )
            for index, parts in enumerate(broadcasts)
        ]
    return found


def server_case(key: Any, settings: Settings, victims: int, seed: int) -> Attacked:
    """Clients of few examples, a step on one of them a round: of each client, the one that was used most often."""
    work = {"rounds": settings.server_rounds, "local_steps": 1, "batch": 1}
    recorded = recorded_run(key, settings, work, clients=victims, examples=settings.server_examples, seed=seed)
    view = recorded.view("server")
    most = {target.first.clients[0]: target for target in reversed(repeated(view.updates()))}
    targets = [most[client] for client in sorted(most)]
    first = [target.first for target in targets]
    case = Attacked(
        truths=[recorded.behind(update.round, update.clients) for update in first], rounds=[update.round for update in first]
    )
    if key["ratio"] == PLAIN:
        case.matched["undefended"] = [update.observation for update in first]
    else:
        case.matched["as printed"] = [_as_printed(recorded, view, update.observation, update.round) for update in first]
        case.matched["through the sketch"] = [update.observation for update in first]
    if key["model"] == "mlp":
        together, alone = ([Target(updates=each.updates[:n]) for each in targets] for n in (settings.together, 1))
        case.matched["several updates"] = [target.observation for target in together]
        case.solved["first layer"] = [_solver(target, view) for target in alone]
        case.solved["first layer, several updates"] = [_solver(target, view) for target in targets]
    return case


def _as_printed(recorded: Evidence, view: View, seen: Observation, index: int) -> Observation:
    """ΓSᵀ taken for the gradient of the plain model at W (Zhang & Wang 2021, App. A.1)."""
    form = view.public.sketch(index)
    assert form is not None
    whole, weights = form.adjoint(seen.values), recorded.weights[index]
    return replace(seen, values=whole, module=view.public.module, weights=weights, gram=None)


def _solver(target: Target, view: View) -> Callable[[], Guess]:
    return partial(FirstLayer().reconstruct, target, view.public, PublicSeed(0))


def _said(recorded: Evidence, index: int, client: int) -> Tensor:
    """What a client replied."""
    replies = [each.reply for each in recorded.exchanges if (each.round, each.client) == (index, client)]
    assert replies[0] is not None
    values = unpack(replies[0]).arrays["values"]
    assert isinstance(values, Tensor)
    return values


def _cosine(form: ModelSketch, estimate: Tensor, truth: Tensor) -> float:
    """Over the sketched layers."""
    parts = [form.layout.views(each) for each in (estimate, truth)]
    return cosine(*(torch.cat([part[name].reshape(-1) for name in form.sketches]) for part in parts))


# Guesses ------------------------------------------------------------------------------------------------------------------


def _newton(settings: Settings) -> Matching:
    """The objective, optimiser and unknown labels of Zhu et al. 2019 (DLG)."""
    found = Matching(objective="squares", optimiser="lbfgs", labels="searched", variation=0)
    return replace(found, iterations=settings.newton, restarts=settings.newton_starts)


def _searched(observed: Sequence[Observed], matching: Matching, dataset: DataSet) -> list[Guess | None]:
    return [
        _tried(partial(matching.reconstruct, each, shape=dataset.shape, seed=PublicSeed(0).child("victim", number)))
        for number, each in enumerate(observed)
    ]


def _tried(attempt: Callable[[], Guess]) -> Guess | None:
    """None where an attack could not work, or broke down."""
    try:
        guess = attempt()
    except InputError:
        return None
    return guess if bool(guess.x.isfinite().all()) else None
