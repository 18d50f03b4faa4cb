"""Datasets with random transforms: every pass draws anew, by the client's own seed, and nobody else's generator moves."""

import random

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.utils.data import Dataset

import sketchfed

CLIENTS = 3


class Jittered(Dataset):
    """Points that are moved at random whenever they are read, by one of the global generators."""

    def __init__(self, first: int, generator: str = "torch", scale: float = 0.3) -> None:
        self.x, self.y = tiny.points(16, first=first)
        self.generator, self.scale = generator, scale

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = {
            "torch": lambda: float(torch.randn(())),
            "numpy": lambda: float(np.random.randn()),  # noqa: NPY002
            "random": lambda: random.gauss(0, 1),
        }[self.generator]()
        return self.x[index] + self.scale * drawn, int(self.y[index])


class Watched(nn.Module):
    """A model that keeps what it was trained on."""

    seen: list[torch.Tensor] = []  # noqa: RUF012

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 3), nn.Dropout(dropout)

    def forward(self, x):
        if self.training:
            Watched.seen.append(x.detach().clone())
        return self.layer(self.dropout(x))


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make()


MODELS = {
    "autograd": lambda: seeded(Watched),
    "dropout": lambda: seeded(lambda: Watched(dropout=0.5)),
    "dense layers": lambda: seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))),
}


def given(generator: str = "torch", model: str = "autograd", **changes) -> dict:
    clients = [Jittered(16 * number, generator) for number in range(CLIENTS)]
    return {"model": MODELS[model](), "clients": clients, "test": tiny.points(30, first=100)} | changes


def config(*, workers: int = 1, rounds: int = 3, algorithm: str = "fedavg", **others) -> dict:
    work = {"name": algorithm, "rounds": rounds, "local_epochs": 2, "batch": 8}
    return {"algorithm": work, "engine": {"workers": workers, "checkpoint_seconds": 0}, **others}


GENERATORS = pytest.mark.parametrize("generator", ["torch", "numpy", "random"])
EVERY = pytest.mark.parametrize(
    ("generator", "model"), [("numpy", "autograd"), ("random", "autograd"), *(("torch", model) for model in MODELS)]
)
"""Every generator and every model: what data draw does not depend on the model."""


@GENERATORS
def test_every_pass_of_every_round_draws_anew(generator):
    """Each example is seen in two passes of three rounds, six times in all, and never twice as the same."""
    objects = given(generator)
    del objects["clients"][1:]
    Watched.seen = []
    sketchfed.run(config(), **objects)
    trained = torch.cat([batch for batch in Watched.seen if len(batch) == 8])
    assert len(trained) == 3 * 2 * 16
    assert len(trained.unique(dim=0)) == len(trained)
    draws = trained[:, None] - objects["clients"][0].x
    nearest = (draws - draws.mean(2, keepdim=True)).norm(dim=2).argmin(1)
    assert nearest.bincount().tolist() == [6] * 16, "each example as often as there are passes"


@EVERY
def test_the_same_run_draws_the_same_whatever_the_generators_were_at(generator, model):
    first = sketchfed.run(config(), **given(generator, model))
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    assert torch.equal(sketchfed.run(config(), **given(generator, model)).weights, first.weights)
    assert not torch.equal(sketchfed.run(config(seed=1), **given(generator, model)).weights, first.weights)


@EVERY
def test_the_number_of_workers_does_not_change_a_bit(generator, model):
    one, several = (sketchfed.run(config(workers=workers), **given(generator, model)).weights for workers in (1, 3))
    assert torch.equal(one, several)


@GENERATORS
def test_a_resumed_run_draws_what_it_would_have_drawn(generator, tmp_path):
    def unplug(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    whole = sketchfed.run(config(rounds=4), **given(generator))
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config(rounds=4), **given(generator), folder=tmp_path, on_round=unplug)
    torch.manual_seed(99)
    assert torch.equal(sketchfed.resume(tmp_path, **given(generator)).weights, whole.weights)


def test_no_generator_outside_is_moved():
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    wanted = torch.rand(1).item(), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    for generator in ("torch", "numpy", "random"):
        sketchfed.run(config(rounds=1), **given(generator))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == wanted  # noqa: NPY002


PROTECTED = {
    "hidden batches": {
        "privacy": {"noise_multiplier": 0.1, "delta": 1e-4, "unit": "example", "insecure_noise_seed": 3},
        "algorithm": {"name": "fedavg", "rounds": 3, "local_steps": 2, "batch": 8},
    },
    "passes": {
        "privacy": {
            **{"noise_multiplier": 0.1, "delta": 1e-4, "unit": "example", "insecure_noise_seed": 3},
            "batches": "passes",
        },
        "algorithm": {"name": "fedavg", "rounds": 3, "local_steps": 1, "batch": 16},
    },
    "secure sums": {
        "privacy": {"name": "discrete_gaussian", "noise_multiplier": 0.1, "delta": 1e-4, "insecure_noise_seed": 3},
        "secure": {},
    },
}


@pytest.mark.parametrize("kind", PROTECTED)
def test_protected_rounds_draw_anew_and_repeatably(kind):
    changes = PROTECTED[kind]
    one, again, frozen = (
        sketchfed.run(config(workers=workers) | changes, **given(model="dense layers"), redraw=redraw).weights
        for workers, redraw in ((1, None), (3, None), (1, False))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, frozen)


def test_the_switch_reads_once_or_always():
    redrawn, frozen, always = (sketchfed.run(config(), **given(), redraw=redraw).weights for redraw in (None, False, True))
    assert torch.equal(redrawn, always)
    assert not torch.equal(redrawn, frozen)


def test_test_data_is_drawn_once():
    test = Jittered(100)
    one, other = (sketchfed.run(config(), **given(test=test)) for _ in range(2))
    assert [line["loss"] for line in one.metrics] == [line["loss"] for line in other.metrics]
