"""Nicolas et al. 2025: how much of the true gradient the subspace of each round captures, beside what it could capture."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.algorithms import Dome, Replica, RoundContext
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, InputError
from sketchfed.rounds import LocalEngine, Server
from sketchfed.runs import Case, Row, Workload, captured_share, descent, training_sample
from sketchfed.subspaces import UPDATES
from sketchfed.training import Trainer, one_thread
from sketchfed.vectors import flatten
from sketchfed.wire import unpack
from sketchfed_lab.experiments import dome_energy_report
from sketchfed_lab.experiments.arms import run_arms

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run for each data set, size, rule and ε; 0 stands for training without clipping and noise.

    A rule is what [subspace] says beside the size: its `name`, and options. Rules that follow nothing have the same subspaces
    with and without noise, and so they run without. `clips` has the clip norm of each size.
    """

    data: list[str]
    sizes: list[int]
    clips: list[float]
    rules: list[dict[str, Any]]
    epsilons: list[float]
    delta: float
    clients: int
    hidden: int
    batch: int
    rate: float
    rounds: int
    seed: int
    processes: int

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.clips):
            raise InputError(f"give a clip norm for each size: {len(self.clips)} clips, {len(self.sizes)} sizes.")


def arms(settings: Settings) -> list[Case]:
    return [
        _arm(settings, data, size, clip, rule, epsilon)
        for data in settings.data
        for epsilon in settings.epsilons
        for size, clip in zip(settings.sizes, settings.clips, strict=True)
        for rule in settings.rules
        if not epsilon or _follows(rule, size)
    ]


def _follows(rule: Mapping[str, Any], size: int) -> bool:
    kind = UPDATES[rule["name"]]
    return kind(**{option.name: rule[option.name] for option in fields(kind) if option.name in rule}).tracked(size) > 0


def _arm(settings: Settings, data: str, size: int, clip: float, rule: Mapping[str, Any], epsilon: float) -> Case:
    """One run. Its noise comes from a fixed seed, so that it can be repeated: it is an experiment, and protects nobody."""
    tables: dict[str, Any] = {
        "seed": settings.seed,
        "data": {"name": data, "clients": settings.clients},
        "model": {"name": "mlp", "hidden": [settings.hidden]},
        "algorithm": {
            "name": "dome",
            "rounds": settings.rounds,
            "batch": settings.batch,
            "local_steps": 1,
            "local_rate": 1.0,
            "global_rate": settings.rate,
        },
        "subspace": {**rule, "size": size},
    }
    if epsilon:
        tables["privacy"] = {
            "unit": "example",
            "observer": "public",
            "epsilon": epsilon,
            "delta": settings.delta,
            "clip": clip,
            "insecure_noise_seed": settings.seed,
        }
    shared = {name: getattr(settings, name) for name in ("clients", "hidden", "batch", "rate", "rounds", "seed")}
    key = {"data": data, "epsilon": epsilon, "size": size, "clip": clip if epsilon else None, "rule": dict(rule)}
    return Case(key=key | shared, tables=tables)


def run(settings: Settings, folder: Path) -> None:
    """Train and look at every round (results.jsonl), then write table.md and figure.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="runs", compute=followed)
    dome_energy_report.write(rows, folder)


def followed(arm: Case) -> Row:
    """Train as the arm says; each round, before it, how much of the true mean gradient is where.

    A number a round: `captured`, the share of its energy in S; `hindsight`, in the best subspace of the same size for all of
    this run's gradients; `past`, in as many leading directions of all gradients before it; `last`, in the direction of the one
    before it; `cosine`, that between it and what everyone made of the broadcast; and `sampling`, the share
    of it that is due to measuring it on a sample. `ranks` are how many directions have 90 % and 99 % of it in hindsight.
    """
    with one_thread():
        workload, trainer, server, algorithm = _federation(arm)
        sample, own = training_sample(workload, server.seed.child("captured")), server.seed.child("captured")
        gradients: list[Tensor] = []
        shares: dict[str, list[float]] = {"captured": [], "cosine": [], "sampling": []}
        diverged = False
        while server.round < algorithm.rounds and not diverged:
            replica = server.state.replica
            parts = [descent(trainer, replica.weights, chunk, own) for chunk in sample]
            gradient = reduce(torch.add, parts)
            context = RoundContext(round=replica.round, seed=server.seed, client=0, replica=replica)
            share = captured_share(algorithm.code(len(gradient), context), [gradient])
            assert share is not None, "every round of these rules carries gradients"
            try:
                server.advance()
            except DivergedError:
                if not gradients:
                    raise
                diverged = True
                break
            gradients.append(torch.nn.functional.normalize(gradient, dim=0))
            shares["captured"].append(share)
            shares["cosine"].append(float(torch.nn.functional.cosine_similarity(_arrived(server, replica), gradient, dim=0)))
            shares["sampling"].append(sampling_share(parts))
        scores = [trainer.score(server.state.replica.weights, chunk) for chunk in workload.test_chunks()]
    gram = inner_products(gradients)
    size = algorithm.subspace.size_for(trainer.dim)
    found = shares | {
        "hindsight": hindsight(gram, size),
        "past": [leading_share(gram[: t + 1, : t + 1], size) for t in range(len(gram))],
        "last": [0.0, *np.square(np.diag(gram, -1))][: len(gram)],
    }
    short = {name: [float(f"{value:.4g}") for value in values] for name, values in found.items()}
    about = {"dim": trainer.dim, "diverged": diverged, "accuracy": workload.summarise(scores).accuracy}
    spent = {} if server.epsilon is None else {"epsilon": server.epsilon}
    return {"key": dict(arm.key), **about, **spent, "ranks": [rank(gram, 0.9), rank(gram, 0.99)], **short}


def _arrived(server: Server, replica: Replica) -> Tensor:
    """What the clients that started from this replica let everyone know of the change, `(dim,)`."""
    context = RoundContext(round=replica.round, seed=server.seed, client=0, replica=replica)
    code = server.algorithm.code(len(replica.weights), context)
    values = unpack(server.tally.updates[-1]).arrays["values"]
    assert code is not None
    assert isinstance(values, Tensor)
    return code.adjoint(values if code.offset is None else values + code.offset)


def _federation(arm: Case) -> tuple[Workload, Trainer, Server, Dome]:
    config = load_config(dict(arm.tables))
    workload = Workload.from_config(config)
    trainer, sizes, module = workload.trainer(), [len(part) for part in workload.parts], workload.module
    config = config.completed(dim=trainer.dim, sizes=sizes, module=module)
    participant = config.participant(trainer, sizes, module)
    algorithm = participant.algorithm
    assert isinstance(algorithm, Dome)
    state = algorithm.begin(flatten(module))
    engine = LocalEngine(participant, workload.examples, clients=len(sizes), start=state.replica, workers=1)
    server = Server(participant.protection, engine, state, participant.seed, shared_start=True)
    return workload, trainer, server, algorithm


def sampling_share(parts: list[Tensor]) -> float:
    """Which share of the energy of a sum of parts, each on examples of its own, is there because they are no other examples."""
    rows = torch.stack(parts).double()
    mean = rows.mean(0)
    noise = (rows - mean).square().sum() / (len(rows) * (len(rows) - 1))
    return float(noise / mean.square().sum())


def inner_products(gradients: list[Tensor]) -> Floats:
    """Of all with all, `(rounds, rounds)`."""
    rows = torch.stack(gradients).double()
    return np.asarray((rows @ rows.T).numpy(), np.float64)


def hindsight(gram: Floats, size: int) -> list[float]:
    """The share of each unit vector in the subspace of this dimension that captures the most of all of them together."""
    values, vectors = np.linalg.eigh(gram)
    leading = vectors[:, -size:] * np.sqrt(np.clip(values[-size:], 0, None))
    return [float(min(share, 1.0)) for share in np.square(leading).sum(1)]


def rank(gram: Floats, share: float) -> int:
    """How many directions it takes for this share of the energy of all."""
    so_far = np.cumsum(np.linalg.eigvalsh(gram)[::-1])
    return min(int(np.searchsorted(so_far, share * so_far[-1])) + 1, len(gram))


def leading_share(gram: Floats, size: int) -> float:
    """The share of the last of some unit vectors in the `size` leading directions of those before it."""
    before, last = gram[:-1, :-1], gram[:-1, -1]
    if not len(before):
        return 0.0
    values, vectors = np.linalg.eigh(before)
    known = values > 1e-10 * values[-1]
    known[: max(0, len(values) - size)] = False
    return float(min(np.square(vectors[:, known].T @ last / np.sqrt(values[known])).sum(), 1.0))
