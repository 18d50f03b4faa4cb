"""The number of workers changes nothing: neither with random transforms, nor with dropout, nor with a client that raises."""

import random

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.utils.data import Dataset

import sketchfed

CLIENTS = 6
BAD = 1e6
WORKERS = 1, 3


class Points(Dataset):
    """Points that all three global generators move, if `moved`; item 5 cannot be read, if `broken`."""

    def __init__(self, first: int, *, moved: bool, broken: bool = False) -> None:
        self.x, self.y = tiny.points(16, first=first)
        self.moved, self.broken = moved, broken

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.broken and index == 5:
            raise OSError("the disk is gone")
        move = torch.randn(4) + np.random.randn() + random.gauss(0, 1) if self.moved else 0.0  # noqa: NPY002
        return self.x[index] + 0.1 * move, int(self.y[index])


class Net(nn.Module):
    """Raises where an input is beyond reason, and may draw at random."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(4, 8), nn.Linear(8, 3), nn.Dropout(dropout)

    def forward(self, x):
        if bool((x.detach().abs() >= BAD).any()):
            raise ValueError("an input is beyond reason")
        return self.outer(self.dropout(torch.tanh(self.inner(x))))


def made(make) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make()


MODELS = {
    "plain": lambda: made(lambda: Net(0.0)),
    "dropout": lambda: made(lambda: Net(0.5)),
    "dense layers": lambda: made(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))),
}


def given(model: str, *, moved: bool, raises: str) -> dict:
    clients = [Points(16 * number, moved=moved, broken=raises == "data" and number == 2) for number in range(CLIENTS)]
    if raises == "model":
        clients[2].x[:] = BAD
    return {"model": MODELS[model](), "clients": clients, "test": tiny.points(30, first=200)}


def timeless(run) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics]


@pytest.mark.parametrize("moved", [False, True], ids=["as they are", "random transforms"])
@pytest.mark.parametrize("raises", ["nobody", "data", "model"])
@pytest.mark.parametrize("model", MODELS)
def test_workers_do_not_change_a_bit(model, raises, moved):
    if (model, raises) == ("dense layers", "model"):
        pytest.skip("dense layers take every input")

    def run(workers: int) -> sketchfed.Run:
        work = {"name": "iterative", "rounds": 3, "local_epochs": 2, "batch": 8, "participation": 0.84}
        tables = {"algorithm": work, "sketch": {"ratio": 0.3, "bits": 4}, "engine": {"workers": workers}}
        return sketchfed.run(tables, **given(model, moved=moved, raises=raises))

    one, other = (run(workers) for workers in WORKERS)
    assert torch.equal(other.weights, one.weights)
    assert timeless(other) == timeless(one)
    taken = {line["participants"] for line in one.metrics}
    assert taken == {5} if raises == "nobody" else 4 in taken, "the client that raises is left out where it was chosen"


@pytest.mark.parametrize("raises", ["nobody", "data", "model"])
def test_workers_do_not_change_a_bit_of_a_secure_sum(raises):
    def run(workers: int) -> sketchfed.Run:
        tables = {
            "algorithm": {"rounds": 2, "local_epochs": 2, "batch": 8},
            "privacy": {"name": "discrete_gaussian", "noise_multiplier": 0.1, "delta": 1e-4, "insecure_noise_seed": 3},
            "secure": {"survivors": 0.7},
            "engine": {"workers": workers},
        }
        return sketchfed.run(tables, **given("dropout", moved=True, raises=raises))

    one, other = (run(workers) for workers in WORKERS)
    assert torch.equal(other.weights, one.weights)
    assert timeless(other) == timeless(one)
    assert [line["participants"] for line in one.metrics] == [6 if raises == "nobody" else 5] * 2


def test_a_run_may_go_on_with_other_workers(tmp_path):
    """Begun with one worker, resumed with several, by changing nothing but the folder's own configuration."""
    tables = {"algorithm": {"rounds": 4, "local_epochs": 2, "batch": 8}, "engine": {"workers": 1, "checkpoint_seconds": 0}}

    def unplug(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    objects = {"moved": True, "raises": "model"}
    whole = sketchfed.run(tables, **given("plain", **objects))
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tables, **given("plain", **objects), folder=tmp_path, on_round=unplug)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("workers = 1", "workers = 3"))
    resumed = sketchfed.resume(tmp_path, **given("plain", **objects))
    assert resumed.config.engine.workers == 3
    assert torch.equal(resumed.weights, whole.weights)
    assert timeless(resumed) == timeless(whole)
