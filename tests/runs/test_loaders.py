"""Runs on DataLoaders and Datasets that hold generators and worker processes of their own are resumed bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import sketchfed
from sketchfed.runs.own_loop import warn_of_workers

CONFIG = {"algorithm": {"rounds": 4}, "engine": {"checkpoint_seconds": 0}}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def points(seed: int) -> TensorDataset:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :3].argmax(1))


def train(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def evaluate(model, data, context):
    x, y = data.tensors
    return {"loss": functional.cross_entropy(model(x), y)}


def batch_loss(model, batch):
    x, y = batch
    return functional.cross_entropy(model(x), y)


def interrupted(folder, config=CONFIG, **objects):
    def unplug(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, **objects, folder=folder, on_round=unplug)


OWN, LOSS = {"train": train, "evaluate": evaluate}, {"batch_loss": batch_loss}
LOOPS = pytest.mark.parametrize("loop", [OWN, LOSS, {}], ids=["own loop", "batch loss", "pairs"])


def test_a_run_can_be_resumed_while_workers_of_its_loaders_live_on(tmp_path):
    """Worker processes inherit open files, and with them the lock of the run's folder."""
    loader = DataLoader(points(1), batch_size=10, num_workers=1, persistent_workers=True)
    given = {"model": net(), "clients": [loader], "test": points(9), **OWN}
    interrupted(tmp_path, **given)
    assert len(sketchfed.resume(tmp_path, **given).metrics) == 4


class Noisy(Dataset):
    """Points that are moved by draws from a generator that the Dataset holds."""

    def __init__(self, seed: int, kind: str) -> None:
        self.points = points(seed)
        made = {"torch": torch.Generator().manual_seed(1), "numpy": np.random.default_rng(1), "random": random.Random(1)}
        self.parts = {"generator": made[kind]}
        self.move = {
            "torch": lambda draw: torch.randn(4, generator=draw),
            "numpy": lambda draw: torch.from_numpy(draw.normal(size=4)).float(),
            "random": lambda draw: torch.full((4,), draw.gauss(0, 1)),
        }[kind]

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        x, y = self.points[index]
        return x + self.move(self.parts["generator"]), y


def shuffled(seed):
    return DataLoader(points(seed), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3))


def weighted(seed):
    draw = torch.Generator().manual_seed(3)
    return DataLoader(points(seed), batch_size=5, sampler=WeightedRandomSampler([1.0] * 20, 20, generator=draw))


HOLDERS = {
    "loader": shuffled,
    "sampler": weighted,
    "workers": lambda seed: DataLoader(Noisy(seed, "numpy"), batch_size=5, num_workers=1),
    **{kind: lambda seed, kind=kind: DataLoader(Noisy(seed, kind), batch_size=5) for kind in ("torch", "numpy", "random")},
}


@pytest.mark.parametrize("kind", HOLDERS)
@LOOPS
def test_generators_that_loaders_and_datasets_hold_draw_from_the_clients_seed(loop, kind, tmp_path):
    """Whatever they were at before, and afterwards they are as they were."""

    def given():
        return {"model": net(), "clients": [HOLDERS[kind](seed) for seed in range(2)], "test": points(9), **loop}

    objects, whole = given(), sketchfed.run(CONFIG, **given()).weights
    interrupted(tmp_path / "same", **objects)
    assert torch.equal(sketchfed.resume(tmp_path / "same", **objects).weights, whole)
    interrupted(tmp_path / "new", **objects)
    assert torch.equal(sketchfed.resume(tmp_path / "new", **given()).weights, whole)
    assert not torch.equal(sketchfed.run(CONFIG | {"seed": 1}, **given()).weights, whole)


@pytest.mark.parametrize("loop", [LOSS, {}], ids=["batch loss", "pairs"])
def test_examples_read_one_by_one_draw_from_the_clients_seed(loop):
    def given():
        return {"model": net(), "clients": [Noisy(seed, "torch") for seed in range(2)], "test": points(9), **loop}

    config, objects = {"algorithm": {"rounds": 2, "batch": 5}}, given()
    first = sketchfed.run(config, **objects).weights
    assert torch.equal(sketchfed.run(config, **objects).weights, first)
    assert torch.equal(sketchfed.run(config, **given()).weights, first)


def test_persistent_workers_that_may_draw_are_warned_of(caplog):
    """They are started once, so their generators go on from round to round."""
    made = [DataLoader(data, batch_size=10, num_workers=1, persistent_workers=True) for data in (points(1), Noisy(2, "torch"))]
    warn_of_workers(made)
    assert "client 1's DataLoader has persistent workers" in caplog.text
    assert "client 0's" not in caplog.text
