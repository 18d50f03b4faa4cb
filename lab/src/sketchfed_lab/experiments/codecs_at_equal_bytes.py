"""Every codec carrying FedAvg's updates, beside iterative sketching and FetchSGD: accuracy at equal bytes on Fashion-MNIST."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sketchfed.codecs import CODECS, fit
from sketchfed.errors import UnknownNameError
from sketchfed.runs import Case, Row
from sketchfed.wire import Packet, pack
from sketchfed_lab.experiments import codecs_at_equal_bytes_report
from sketchfed_lab.experiments.arms import best_of, run_arms

SPREADS: dict[str, dict[str, Any]] = {
    "iid": {"partition": "iid"},
    "dirichlet": {"partition": "dirichlet", "concentration": 0.3},
}
FEEDBACK, PREDICTION = {"error_feedback": True}, {"prediction": True}
METHODS: dict[str, dict[str, Any]] = {
    "sketched": {"codec": "sketched"},
    "sketched, 32 bits": {"codec": "sketched", "bits": 32},
    "sketched, feedback": {"codec": "sketched", **FEEDBACK},
    "rand_k": {"codec": "rand_k"},
    "rand_k, feedback": {"codec": "rand_k", **FEEDBACK},
    "rand_k, prediction": {"codec": "rand_k", **PREDICTION},
    "rand_k_spatial": {"codec": "rand_k_spatial"},
    "rand_proj_spatial": {"codec": "rand_proj_spatial"},
    "top_k, feedback": {"codec": "top_k", **FEEDBACK},
    "top_k, feedback, 32 bits": {"codec": "top_k", "bits": 32, **FEEDBACK},
    "top_k, feedback, prediction": {"codec": "top_k", **FEEDBACK, **PREDICTION},
    "wangni": {"codec": "wangni"},
    "induced": {"codec": "induced"},
    "qsgd": {"codec": "qsgd"},
    "sign, feedback": {"codec": "sign", **FEEDBACK},
    "eden": {"codec": "eden"},
    "eden, feedback": {"codec": "eden", **FEEDBACK},
    "correlated": {"codec": "correlated"},
    "iterative": {"algorithm": "iterative", "codec": "sketched"},
    "fetchsgd": {"algorithm": "fetchsgd"},
}
"""What is compared: an algorithm, FedAvg unless said otherwise, the codec of its updates, their bits, and its settings."""
SAME_STEPS = {"iterative": "sketched"}
"""Methods that take the steps of another one, and so its tuning: they differ in what travels down."""
SPARE = {"wangni": 0.88}
"""How many numbers `wangni` sends depends on the update: here it takes more than on the normal vector that `fit` measures."""
ROWS = 5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The grid. A budget is 4·dim/inverse bytes a reply; codecs that send numbers as such round them to `bits` bits."""

    methods: list[str]
    inverse_budgets: list[int]
    spreads: list[str]
    clients: int
    hidden: int
    participants: int
    batch: int
    local_rate: float
    bits: int
    rates: list[float]
    largest_rate: float
    rounds: int
    tuning_rounds: int
    seeds: list[int]
    processes: int

    @property
    def dim(self) -> int:
        return 784 * self.hidden + self.hidden + 10 * self.hidden + 10


Place = tuple[str, int]
"""A method and the inverse of its budget; ("dense", 1) is FedAvg without compression."""
WHERE = ("spread", "method", "inverse")
Choice = Mapping[str, Any]
"""What is sent: `size` numbers of `bits` bits; None for what the method has not."""


def choice(settings: Settings, method: str, inverse: int) -> Choice:
    """The largest packets of a method within a budget."""
    how = METHODS[method]
    budget = 4 * settings.dim // inverse - _envelope()
    if "codec" not in how:
        return {"size": _cells(budget), "bits": None}
    codec = how["codec"]
    default = next((field.default for field in fields(CODECS[codec]) if field.name == "bits"), None)
    bits = {"bits": how.get("bits", settings.bits)} if default == 32 else {}
    budget = int(SPARE.get(codec, 1) * budget)
    fitted = fit(codec, dim=settings.dim, budget=budget, clients=settings.participants, **bits)
    return {"size": getattr(fitted, "size", None), "bits": getattr(fitted, "bits", None)}


@cache
def _envelope() -> int:
    """Bytes that a reply has beside its codec's packet: the number of the round."""
    packet = Packet(kind="reply", arrays={})
    return len(pack(packet.stamped(round=0))) - len(pack(packet))


def _cells(budget: int) -> int:
    """Cells of FetchSGD's table, which are float32."""
    columns = budget // (4 * ROWS)
    while len(pack(Packet(kind="table", arrays={"values": torch.zeros(ROWS, columns)}))) > budget:
        columns -= 1
    return ROWS * columns


def arm(
    settings: Settings, spread: str, method: str, inverse: int, sent: Choice, *, rate: float, seed: int, **how: Any
) -> Case:
    """One run; `rounds` and `validation` are in `how`. The method "dense" is FedAvg without compression."""
    described = dict(METHODS.get(method, {}))
    name, codec, _ = described.pop("algorithm", "fedavg"), described.pop("codec", "dense"), described.pop("bits", None)
    work = {
        "participation": settings.participants / settings.clients,
        "batch": settings.batch,
        "local_rate": settings.local_rate,
    }
    tables: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "fashion_mnist", "clients": settings.clients, "validation": how["validation"], **SPREADS[spread]},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {"name": name, **work, **described, "rounds": how["rounds"], "global_rate": rate, "global_momentum": 0.0},
        "engine": {"evaluate_every": 5},
    }
    table = {key: value for key, value in sent.items() if value is not None}
    if name == "fetchsgd":
        tables["algorithm"] |= {"rows": ROWS}
        tables["sketch"] = {"name": "count", **table}
    elif codec == "sketched":
        tables["sketch"] = {"name": "srht", **table}
    if name == "fedavg":
        tables["codec"] = {"name": codec} if codec == "sketched" else {"name": codec, **table}
    key = {"spread": spread, "method": method, "inverse": inverse, **sent, "rate": rate, "seed": seed, **how}
    return Case(key=key, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Tune every method by the same rule on a validation split of the training data, run it with all seeds, and write it up."""
    for method in settings.methods:
        if method not in METHODS:
            raise UnknownNameError("method", method, METHODS)
    sent: dict[Place, Choice] = {("dense", 1): {"size": None, "bits": None}}
    sent |= {
        (method, inverse): choice(settings, method, inverse)
        for method in settings.methods
        for inverse in settings.inverse_budgets
    }
    same = {method: other for method, other in SAME_STEPS.items() if other in settings.methods}
    own = {place: what for place, what in sent.items() if place[0] not in same}
    rates = tuned(settings, own, folder / "tuning.jsonl")
    final = [  # seed by seed, so that what is there at any time is balanced
        arm(settings, spread, method, inverse, what, rate=rate, seed=seed, rounds=settings.rounds, validation=0.0)
        for seed in settings.seeds
        for (method, inverse), what in sent.items()
        for spread in settings.spreads
        for rate in [rates[spread, same.get(method, method), inverse]]
    ]
    results = run_arms(final, folder / "results.jsonl", processes=settings.processes, title="runs")
    codecs_at_equal_bytes_report.write(results, folder, participants=settings.participants)


def tuned(settings: Settings, sent: Mapping[Place, Choice], path: Path) -> dict[tuple[str, str, int], float]:
    """The best rate for each spread, method and budget; where it is the largest that was tried, twice that is tried too."""
    rounds = settings.tuning_rounds
    wanted = [((spread, *place), rate) for spread in settings.spreads for place in sent for rate in settings.rates]
    rows: list[Row] = []
    while True:
        arms = [
            arm(settings, *where, sent[where[1:]], rate=rate, seed=100, rounds=rounds, validation=0.1) for where, rate in wanted
        ]
        rows += run_arms(arms, path, processes=settings.processes, title="tuning")
        best = {_where(row): row["key"]["rate"] for row in best_of(rows, WHERE, quality).values()}
        tried = {where: max(row["key"]["rate"] for row in rows if _where(row) == where) for where in best}
        wanted = [(where, 2 * rate) for where, rate in best.items() if rate == tried[where] < settings.largest_rate]
        if not wanted:
            return best


def _where(row: Row) -> tuple[str, str, int]:
    return row["key"]["spread"], row["key"]["method"], row["key"]["inverse"]


def quality(row: Row) -> float:
    """What tuning maximises: minus the held-out loss, the mean of the last three scores, for large steps make it jump."""
    last = [point[1] for point in row["curve"][-3:]]
    return -sum(last) / len(last) if last and not row["diverged"] else float("-inf")
