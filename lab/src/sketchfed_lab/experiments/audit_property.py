"""Zhang & Wang 2021, App. A.2: does a batch have examples of a kind, asked from the recorded bytes of two clients' runs?"""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.algorithms import Dbcl
from sketchfed.attacks import AllBroadcasts, ByAdjoint, Public, Steps, Update, View, each_seen
from sketchfed.audits import Evidence, record, repeatable
from sketchfed.config import Config, load_config
from sketchfed.data import ADULT_CATEGORIES, ADULT_NUMBERS, DataSet, load
from sketchfed.draws import permutation
from sketchfed.errors import InputError
from sketchfed.models import build
from sketchfed.runs import Case, Row, Workload
from sketchfed.training import Examples, one_thread
from sketchfed.vectors import Layout
from sketchfed.wire import unpack
from sketchfed_lab.experiments import audit_property_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.audit_property_judges import BatchForest, Clues, by_line

ADVERSARY, VICTIM = 0, 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Two clients, a step on a batch each a round. In half of the rounds a share of the victim's batch has the property.

    A case is data and that share: "adult 1/8"; those of `undefended` are tried without a defence only.
    `judged` rounds are attacked, evenly from round `first` to `last`. A client has `spare` times as many examples as it
    uses. The adversary has a `pool` of examples of its own, half of them with the property, and makes `shadows` batches.
    """

    cases: list[str]
    undefended: list[str]
    hidden: int
    batch: int
    rate: float
    rounds: int
    first: int
    last: int
    judged: int
    spare: int
    blind: float
    ratio: float
    epsilons: list[float]
    delta: float
    clip: float
    pool: int
    shadows: int
    trees: int
    features: int
    seeds: list[int]
    processes: int


def arms(settings: Settings) -> list[Case]:
    """A recorded run each, with all attacks on it."""
    defences: list[tuple[str, float | None]] = [("none", None), ("dbcl", None), ("sketch", None)]
    defences += [("sketch", float(epsilon)) for epsilon in settings.epsilons]
    tried = [(case, defences) for case in settings.cases] + [(case, defences[:1]) for case in settings.undefended]
    return [
        Case(key={**_case(case), "defence": defence, "epsilon": epsilon, "seed": seed}, tables=asdict(settings))
        for seed in settings.seeds
        for case, chosen in tried
        for defence, epsilon in chosen
    ]


def _case(text: str) -> dict[str, Any]:
    parts = text.split()
    try:
        share = float(Fraction(parts[-1]))
    except ValueError:
        share = 0.0
    if len(parts) != 2 or not 0 < share <= 1:
        raise InputError(f"a case is data and a share of a batch, such as 'adult 1/8', got '{text}'.")
    return {"data": parts[0], "share": share}


def run(settings: Settings, folder: Path) -> None:
    """Train and record every federation, judge its rounds, and write it up."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="runs", compute=attacked)
    audit_property_report.write(rows, folder)


def attacked(arm: Case) -> Row:
    """`attacks` has, by view and judge, the scores of rounds with the property and of those without."""
    settings, start, key = Settings(**arm.tables), time.process_time(), dict(arm.key)
    seed = PublicSeed(key["seed"]).child("audit")
    with one_thread():
        subject = topic(key["data"])
        recorded, counts = recorded_run(key, settings, subject)
        seats = Seats(recorded)
        pool, has = adversarys(subject, settings.pool, seed)
        rounds = sorted(judged_rounds(counts, settings))
        forest = BatchForest(trees=settings.trees, shadows=settings.shadows, features=settings.features, share=key["share"])
        found: dict[str, dict[str, dict[str, list[float]]]] = {}
        for index in rounds:
            for name, evidence in seats.evidences(index, pool):
                own = seed.child("round", index).child(name.replace(" ", "-").replace(",", ""))
                scores = {
                    "forest": forest.judge(evidence, has, settings.batch, own),
                    "linear": by_line(evidence, has, settings.batch, forest, own),
                }
                kind = "with" if counts[index] else "without"
                for judge, score in scores.items():
                    kinds = found.setdefault(name, {}).setdefault(judge, {"with": [], "without": []})
                    kinds[kind].append(float(f"{score:.4g}"))
    inside = [count / settings.batch for count in counts if count]
    return {
        "key": key,
        "attacks": found,
        "inside": round(sum(inside) / len(inside), 4),
        "accuracy": round(recorded.metrics[-1]["accuracy"], 4),
        "seconds": round(time.process_time() - start, 1),
    }


def judged_rounds(counts: list[int], settings: Settings) -> list[int]:
    """As many with the property as without, evenly over the rounds that are looked at."""
    window = range(settings.first, settings.last + 1)
    kinds = ([index for index in window if bool(counts[index]) is kind] for kind in (True, False))
    return [kind[place] for kind in kinds for place in np.linspace(0, len(kind) - 1, settings.judged // 2).round().astype(int)]


# What is asked ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Topic:
    """A data set, and which of its examples have the property."""

    dataset: DataSet
    train: Tensor
    test: Tensor


@cache
def topic(name: str) -> Topic:
    """Adult: a woman, her sex not among the inputs. Images: brighter, or in colour warmer, than 3/4 of their own class."""
    dataset = load(name)
    if name == "adult":
        column = len(ADULT_NUMBERS) + list(ADULT_CATEGORIES).index("sex")
        return Topic(
            dataset=replace(dataset, prepare=Without(dataset), shape=(dataset.shape[0] - ADULT_CATEGORIES["sex"],)),
            train=dataset.x_train[:, column] == 0,
            test=dataset.x_test[:, column] == 0,
        )
    if name == "cifar10":
        dataset = replace(dataset, prepare=_halved, shape=(3, 16, 16))
    marks = [_mark(dataset.prepare(x)) for x in (dataset.x_train, dataset.x_test)]
    limits = torch.stack([marks[0][dataset.y_train == label].quantile(0.75) for label in range(dataset.outputs)])
    train, test = (mark > limits[y] for mark, y in zip(marks, (dataset.y_train, dataset.y_test), strict=True))
    return Topic(dataset=dataset, train=train, test=test)


@dataclass(frozen=True, eq=False)
class Without:
    """Adult's inputs without the columns of sex."""

    whole: DataSet

    def __call__(self, x: Tensor) -> Tensor:
        names = list(ADULT_CATEGORIES)
        start = len(ADULT_NUMBERS) + sum(ADULT_CATEGORIES[name] for name in names[: names.index("sex")])
        rows = self.whole.prepare(x)
        return torch.cat([rows[:, :start], rows[:, start + ADULT_CATEGORIES["sex"] :]], dim=1)


def _halved(x: Tensor) -> Tensor:
    colours = (x.to(torch.float32) / 255).movedim(-1, 1)
    return torch.nn.functional.avg_pool2d(colours, 2)


def _mark(x: Tensor) -> Tensor:
    """How bright images are; coloured ones, how much redder than blue."""
    if x.ndim == 4 and x.shape[1] == 3:
        return (x[:, 0] - x[:, 2]).mean((1, 2))
    return x.flatten(1).mean(1)


def adversarys(subject: Topic, count: int, seed: PublicSeed) -> tuple[Examples, Tensor]:
    """Examples of the test set, half of them with the property, and which."""
    halves = [_some(mask, count // 2, seed.child(kind)) for kind, mask in (("with", subject.test), ("without", ~subject.test))]
    rows, dataset = torch.cat(halves), subject.dataset
    return Examples(dataset.prepare(dataset.x_test[rows]), dataset.y_test[rows]), subject.test[rows]


def _some(mask: Tensor, count: int, seed: PublicSeed) -> Tensor:
    """Draw this many of the marked ones in a random order. If there are too few, start again from the first."""
    places = mask.nonzero()[:, 0]
    order = permutation(seed, len(places))
    return places[order].repeat(-(-count // len(places)))[:count]


# Federations --------------------------------------------------------------------------------------------------------------


def tables_of(key: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The configuration of an arm; noise comes from a fixed seed, so that it can be repeated."""
    algorithm = {"none": "fedavg", "dbcl": "dbcl", "sketch": "iterative"}[key["defence"]]
    tables: dict[str, Any] = {"seed": key["seed"], "engine": {"workers": 1, "evaluate_every": settings.rounds}}
    tables["algorithm"] = {"name": algorithm, "rounds": settings.rounds, "local_steps": 1, "batch": settings.batch}
    tables["algorithm"] |= {"local_rate": settings.rate, "screening": 0.0}
    if algorithm == "dbcl":
        tables["sketch"] = {"name": "balanced", "ratio": settings.blind}
    elif algorithm == "iterative":
        tables["sketch"] = {"name": "srht", "ratio": settings.ratio}
    if key["epsilon"] is not None:
        tables["privacy"] = {"unit": "example", "observer": "server", "batches": "passes", "clip": settings.clip}
        tables["privacy"] |= {"epsilon": key["epsilon"], "delta": settings.delta}
    return tables


def recorded_run(key: Mapping[str, Any], settings: Settings, subject: Topic) -> tuple[Evidence, list[int]]:
    """What passed, and how many examples of the victim's batch have the property in each round.

    Which places of a client's data a round uses is public, so its examples are put there on purpose. Batches of different
    rounds may have a place in common: what is in a batch without the property has it nowhere.
    """
    seed, dataset = PublicSeed(key["seed"]), subject.dataset
    module = build("mlp", shape=dataset.shape, outputs=dataset.outputs, seed=seed.child("model"), hidden=[settings.hidden])
    size = settings.spare * settings.batch * settings.rounds
    config = repeatable(load_config(tables_of(key, settings)))
    anybody = _some(torch.ones_like(subject.train), size, seed.child("adversary"))
    workload = Workload(dataset=dataset, parts=[anybody, anybody], module=module, loss="cross_entropy", shared_start=False)
    used = _used(config, workload, settings.rounds)
    victims = _some(~subject.train, size, seed.child("without"))
    having = _some(subject.train, size, seed.child("with"))
    chosen = permutation(seed.child("rounds"), settings.rounds)[: settings.rounds // 2].tolist()
    taken = {place for index in set(range(settings.rounds)) - set(chosen) for place in used[index]}
    wanted = max(1, round(key["share"] * settings.batch))
    for index in chosen:
        free = [place for place in used[index] if place not in taken][:wanted]
        victims[free] = having[free]
    recorded, _ = record(config, replace(workload, parts=[anybody, victims]))
    return recorded, [int(subject.train[victims[list(places)]].sum()) for places in used]


def _used(config: Config, workload: Workload, rounds: int) -> list[tuple[int, ...]]:
    dim, sizes = Layout.of(workload.module).dim, [len(part) for part in workload.parts]
    complete = config.completed(dim=dim, sizes=sizes, module=workload.module)
    public = Evidence(config=complete, workload=workload, exchanges=()).public
    found = [public.used(index, VICTIM) for index in range(rounds)]
    return [places for places in found if places is not None]


# Attacks ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seats:
    """From where a recorded run is looked at: the server's seat and, of DBCL, the other client's."""

    recorded: Evidence

    @cached_property
    def server(self) -> View:
        return self.recorded.view("server")

    @cached_property
    def client(self) -> View:
        return self.recorded.view("client")

    @cached_property
    def steps(self) -> dict[str, Steps]:
        """What the client makes of the broadcasts, by attack; nothing where it is shown the weights."""
        blind = isinstance(self.recorded.config.algorithm, Dbcl)
        return {attack.name: attack.steps(self.client) for attack in (ByAdjoint(), AllBroadcasts()) if blind}

    def evidences(self, index: int, pool: Examples) -> Iterator[tuple[str, Clues]]:
        """What is known of the victim's part in a round, by who knows it."""
        update = _update(self.server, index)
        rows, seen = added(self.server.public, update, pool), update.observation
        sizes = [math.prod(shape) for shape in Layout.of(seen.module).shapes]
        back = None if seen.map is None else seen.map.adjoint
        yield "server", Clues(values=seen.values, rows=rows, noise=update.noise, sizes=sizes, back=back)
        if self.steps:
            yield from _client(self.client, index, rows, self.steps)


def added(public: Public, update: Update, pool: Examples) -> Tensor:
    """What each example would add to the update, `(pool, size)`, clipped where that is what clients do."""
    rows = each_seen(update.observation, pool).float()
    if not public.of_examples:
        return rows / update.count
    assert public.protection.budget is not None
    work = public.algorithm.work
    longest = public.protection.budget.settings.clip * work.rate / (work.batch or 1)
    return rows.renorm(p=2, dim=0, maxnorm=longest)


def _update(view: View, index: int) -> Update:
    return next(update for update in view.updates() if update.round == index and update.clients == (VICTIM,))


def _client(view: View, index: int, rows: Tensor, steps: Mapping[str, Steps]) -> Iterator[tuple[str, Clues]]:
    """A client that takes its own part off: what is plain, all broadcasts with it, and the paper's estimate of sketched layers.

    `rows` are what examples would add to U and the plain parameters, which the client can tell as well as the server can.
    """
    form = view.public.sketch(index)
    assert form is not None
    update = _update(view, index)
    places = form.seen.views(torch.arange(form.size))
    plain = torch.cat([places[name].reshape(-1) for name in places if name not in form.sketches])
    sizes = {name: math.prod(shape) for name, shape in zip(form.seen.names, form.seen.shapes, strict=True)}
    flat = [size for name, size in sizes.items() if name not in form.sketches]
    yield "client, plain part", Clues(values=update.observation.values, rows=rows[:, plain], noise=0.0, sizes=flat)
    reply = next(each.reply for each in view.exchanges if (each.round, each.client) == (index, ADVERSARY))
    assert reply is not None
    own = unpack(reply).arrays["values"]
    assert isinstance(own, Tensor)
    mine = form.seen.views(own)
    whole = torch.zeros(form.size)
    whole[plain] = update.observation.values
    for name, step in steps["all broadcasts"][index].items():
        sketch = form.sketches[name]
        whole[places[name].reshape(-1)] = (2 * sketch.apply(step) / sketch.loads - mine[name]).reshape(-1).float()
    yield "client, all broadcasts", Clues(values=whole, rows=rows, noise=0.0, sizes=list(sizes.values()))
    guesses, makers = list[Tensor](), list[Tensor]()
    for name, step in steps["option I"][index].items():
        sketch = form.sketches[name]
        guesses.append((2 * step - sketch.adjoint(mine[name])).reshape(-1))
        parts = rows[:, places[name].reshape(-1)].reshape(len(rows), *places[name].shape)
        makers.append(sketch.adjoint(parts).reshape(len(rows), -1))
    lengths = [len(guess) for guess in guesses]
    yield "client, option I", Clues(values=torch.cat(guesses), rows=torch.cat(makers, dim=1), noise=0.0, sizes=lengths)
