"""Membership inference against ε: who was trained on, from the final weights and from what the server is sent."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.attacks import LossAttack, View, auc, auc_interval, by_alignment, true_positive_rate
from sketchfed.audits import Canaries, Evidence, record, repeatable, with_canaries
from sketchfed.config import load_config
from sketchfed.data import DataSet, load
from sketchfed.draws import permutation
from sketchfed.models import build
from sketchfed.privacy import audited
from sketchfed.runs import Case, Row, Workload
from sketchfed.training import Examples, one_thread
from sketchfed_lab.experiments import audit_membership_report
from sketchfed_lab.experiments.arms import run_arms

FORMS = {"whole": "fedavg", "sketch": "iterative"}
HELD_OUT = 2_000
"""Examples of the test set that are used: for canaries, for people who took no part, and to score the model."""
FURTHER = 40
"""The number of non-members that the alignment attack is shown as such."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run without noise and one for each of `epsilons`, with whole updates and with sketches.

    `members` examples are dealt out to the clients; `others` stand for people who took no part. Of `canaries`, with wrong
    labels, each is put in by a coin's toss. Updates of the first `looked` rounds are searched for `sought` members, as many
    others, and all canaries; losses are those of all members and others.
    """

    data: list[str]
    clients: int
    members: int
    others: int
    sought: int
    canaries: int
    hidden: int
    batch: int
    rate: float
    rounds: int
    looked: int
    ratio: float
    epsilons: list[float]
    delta: float
    clip: float
    seeds: list[int]
    processes: int


def arms(settings: Settings) -> list[Case]:
    """A recorded run each, with all attacks on it."""
    return [
        Case(key={"data": name, "form": form, "epsilon": epsilon, "seed": seed}, tables=asdict(settings))
        for seed in settings.seeds
        for name in settings.data
        for form in FORMS
        for epsilon in (None, *(float(each) for each in settings.epsilons))
    ]


def run(settings: Settings, folder: Path) -> None:
    """Train and record every run, look for members, and write it up."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="runs", compute=attacked)
    audit_membership_report.write(rows, folder)


def attacked(arm: Case) -> Row:
    """`attacks` has, by whom is looked for and how, the area, its interval and true positive rates; of canaries the ε, too."""
    settings, start, key = Settings(**arm.tables), time.process_time(), dict(arm.key)
    seed = PublicSeed(key["seed"])
    with one_thread():
        subset = small(key["data"], settings.members, seed)
        recorded, canaries = recorded_run(key, settings, subset)
        members = Examples(subset.prepare(subset.x_train), subset.y_train)
        held_out = recorded.workload.dataset
        others = Examples(held_out.prepare(held_out.x_test), held_out.y_test)
        people = joined(first(members, settings.members), first(others, settings.others))
        view = recorded.view("server")
        there = torch.arange(len(people.x)) < settings.members
        found = {
            "members, loss": judged(LossAttack().scores(view, people, rounds=0), there),
            "canaries, loss": judged(LossAttack().scores(view, canaries.examples, rounds=0), canaries.included, settings.delta),
        }
        some, few = first(members, settings.sought), first(others, settings.sought + FURTHER)
        scores = aligned(view, settings.looked, canaries, joined(some, few))
        searched, rest = torch.split(scores, [settings.canaries, len(some.x) + len(few.x)])
        there = torch.arange(2 * settings.sought) < settings.sought
        found["members, alignment"] = judged(rest[: 2 * settings.sought], there)
        found["canaries, alignment"] = judged(searched, canaries.included, settings.delta)
        right = torch.cat([_hits(recorded, members), _hits(recorded, others)])
    return {
        "key": key,
        "attacks": found,
        "training accuracy": round(float(right[: len(members.x)].float().mean()), 4),
        "accuracy": round(float(right[len(members.x) :].float().mean()), 4),
        "spent": recorded.metrics[-1].get("epsilon"),
        "seconds": round(time.process_time() - start, 1),
    }


@cache
def _loaded(name: str) -> DataSet:
    return load(name)


def small(name: str, members: int, seed: PublicSeed) -> DataSet:
    """A few of the training examples, and some of the test set, drawn from the seed."""
    whole = _loaded(name)
    chosen, held_out = (
        permutation(seed.child(part), len(x))[:count]
        for part, x, count in (("members", whole.x_train, members), ("held-out", whole.x_test, HELD_OUT))
    )
    return replace(
        whole,
        x_train=whole.x_train[chosen],
        y_train=whole.y_train[chosen],
        x_test=whole.x_test[held_out],
        y_test=whole.y_test[held_out],
        groups=None,
    )


def tables_of(key: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The configuration of an arm; noise comes from a fixed seed (`repeatable`), so that it can be repeated."""
    tables: dict[str, Any] = {"seed": key["seed"], "engine": {"workers": 1, "evaluate_every": settings.rounds}}
    tables["algorithm"] = {"name": FORMS[key["form"]], "rounds": settings.rounds, "local_steps": 1, "batch": settings.batch}
    tables["algorithm"] |= {"local_rate": settings.rate, "screening": 0.0}
    if key["form"] == "sketch":
        tables["sketch"] = {"name": "srht", "ratio": settings.ratio}
    if key["epsilon"] is not None:
        tables["privacy"] = {"unit": "example", "observer": "server", "clip": settings.clip}
        tables["privacy"] |= {"epsilon": key["epsilon"], "delta": settings.delta}
    return tables


def recorded_run(key: Mapping[str, Any], settings: Settings, subset: DataSet) -> tuple[Evidence, Canaries]:
    """What passed, with canaries among the data."""
    seed = PublicSeed(key["seed"])
    module = build("mlp", shape=subset.shape, outputs=subset.outputs, seed=seed.child("model"), hidden=[settings.hidden])
    parts = [torch.arange(client, settings.members, settings.clients) for client in range(settings.clients)]
    workload = Workload(dataset=subset, parts=parts, module=module, loss="cross_entropy", shared_start=False)
    workload, canaries = with_canaries(workload, settings.canaries, seed.child("audit"))
    return record(repeatable(load_config(tables_of(key, settings))), workload)[0], canaries


def aligned(view: View, looked: int, canaries: Canaries, people: Examples) -> Tensor:
    """Scores of the canaries and then of people, from the updates of the first rounds.

    A canary is looked for in what the client would have sent that may have it, a person in everybody's.
    """
    updates = [update for update in view.updates() if update.round < looked]
    anywhere = torch.ones(len(people.x), dtype=torch.bool)
    possible = [torch.cat([torch.isin(canaries.clients, torch.tensor(update.clients)), anywhere]) for update in updates]
    observations = [update.observation for update in updates]
    return by_alignment(observations, joined(canaries.examples, people), possible=possible)


def judged(scores: Tensor, there: object, delta: float | None = None) -> dict[str, float]:
    """How well scores tell who was there; with δ, which ε that refutes: guesses are half as many as canaries."""
    marks = np.asarray(there)
    numbers = scores.double().numpy()
    up, down = numbers[marks], numbers[~marks]
    low, high = auc_interval(up, down)
    found = {"auc": auc(up, down), "low": low, "high": high}
    found |= {f"tpr {rate:g}": true_positive_rate(up, down, rate) for rate in (0.01, 0.05)}
    if delta is not None:
        bound = audited(numbers, marks, delta=delta, guesses=2 * (len(marks) // 4))
        found |= {"lower": bound.lower, "guesses": bound.guesses, "correct": bound.correct}
    return {name: round(value, 4) for name, value in found.items()}


def first(examples: Examples, count: int) -> Examples:
    return Examples(examples.x[:count], examples.y[:count])


def joined(one: Examples, other: Examples) -> Examples:
    return Examples(torch.cat([one.x, other.x]), torch.cat([one.y, other.y]))


def _hits(recorded: Evidence, examples: Examples) -> Tensor:
    assert recorded.final is not None
    return recorded.workload.trainer().outputs(recorded.final, examples.x).argmax(1) == examples.y
