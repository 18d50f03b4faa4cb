"""Robust combine rules against attackers: accuracy of dense and sketched updates for every rule, attack and share."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sketchfed.combining import COMBINE_RULES
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, InputError, UnknownNameError
from sketchfed.protection import SecureSettings
from sketchfed.rounds import LocalEngine, Server
from sketchfed.runs import Case, Row, Workload
from sketchfed.training import Examples, Trainer
from sketchfed.vectors import flatten
from sketchfed_lab.experiments import robust_rules_report
from sketchfed_lab.experiments.arms import best_of, run_arms
from sketchfed_lab.faults.byzantine import ATTACKS, TARGET, AttackedEngine, Attackers, triggered

Table = dict[str, Any]

SPREADS: dict[str, Table] = {
    "iid": {"partition": "iid"},
    "dirichlet": {"partition": "dirichlet", "concentration": 0.3},
}


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How replies travel, and with that what the server sees of them."""

    tables: Table
    """Tables that a configuration gets in addition."""
    assumed: float
    """The share of attackers that a rule prepares for where there are none, also while its rate is tuned."""

    def packets(self, clients: int) -> list[int]:
        """The number of clients behind each packet that the server sees, the largest first."""
        secure = self.tables.get("secure")
        return [1] * clients if secure is None else SecureSettings(**secure).group_sizes(clients)

    def byzantine(self, rule: str, *, share: float, clients: int) -> float:
        """The share of clients that the rule is told to distrust: all clients behind packets that an attacker may spoil.

        In the worst case each attacker is in another group, and these are the largest groups. Rules accept shares below 1/2
        only, and Krum below 1/2 − 1/packets, so with few groups they are told 99 % of that.
        """
        packets = self.packets(clients)
        spoiled = sum(packets[: round((share or self.assumed) * clients)]) / clients
        return min(spoiled, 0.99 * (0.5 - (1 / len(packets) if rule == "krum" else 0)))


CLIP = 1.6
"""The public clip norm of secure sums, the same for all arms: the median norm of an honest update, to one decimal.

Over the first five rounds of the mean in the clear, with the default step, the seed and the data of tuning, and over all data
sets, spreads and sizes, the median is 1.64.
"""
TRANSPORTS = {
    "clear": Transport(tables={}, assumed=0.2),
    "groups": Transport(tables={"secure": {"group_size": 3, "clip": CLIP}}, assumed=0.1),
}
"""The server sees every reply, or secure sums of groups of at least 3 clients, the smallest that the library allows."""
WHERE = ("transport", "data", "spread", "ratio", "rule")

Place = tuple[str, str, str, float, str]
"""What is tuned by itself: transport, data set, spread, size/dim, and rule."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The grid. `ratios` are of sketches; 1 stands for whole updates.

    Each transport has shares of attackers and seeds of its own. Shares in `main_shares` are run with all of its seeds, other
    shares with the first.
    """

    transports: list[str]
    data: list[str]
    spreads: list[str]
    ratios: list[float]
    rules: list[str]
    attacks: list[str]
    shares: dict[str, list[float]]
    main_shares: list[float]
    seeds: dict[str, list[int]]
    clients: int
    hidden: int
    batch: int
    local_steps: int
    local_rate: float
    rates: list[float]
    rounds: int
    processes: int

    def __post_init__(self) -> None:
        for kind, names, known in (
            ("transport", self.transports, TRANSPORTS),
            ("spread", self.spreads, SPREADS),
            ("rule", self.rules, COMBINE_RULES),
            ("attack", self.attacks, ATTACKS),
        ):
            for name in names:
                if name not in known:
                    raise UnknownNameError(kind, name, known)
        for transport in self.transports:
            if not self.shares.get(transport) or not self.seeds.get(transport):
                raise InputError(
                    f"transport '{transport}' needs shares of attackers and seeds of its own, such as "
                    f"shares.{transport} = [0.1] and seeds.{transport} = [0]."
                )
            for share in self.shares[transport]:
                if not 0 < share < 0.5:
                    raise InputError(f"shares are of attackers, above 0 and below 0.5, got {share}.")


def places(settings: Settings) -> list[Place]:
    """Everything that is tuned by itself."""
    return [
        (transport, data, spread, ratio, rule)
        for data in settings.data
        for spread in settings.spreads
        for transport in settings.transports
        for ratio in settings.ratios
        for rule in settings.rules
    ]


def arm(
    settings: Settings, place: Place, *, rate: float, seed: int, attack: str = "none", share: float = 0.0, held_out: float = 0.0
) -> Case:
    """One run. The rule knows the share of attackers, not who they are, nor what they do."""
    transport, data, spread, ratio, rule = place
    tables: Table = {
        "seed": seed,
        "data": {"name": data, "clients": settings.clients, "validation": held_out, **SPREADS[spread]},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {
            "name": "iterative" if ratio < 1 else "fedavg",
            "rounds": settings.rounds,
            "batch": settings.batch,
            "local_steps": settings.local_steps,
            "local_rate": settings.local_rate,
            "global_rate": rate,
            "combine": rule,
        },
        **TRANSPORTS[transport].tables,
    }
    if ratio < 1:
        tables["sketch"] = {"name": "srht", "ratio": ratio}
    if hasattr(COMBINE_RULES[rule], "byzantine"):
        told = TRANSPORTS[transport].byzantine(rule, share=share, clients=settings.clients)
        tables["combine"] = {"byzantine": told}
    key = dict(zip(WHERE, place, strict=True)) | {"rate": rate, "seed": seed, "attack": attack, "share": share}
    return Case(key=key | {"held_out": held_out, "rounds": settings.rounds}, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune the rate of every rule without attackers, by the same choice for all, run all attacks, and write it up."""
    rates = tuned(settings, folder / "tuning.jsonl")
    results = run_arms(
        cases(settings, rates), folder / "results.jsonl", processes=settings.processes, title="runs", compute=attacked
    )
    robust_rules_report.write(results, folder)


def cases(settings: Settings, rates: Mapping[Place, float]) -> list[Case]:
    """All runs. The first seed of everything comes first, so that what is there at any time is balanced."""
    found, attacks = [], [name for name in settings.attacks if name != "none"]
    for number in range(max(len(settings.seeds[transport]) for transport in settings.transports)):
        for place in places(settings):
            for seed in settings.seeds[place[0]][number : number + 1]:
                found.append(arm(settings, place, rate=rates[place], seed=seed))
                shares = [share for share in settings.shares[place[0]] if number == 0 or share in settings.main_shares]
                found += [
                    arm(settings, place, rate=rates[place], seed=seed, attack=name, share=share)
                    for share in shares
                    for name in attacks
                ]
    return found


def tuned(settings: Settings, path: Path) -> dict[Place, float]:
    """For each place, the rate with the highest accuracy on a tenth of the training data, without attackers.

    Where the best rate is the smallest or the largest that was tried, the next one is tried too, until it is worse.
    """
    asked = {place: sketched_rates(settings.rates, place[3]) for place in places(settings)}
    while True:
        arms = [arm(settings, place, rate=rate, seed=100, held_out=0.1) for place, rates in asked.items() for rate in rates]
        rows = run_arms(arms, path, processes=settings.processes, title="tuning", compute=attacked)
        best = {_place(row): row["key"]["rate"] for row in best_of(rows, WHERE, quality).values()}
        open_ends = [place for place, rate in best.items() if rate in (min(asked[place]), max(asked[place]))]
        if not open_ends:
            return best
        for place in open_ends:
            low = best[place] == min(asked[place])
            asked[place].append(best[place] * (0.5 if low else 2.0))


def sketched_rates(rates: list[float], ratio: float) -> list[float]:
    """The rates that are tried first: for sketches the same times min(1, 4·√ratio), the default of the library."""
    return [rate * min(1.0, 4 * ratio**0.5) for rate in rates]


def _place(row: Row) -> Place:
    transport, data, spread, ratio, rule = (row["key"][name] for name in WHERE)
    return transport, data, spread, ratio, rule


def quality(row: Row) -> float:
    """What tuning maximises: the mean of the last three accuracies."""
    last = [point[1] for point in row["curve"][-3:]]
    return sum(last) / len(last) if last and not row["diverged"] else 0.0


def attacked(case: Case) -> Row:
    """Train with the case's configuration and attackers, in one thread. What the server says about attackers is not shown.

    The row holds `curve`, a list of [round, accuracy] for five points in time, `diverged`, `seconds`, `refused`, the number of
    replies that screening refused, and for a backdoor `success`: the share of test images of other classes that the
    trigger turns into its class.
    """
    torch.set_num_threads(1)
    began, key, config = perf_counter(), case.key, load_config(case.tables)
    problem = _problem(_frozen(case.tables["data"]), _frozen(case.tables["model"]), config.seed)
    workload, trainer, test = problem.workload, problem.trainer, problem.test
    sizes, attack = [len(part) for part in workload.parts], ATTACKS[key["attack"]]
    config = config.completed(dim=trainer.dim, sizes=sizes, module=workload.module)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(config.seed)).tolist()
    attackers = Attackers(attack, order[: round(key["share"] * len(sizes))], config.seed)

    def examples(client: int) -> Examples:
        own = problem.clients[client]
        return attack.examples(own, workload.dataset.outputs) if client in attackers.clients else own

    participant = config.participant(trainer, sizes, workload.module)
    state = config.algorithm.begin(flatten(workload.module))
    engine = LocalEngine(attackers.among(participant), examples, clients=len(sizes), start=state.replica, workers=1)
    attacked_engine = AttackedEngine(engine, attackers)
    server = Server(participant.protection, attacked_engine, state, participant.seed, shared_start=True)
    every, curve, diverged = max(1, config.algorithm.rounds // 5), [], False
    try:
        for number in range(1, config.algorithm.rounds + 1):
            with _without_warnings():
                server.advance()
            if number % every == 0 or number == config.algorithm.rounds:
                curve.append([number, round(_accuracy(trainer, server.state.replica.weights, test), 4)])
    except DivergedError:
        diverged = True
    finally:
        engine.close()
    row: Row = {"curve": curve, "diverged": diverged, "refused": server.tally.refused}
    if key["attack"] == "backdoor" and not diverged:
        row["success"] = round(_success(trainer, server.state.replica.weights, test), 4)
    return row | {"seconds": round(perf_counter() - began, 2)}


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The server warns of every sum that it clips: here that is in every round."""
    log = logging.getLogger("sketchfed")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _accuracy(trainer: Trainer, weights: Tensor, chunks: list[Examples]) -> float:
    return sum(trainer.score(weights, chunk)[1] for chunk in chunks) / sum(len(chunk.y) for chunk in chunks)


def _success(trainer: Trainer, weights: Tensor, chunks: list[Examples]) -> float:
    """The share of images of other classes that the trigger turns into its class."""
    marked = []
    for chunk in chunks:
        others = chunk.y != TARGET
        x = triggered(chunk.x[others])
        marked.append(Examples(x, torch.full((len(x),), TARGET)))
    return _accuracy(trainer, weights, marked)


Frozen = tuple[tuple[str, Any], ...]


def _frozen(table: Mapping[str, Any]) -> Frozen:
    return tuple(sorted((key, tuple(value) if isinstance(value, list) else value) for key, value in table.items()))


class _Problem(NamedTuple):
    """What cases with the same data share."""

    workload: Workload
    trainer: Trainer
    clients: list[Examples]
    test: list[Examples]


@lru_cache(maxsize=1)
def _problem(data: Frozen, model: Frozen, seed: int) -> _Problem:
    """Cases with the same data follow each other, so one problem is kept."""
    tables = {"seed": seed, "data": dict(data), "model": {k: list(v) if isinstance(v, tuple) else v for k, v in model}}
    workload = Workload.from_config(load_config(tables))
    clients = [workload.examples(client) for client in range(len(workload.parts))]
    return _Problem(workload, workload.trainer(), clients, workload.test_chunks())
