"""Claimed ε beside what an attack in one run proves, through the whole pipeline, with all of the noise and with a quarter."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.algorithms import Algorithm, FedAvg, Iterative, PrivateIterative, RoundContext, SketchSettings
from sketchfed.nn import ModelSketch
from sketchfed.privacy import AuditResult, audit, orthogonal_canaries
from sketchfed.protection import PrivacySettings, Protection, SecureSettings, SecureSums, make_protection
from sketchfed.rounds import LocalEngine, Participant, Server
from sketchfed.runs import Case, Row
from sketchfed.training import Examples, LocalWork, Turn
from sketchfed.wire import unpack
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.tables import write_table

LOUD = 2.0
"""Canaries are this many times longer than the clip norm. After any sketch, clipping leaves them at that norm."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An algorithm with its protection, and what the observer of its claim gets to see."""

    algorithm: Algorithm
    privacy: Mapping[str, Any]
    secure: SecureSettings | None = None
    clients: int | None = None
    """The number of clients that get the canaries as examples. If absent, each canary is a client."""


def pipelines(size: int) -> dict[str, Pipeline]:
    """Everything that claims an ε."""
    sketch, example = SketchSettings(size=size), {"unit": "example"}
    one_step = replace(Iterative(sketch=sketch), local_steps=1, local_rate=1.0, batch=2**20)
    published = replace(PrivateIterative(sketch=sketch), local_steps=1, local_rate=1.0, batch=2**20)
    return {
        "whole updates, trusted server": Pipeline(algorithm=FedAvg(), privacy={"observer": "public"}),
        "sketches, trusted server": Pipeline(algorithm=Iterative(sketch=sketch), privacy={"observer": "public"}),
        "sketches, all noise from each": Pipeline(algorithm=Iterative(sketch=sketch), privacy={"observer": "server"}),
        "sketches of examples, trusted server": Pipeline(
            algorithm=one_step, privacy={"observer": "public", **example}, clients=5
        ),
        "sketches of examples, secure sums": Pipeline(
            algorithm=one_step,
            privacy={"name": "discrete_gaussian", **example},
            secure=SecureSettings(survivors=1.0),
            clients=5,
        ),
        "private_iterative, noise in steps": Pipeline(
            algorithm=published, privacy={"placement": "steps", **example}, clients=5
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`rounds` of training with canaries of which each is there by a coin's toss; `seeds` audits of each claim."""

    canaries: int
    size: int
    dim: int
    rounds: int
    epsilons: list[float]
    shares: list[float]
    delta: float
    seeds: list[int]
    processes: int


class Echo:
    """A trainer whose examples are the gradients: what a canary adds to a sum is then known exactly."""

    sequential = False

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def check(self, examples: Examples) -> None:
        """Anything will do."""

    def train(self, weights: Tensor, examples: Examples, work: LocalWork, turn: Turn) -> Tensor:
        return weights - examples.x.sum(0)

    def gradients(self, weights: Tensor, examples: Examples, out: Tensor | None = None) -> Tensor:
        return examples.x

    def clipped_sum(self, weights: Tensor, examples: Examples, clip: float) -> Tensor:
        scales = (clip / examples.x.norm(dim=1).clamp(min=1e-30)).clamp(max=1.0)
        return torch.mv(examples.x.t(), scales)

    def sketched(self, form: ModelSketch) -> "Echo":
        return Echo(form.size)

    def gram(self, step: Tensor) -> Tensor:
        return step

    def outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        return x

    def score(self, weights: Tensor, examples: Examples) -> tuple[float, int]:
        return 0.0, 0


class Watched(LocalEngine):
    """An engine whose bytes somebody reads."""

    seen: Mapping[int, bytes]

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        self.seen = super().ask(requests, stage)
        return dict(self.seen)


def audited(pipeline: Pipeline, settings: Settings, *, epsilon: float, share: float, seed: int) -> AuditResult:
    """An audit of a run that claims ε and adds `share` of the noise for it."""
    public = PublicSeed(seed)
    canaries = orthogonal_canaries(count=settings.canaries, size=settings.dim, clip=LOUD, seed=public)
    return audit(
        lambda included: _scores(pipeline, settings, canaries, included, epsilon, share, public),
        canaries=settings.canaries,
        delta=settings.delta,
        seed=public,
    )


def _scores(
    pipeline: Pipeline,
    settings: Settings,
    canaries: Tensor,
    included: npt.NDArray[np.bool_],
    epsilon: float,
    share: float,
    seed: PublicSeed,
) -> npt.NDArray[np.float64]:
    """How much of each canary is in what the observer saw, over all rounds."""
    count = pipeline.clients or settings.canaries
    present = torch.from_numpy(included)[:, None] * canaries
    home = torch.arange(settings.canaries) % count
    data = [_examples(present[home == client], keep_zeros=pipeline.clients is None) for client in range(count)]
    algorithm = replace(pipeline.algorithm, rounds=settings.rounds).resolved(settings.dim, count)
    noise = int(seed.child("noise").words(1)[0])  # so that an audit can be repeated
    privacy = PrivacySettings(epsilon=epsilon, delta=settings.delta, clip=1.0, insecure_noise_seed=noise, **pipeline.privacy)
    sizes = [max(1, len(part.x)) for part in data]
    made: dict[str, Any] = {"secure": pipeline.secure, "dim": settings.dim, "sizes": sizes, "seed": seed}
    claimed = make_protection(algorithm, privacy=privacy, **made)
    assert claimed.budget is not None
    weaker = replace(claimed.budget.settings, epsilon=None, noise_multiplier=share * claimed.budget.multiplier)
    really = make_protection(algorithm, privacy=weaker, **made)
    server = _federation(really, data, seed)
    scores = torch.zeros(settings.canaries)
    for index in range(settings.rounds):
        before = server.state.replica.weights
        server.advance()
        code = claimed.code(RoundContext(round=index, seed=seed, client=0))
        rows = code.apply(canaries)
        if claimed.central or isinstance(claimed, SecureSums):
            moved = server.state.replica.weights - before  # all that anyone is told, for the seed of the sketch is public
            scores -= rows @ code.apply(moved)
        else:
            replies = torch.stack([_values(server, claimed, client, seed, index) for client in range(count)])
            scores -= (rows * replies[home]).sum(1)
    return scores.double().numpy()


def _examples(rows: Tensor, *, keep_zeros: bool) -> Examples:
    """What a client has: at example level only the canaries that are there."""
    kept = rows if keep_zeros else rows[rows.any(1)]
    return Examples(kept, torch.zeros(len(kept), dtype=torch.int64))


def _federation(protection: Protection, data: list[Examples], seed: PublicSeed) -> Server:
    algorithm, trainer = protection.algorithm, Echo(protection.dim)
    state = algorithm.begin(torch.zeros(protection.dim))
    participant = Participant(trainer=trainer, seed=seed, protection=protection)
    engine = Watched(participant, data.__getitem__, clients=len(data), start=state.replica, workers=1)
    return Server(protection, engine, state, seed, shared_start=True)


def _values(server: Server, protection: Protection, client: int, seed: PublicSeed, index: int) -> Tensor:
    assert isinstance(server.engine, Watched)
    return protection.code(RoundContext(round=index, seed=seed, client=client)).values(unpack(server.engine.seen[client]))


def arms(settings: Settings) -> list[Case]:
    return [
        Case(key={"pipeline": name, "epsilon": epsilon, "share": share, "seed": seed}, tables=asdict(settings))
        for name in pipelines(settings.size)
        for epsilon in settings.epsilons
        for share in settings.shares
        for seed in settings.seeds
    ]


def compute(arm: Case) -> Row:
    settings = Settings(**arm.tables)
    key = dict(arm.key)
    pipeline = pipelines(settings.size)[key["pipeline"]]
    found = audited(pipeline, settings, epsilon=key["epsilon"], share=key["share"], seed=key["seed"])
    return {"key": key, "lower": round(found.lower, 4), "guesses": found.guesses, "correct": found.correct}


def run(settings: Settings, folder: Path) -> None:
    """Audit every pipeline, honest and with too little noise, and say whose claim is refuted."""
    made = arms(settings)
    rows = run_arms(made, folder / "results.jsonl", processes=settings.processes, title="audits", compute=compute)
    lines = []
    for name in pipelines(settings.size):
        for epsilon in settings.epsilons:
            cells = [_found(rows, name, epsilon, share) for share in settings.shares]
            lines.append([name, f"{epsilon:g}", *cells])
    headings = ["pipeline", "claimed ε", *(_heading(share) for share in settings.shares)]
    write_table(folder / "table.md", headings, lines, printed=range(len(headings)))


def _heading(share: float) -> str:
    return "proven ε, all noise" if share == 1 else f"proven ε, {share:g} of the noise"


def _found(rows: list[Row], name: str, epsilon: float, share: float) -> str:
    """The lower bounds of all seeds, and how many exceed the claim."""
    wanted = {"pipeline": name, "epsilon": epsilon, "share": share}
    lower = [row["lower"] for row in rows if wanted.items() <= row["key"].items()]
    caught = sum(bound > epsilon for bound in lower)
    return f"{min(lower):.2f} to {max(lower):.2f}, refuted {caught} of {len(lower)}"
