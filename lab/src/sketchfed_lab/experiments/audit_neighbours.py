"""Zhang & Wang 2021, App. D: what a curious node of a graph recovers of its neighbours' changes, images and properties."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.attacks import Matching, Observation, PropertyInference, Update, View, cosine, first_inputs, psnr
from sketchfed.audits import Evidence, png_base64, record, repeatable
from sketchfed.config import load_config
from sketchfed.data import DataSet, load
from sketchfed.errors import InputError
from sketchfed.models import build
from sketchfed.runs import Case, Row, Workload
from sketchfed.training import Examples, one_thread
from sketchfed_lab.experiments import audit_neighbours_report
from sketchfed_lab.experiments.arms import run_arms

PUBLIC = 1_000
"""Images of the test set that stand for what everybody has."""
TWO, MESSAGE, ALL = "two messages", "one message", "all messages"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Cases are written as algorithm, ratio of the sketch (or "dense"), graph, and, where it matters, what else is set:
    "dbcl 0.5 ring", "dbcl 0.5 ring hidden", "gossip dense ring 8".

    "hidden" also sketches biases and the output layer. A number is the ε of an example, by noise in local steps; with "client"
    it is that of a client, by noise on what is sent.
    """

    cases: list[str]
    """Those with one example in a step, of which images and properties are looked for."""
    larger: list[str]
    """Those with `batch` examples in a step, of which only changes are estimated."""
    batch: int
    hidden: int
    nodes: int
    rounds: int
    rate: float
    clip: float
    delta: float
    victims: list[int]
    """The rounds whose images are looked for, of two neighbours each."""
    iterations: int
    variation: float
    shadows: int
    trees: int
    seeds: list[int]
    processes: int


def arms(settings: Settings) -> list[Case]:
    """A run for each case, batch and seed."""
    told, wanted = (
        asdict(settings),
        [(case, 1) for case in settings.cases] + [(case, settings.batch) for case in settings.larger],
    )
    return [
        Case(key={"case": case, "batch": batch, "seed": seed}, tables=told) for seed in settings.seeds for case, batch in wanted
    ]


def run(settings: Settings, folder: Path) -> None:
    """Train and record every run, look at it from one node, and write it up."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="audits", compute=audited)
    audit_neighbours_report.write(rows, folder)


def audited(arm: Case) -> Row:
    """Record what the arm names, and attack it from node 0, or on a path from the node beside its end."""
    settings, start = Settings(**arm.tables), time.process_time()
    with one_thread():
        recorded = recorded_run(arm.key["case"], arm.key["batch"], arm.key["seed"], settings)
        view = recorded.view("neighbour", 1 if " path" in arm.key["case"] else 0)
        updates = [update for update in view.updates() if len(update.clients) == 1]
        watched = sorted({update.clients[0] for update in updates})[:2]
        updates = [update for update in updates if update.clients[0] in watched]
        known = {(told.round, told.nodes[0]): told.change for told in view.told if told.change is not None}
        found: Row = {"key": dict(arm.key), "claim": recorded.claim, "epsilon": recorded.metrics[-1].get("epsilon")}
        found |= {"accuracy": recorded.metrics[-1]["accuracy"], "cosines": list(_cosines(recorded, view, updates, known))}
        if arm.key["batch"] == 1:
            found["images"] = _images(recorded, updates, known, settings)
            found["property"] = _property(recorded, updates, known, settings, arm.key["seed"])
    return found | {"seconds": round(time.process_time() - start, 1)}


# Runs ---------------------------------------------------------------------------------------------------------------------


@cache
def images() -> DataSet:
    """Fashion-MNIST in 14 × 14 pixels. Of its test set, a part is public."""
    dataset = load("fashion_mnist")
    half = replace(dataset, prepare=_Halved(dataset), shape=(1, 14, 14))
    return replace(half, x_test=half.x_test[:PUBLIC], y_test=half.y_test[:PUBLIC])


@dataclass(frozen=True, eq=False)
class _Halved:
    whole: DataSet

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(self.whole.prepare(x).reshape(len(x), 1, 28, 28), 2)


def tables_of(case: str, batch: int, seed: int, settings: Settings) -> dict[str, Any]:
    """The configuration of a case."""
    name, ratio, graph, *more = case.split()
    tables: dict[str, Any] = {
        "seed": seed,
        "engine": {"workers": 1, "evaluate_every": settings.rounds},
        "graph": {"name": graph},
    }
    algorithm = {"name": name, "rounds": settings.rounds, "local_steps": 1, "batch": batch, "local_rate": settings.rate}
    tables["algorithm"] = algorithm | {"screening": 0.0}
    if ratio != "dense":
        family = "balanced" if name in ("dbcl", "gossip_models") else "srht"
        tables["sketch"] = {"name": family, "ratio": float(ratio)}
    if name == "gossip":
        tables["codec"] = {"name": "dense" if ratio == "dense" else "sketched"}
    if "hidden" in more:
        tables["algorithm"] |= {"output": "sketched", "biases": "sketched"}
    epsilon = next((float(word) for word in more if word.replace(".", "").isdigit()), None)
    if epsilon is not None:
        steps = {"unit": "example", "placement": "steps", "batches": "passes", "clip": settings.clip}
        unit = {"unit": "client", "clip": settings.clip * settings.rate} if "client" in more else steps
        tables["privacy"] = {"epsilon": epsilon, "delta": settings.delta, **unit}
    return tables


def recorded_run(case: str, batch: int, seed: int, settings: Settings) -> Evidence:
    """Nodes that use each of their examples once, in steps on one batch."""
    dataset, public, count = images(), PublicSeed(seed), settings.rounds * batch
    order = torch.from_numpy(public.child("examples").words(len(dataset.x_train)).astype("int64")).argsort(stable=True)
    module = build("mlp", shape=dataset.shape, outputs=dataset.outputs, seed=public.child("model"), hidden=[settings.hidden])
    parts = list(order[: settings.nodes * count].reshape(settings.nodes, count))
    config = repeatable(load_config(tables_of(case, batch, seed, settings)))
    workload = Workload(dataset=dataset, parts=parts, module=module, loss="cross_entropy", shared_start=True)
    return record(config, workload)[0]


# Changes ------------------------------------------------------------------------------------------------------------------


def _cosines(
    recorded: Evidence, view: View, updates: list[Update], known: dict[tuple[int, int], Tensor]
) -> Iterator[tuple[str, int, int, float, float]]:
    """Lines of estimate, round, node, and cosine with the true change: of the whole, and of the first layer's weights.

    "one message" compares what the message of the round shows with what it would show of the true change.
    """
    name, before = view.public.layout.names[0], dict[int, Tensor]()
    for update in updates:
        index, node, seen = update.round, update.clients[0], update.observation
        true = recorded.change(index, node)
        image = true if seen.map is None else seen.map.apply(true)
        yield MESSAGE, index, node, *_pair(cosine(seen.values, image))
        places = view.public.layout.views
        for estimate, change in ((ALL, known.get((index, node))), (TWO, _difference(seen, before, node))):
            if change is not None:
                yield estimate, index, node, *_pair(cosine(change, true), cosine(places(change)[name], places(true)[name]))


def _pair(whole: float, first: float | None = None) -> tuple[float, float]:
    return round(whole, 4), round(whole if first is None else first, 4)


def _difference(seen: Observation, before: dict[int, Tensor], node: int) -> Tensor | None:
    """App. D's W_new − W_old: two messages, each de-sketched by the adjoint. None in the first round."""
    message = seen.values + (seen.weights if seen.map is None else seen.map.apply(seen.weights))
    model = message if seen.map is None else seen.map.adjoint(message)
    old, before[node] = before.get(node), model
    return None if old is None else model - old


# Images -------------------------------------------------------------------------------------------------------------------


def _images(
    recorded: Evidence, updates: list[Update], known: dict[tuple[int, int], Tensor], settings: Settings
) -> dict[str, Any]:
    """PSNR of each victim by attack, and of the mean public image."""
    dataset, found = images(), dict[str, list[float]]()
    victims = [update for update in updates if update.round in settings.victims]
    matching, mean = (
        Matching(iterations=settings.iterations, variation=settings.variation),
        dataset.prepare(dataset.x_test).mean(0),
    )
    pictures: dict[str, list[str | None]] = {}
    for number, update in enumerate(victims):
        truth, seen = recorded.behind(update.round, update.clients).x[:1], update.observation
        attempts = {"original": truth, "mean image": mean[None], f"{MESSAGE}, matching": _searched(matching, seen, number)}
        change = known.get((update.round, update.clients[0]))
        if change is not None:
            whole = replace(seen, values=change, map=None)
            attempts[f"{ALL}, division"] = _divided(whole)
            if seen.map is not None:
                attempts[f"{ALL}, matching"] = _searched(matching, whole, number)
        for name, guess in attempts.items():
            found.setdefault(name, []).append(0.0 if guess is None else round(float(psnr(guess, truth)), 2))
            pictures.setdefault(name, []).append(None if guess is None else png_base64(guess[0]))
    rounds = [update.round for update in victims]
    return {"rounds": rounds, "psnr": found, "pictures": {name: each[:4] for name, each in pictures.items()}}


def _searched(matching: Matching, seen: Observation, number: int) -> Tensor | None:
    try:
        guess = matching.reconstruct(seen, shape=images().shape, seed=PublicSeed(0).child("victim", number)).x
    except InputError:
        return None
    return guess if bool(guess.isfinite().all()) else None


def _divided(seen: Observation) -> Tensor | None:
    try:
        return first_inputs(seen).reshape(1, *images().shape).clamp(0, 1)
    except InputError:
        return None


# Properties ---------------------------------------------------------------------------------------------------------------


@cache
def _brightness() -> Tensor:
    """For each class, the median brightness of its training images."""
    dataset = images()
    bright, y = dataset.prepare(dataset.x_train).flatten(1).mean(1), dataset.y_train
    return torch.stack([bright[y == label].median() for label in range(dataset.outputs)])


def _bright(examples: Examples) -> Tensor:
    """Whether images are brighter than half of their class."""
    return examples.x.flatten(1).mean(1) > _brightness()[examples.y]


def _property(
    recorded: Evidence, updates: list[Update], known: dict[tuple[int, int], Tensor], settings: Settings, seed: int
) -> dict[str, Any]:
    """Scores of each update by what is looked at, and whether its image has the property."""
    dataset = images()
    own = Examples(dataset.prepare(dataset.x_test), dataset.y_test)
    forest, has = PropertyInference(shadows=settings.shadows, trees=settings.trees), _bright(own)
    scores, truths = dict[str, list[float]](), list[bool]()
    for number, update in enumerate(updates):
        truths.append(bool(_bright(recorded.behind(update.round, update.clients))[0]))
        change, child = known.get((update.round, update.clients[0])), PublicSeed(seed).child("forest", number)
        looked = {MESSAGE: update.observation}
        if change is not None and update.observation.map is not None:
            looked[ALL] = replace(update.observation, values=change, map=None)
        for name, seen in looked.items():
            noise, clip = (update.noise, update.clip) if name == MESSAGE else (0.0, None)
            score = forest.score([seen], count=1, examples=own, has=has, seed=child, clip=clip, noise=noise)
            scores.setdefault(name, []).append(round(float(score), 4))
    return {"truths": truths, "scores": scores}
