"""How well gradient matching recovers a client's example from the bytes it sent: against the size of sketches, and noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from sketchfed import PublicSeed
from sketchfed.algorithms import Algorithm, FedAvg, Iterative, RoundContext, SketchSettings
from sketchfed.attacks import Matching, Observation, inferred
from sketchfed.draws import normals
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.privacy import Charge, Claim, epsilon_of
from sketchfed.protection import Clear
from sketchfed.rounds import Participant
from sketchfed.runs import Case, Row
from sketchfed.sketches import SKETCHES, Sketch
from sketchfed.training import LOSSES, Examples, make_trainer, one_thread
from sketchfed.vectors import Layout, flatten
from sketchfed.wire import unpack
from sketchfed_lab.experiments import audit_reconstruction_report
from sketchfed_lab.experiments.arms import run_arms
from sketchfed_lab.experiments.audit_reconstruction_targets import ACTIVATIONS, Decoder, Target, target

WHOLE = "whole"
"""In place of a sketch family: the change as it is."""
DELTA = 1e-5
STRIP = 256
"""Rows of a Gaussian sketch that are drawn at a time."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A cell for each data set and sketch (`families` of size `ratios`·dim), and for each of `noises` in two places.

    A noise is ‖n‖/‖g‖, added to the whole change, and to an SRHT sketch of `noisy_ratio`·dim numbers. A victim is a client
    with one example of the test part that takes one step in the first round. In each cell the attack tries all `variations`
    (images) or `sharpness` (rows) on `validation` clients of the adversary's own, with examples out of the `public` ones that
    it holds, and goes with the best against the `victims`.
    """

    data: list[str]
    families: list[str]
    ratios: list[float]
    noises: list[float]
    noisy_ratio: float
    victims: int
    validation: int
    public: int
    activation: str
    channels: int
    hidden: int
    iterations: int
    variations: list[float]
    sharpness: list[float]
    seed: int
    processes: int

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise UnknownNameError("activation", self.activation, ACTIVATIONS)
        if max(self.victims, self.validation) > Matching.most:
            raise InputError(
                f"victims are attacked side by side, {Matching.most} at most, got victims = {self.victims} and validation = "
                f"{self.validation}. Use fewer, and other seeds for more."
            )


def arms(settings: Settings) -> list[Case]:
    """Every cell; the sketch of `noisy_ratio` without noise is there once."""
    sketched = [(family, float(ratio), 0.0) for ratio in settings.ratios for family in settings.families]
    places = ((WHOLE, 1.0), ("srht", float(settings.noisy_ratio)))
    noisy = [(*place, float(noise)) for place in places for noise in settings.noises]
    unlike = {"data", "families", "ratios", "noises", "noisy_ratio", "processes"}
    shared = {name: value for name, value in asdict(settings).items() if name not in unlike}
    return [
        Case(key={"data": data, "family": family, "ratio": ratio, "noise": noise, **shared}, tables={})
        for data in settings.data
        for family, ratio, noise in dict.fromkeys(sketched + noisy)
    ]


def run(settings: Settings, folder: Path) -> None:
    """Attack in every cell (results.jsonl), then write table.md and figure.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="cells", compute=attacked)
    audit_reconstruction_report.write(rows, folder)


def attacked(arm: Case) -> Row:
    """Choose the attack on clients of the adversary's own, then attack the victims."""
    key = dict(arm.key)
    seed = PublicSeed(key["seed"])
    with one_thread():
        aim = target(key["data"], **{name: key[name] for name in ("public", "activation", "channels", "hidden")}, seed=seed)
        victims = aim.victims(key["victims"], seed.child("victims"))
        own = aim.own(key["validation"], seed.child("validation"))
        options = key["sharpness"] if aim.columns else key["variations"]
        trials = {option: _attempt(aim, own, key, option, first=len(victims.x)) for option in options}
        best = max(trials, key=lambda option: _merit(trials[option]))
        found = _attempt(aim, victims, key, best, first=0)
    usual = aim.closeness(aim.typical().expand_as(victims.x), victims)
    main = next(iter(usual))
    row = {
        "key": key,
        "dim": len(flatten(aim.model)),
        "unknowns": math.prod(aim.shape),
        **found,
        "failures": sum(own <= other for own, other in zip(found["scores"][main], usual[main], strict=True)),
        "chance": {name: float(f"{mean(values):.4g}") for name, values in usual.items()},
        "chosen": best,
    }
    return row | ({"epsilon": _epsilon(key["noise"], found["size"])} if key["noise"] else {})


def _attempt(aim: Target, examples: Examples, key: Mapping[str, Any], option: float, *, first: int) -> dict[str, Any]:
    """One attack with one setting on clients with these examples, numbered from `first`, and how close it came.

    A guess that is not finite counts as broken, and the adversary falls back on what is typical.
    """
    seed = PublicSeed(key["seed"]).child("run")
    algorithm = algorithm_of(key["family"], key["ratio"])
    sent = messages(algorithm, aim.model, examples, seed, first=first)
    seen = observed(algorithm, aim.model, sent, seed, first=first, noise=key["noise"])
    labels = torch.cat([inferred(each, count=1) for each in seen])
    attack = Matching(iterations=key["iterations"], variation=0.0 if aim.columns else option)
    decoder = aim.decoder(option if aim.columns else 0.0)
    together = side_by_side(seen, decoder)
    unit = attack.reconstruct(together, shape=aim.shape, seed=seed.child("start", first), count=len(seen), y=labels).x
    guess, usual = decoder(unit), aim.typical()
    broken = ~guess.flatten(1).isfinite().all(1)
    guess[broken] = usual
    return {
        "size": len(seen[0].values),
        "bytes": len(sent[0]),
        "scores": aim.closeness(guess, examples),
        "labels": float((labels == examples.y).double().mean()),
        **aim.recognised(guess, examples),
        "broken": int(broken.sum()),
    }


def _merit(found: Mapping[str, Any]) -> tuple[float, ...]:
    """By mean PSNR for images; for rows by categories, then by numbers."""
    scores = {name: mean(values) for name, values in found["scores"].items()}
    return (scores["psnr"],) if "psnr" in scores else (scores["categories"], -scores["numbers"])


def _epsilon(noise: float, size: int) -> float:
    """What one release with this noise would cost a client whose values are clipped at just their norm, at `DELTA`."""
    claim = Claim(unit="client", adjacency="zero-out", observer="server", delta=DELTA)
    return float(f"{epsilon_of({Charge(multiplier=noise / math.sqrt(size)): 1}, claim):.4g}")


def algorithm_of(family: str, ratio: float) -> Algorithm:
    """One local step on all that a client has; its change goes whole, or as a sketch."""
    if family == WHOLE:
        return FedAvg(local_steps=1)
    return Iterative(sketch=SketchSettings(name=family, ratio=ratio), local_steps=1)


def messages(algorithm: Algorithm, model: nn.Module, examples: Examples, seed: PublicSeed, *, first: int = 0) -> list[bytes]:
    """What clients with one of these examples each send in the first round, as bytes."""
    trainer, replica = make_trainer(model, "cross_entropy"), algorithm.begin(flatten(model)).replica
    protection = Clear(algorithm=algorithm, dim=trainer.dim, sizes=(1,) * (first + len(examples.x)))
    participant = Participant(trainer=trainer, seed=seed, protection=protection)
    held = [Examples(x[None], y[None]) for x, y in zip(*examples, strict=True)]
    return [participant.answer(replica, each, None, first + place)[0] for place, each in enumerate(held)]


def observed(
    algorithm: Algorithm, model: nn.Module, sent: Sequence[bytes], seed: PublicSeed, *, first: int = 0, noise: float = 0.0
) -> list[Observation]:
    """What the server makes of these bytes: values, and the map that everyone rebuilds from the public seed.

    `noise` is ‖n‖/‖values‖, in expectation of squares, of Gaussian noise that is added to the values.
    """
    weights, found = flatten(model), []
    for client, message in enumerate(sent, start=first):
        context = RoundContext(round=0, seed=seed, client=client)
        code = algorithm.code(len(weights), context)
        values = code.values(unpack(message))
        if noise:
            draws = np.random.default_rng(seed.child("noise", client).words(4)).standard_normal(len(values), np.float32)
            values = values + noise * values.norm() / math.sqrt(len(values)) * torch.from_numpy(draws)
        found.append(
            Observation(
                values=values,
                map=written(code.map) if isinstance(code.map, SKETCHES["gaussian"]) else code.map,
                module=model,
                loss=LOSSES["cross_entropy"],
                weights=weights,
                work=algorithm.work,
                seed=context.own,
            )
        )
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """A sketch as a matrix, `(size, dim)`, for who applies it thousands of times."""

    matrix: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.matrix.T

    def adjoint(self, y: Tensor) -> Tensor:
        return y @ self.matrix


@lru_cache(maxsize=1)
def written(sketch: Sketch) -> Written:
    """The matrix that a Gaussian sketch draws anew whenever it is applied."""
    strips = torch.split(torch.arange(sketch.size), STRIP)
    rows = [normals(sketch.seed, sketch.dim, rows=strip) for strip in strips]
    return Written(matrix=torch.cat(rows).div_(math.sqrt(sketch.size)))


@dataclass(frozen=True, kw_only=True, eq=False)
class SideBySide(Observation):
    """What several clients of one example each sent after one step: their values one after another, each of norm 1.

    So the cosine distance is the mean of theirs, and steps by the signs of its gradients are those of as many separate attacks,
    in a fraction of the time.
    """

    def seen(self, x: Tensor, y: Tensor) -> Tensor:
        layout = Layout.of(self.module)

        def loss(weights: Tensor, one: Tensor, label: Tensor) -> Tensor:
            return self.loss(functional_call(self.module, layout.views(weights), (one[None],)), label[None])

        changes: Tensor = -self.work.rate * vmap(grad(loss), in_dims=(None, 0, 0))(self.weights, x, y)
        return functional.normalize(changes if self.map is None else self.map.apply(changes), dim=1).reshape(-1)


def side_by_side(seen: Sequence[Observation], decoder: Decoder) -> SideBySide:
    """Observations of one round as one, of a model that takes what the decoder takes."""
    first = seen[0]
    return SideBySide(
        values=torch.cat([functional.normalize(each.values, dim=0) for each in seen]),
        map=first.map,
        module=nn.Sequential(decoder, first.module),
        loss=first.loss,
        weights=first.weights,
        work=first.work,
        seed=first.seed,
    )
