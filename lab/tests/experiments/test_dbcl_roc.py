"""Trucks among cars: the data, the network, one rule of tuning, and curves of both methods from the same test examples."""

import json
from dataclasses import replace

import pytest
import torch

from sketchfed.config import load_config
from sketchfed.data import DataSet
from sketchfed_lab.experiments import dbcl_roc as experiment
from sketchfed_lab.experiments import dbcl_roc_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.dbcl_roc import CAR, TRUCK, arm, cars_and_trucks, cnn_faces

SETTINGS = make_settings(experiment, recorded_settings("dbcl-figure-2"))
TINY = replace(SETTINGS, trucks_in=[20, 10], batch=8, rates=[0.05, 0.1], rounds=3, longer=4, tuning_rounds=2)


def small_pictures() -> DataSet:
    """Ten kinds of pictures of 8 pixels a side; of each kind 60 for training and 30 for testing."""
    draw = torch.Generator().manual_seed(1)
    parts = {}
    for part, each in (("train", 60), ("test", 30)):
        classes = torch.arange(10 * each) % 10
        parts[f"x_{part}"] = torch.randn(10 * each, 3, 8, 8, generator=draw) + classes[:, None, None, None] / 10
        parts[f"y_{part}"] = classes
    return DataSet(name="small pictures", outputs=10, shape=(3, 8, 8), prepare=lambda x: x, **parts)


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch):
    monkeypatch.setattr(experiment, "load", {"cifar10": small_pictures()}.get)


def test_all_cars_and_so_many_trucks_are_taken():
    whole, data = small_pictures(), cars_and_trucks(train=20, test=10)
    assert (len(data.y_train), int(data.y_train.sum())) == (80, 20)
    assert (len(data.y_test), int(data.y_test.sum())) == (40, 10)
    assert torch.equal(data.x_train[data.y_train == 0], whole.x_train[whole.y_train == CAR])
    assert torch.equal(data.x_test[data.y_test == 1], whole.x_test[whole.y_test == TRUCK][:10])


def test_classes_are_as_unequal_as_the_papers():
    train, test = SETTINGS.trucks_in
    assert train / 5_000 == pytest.approx(2593 / 8957, rel=1e-3)
    assert test / 1_000 == pytest.approx(2593 / 8957, rel=2e-3)


def test_the_network_is_the_papers():
    shapes = [
        tuple(parameter.shape) for parameter in cnn_faces(shape=(3, 32, 32), outputs=2).parameters() if parameter.ndim > 1
    ]
    assert shapes == [(64, 3, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (32, 2048), (32, 32), (2, 32)]


def test_both_methods_differ_in_the_sketch_only():
    plain, sketched = (dict(arm(TINY, method, rate=0.1, rounds=3, seed=0, tuning=False).tables) for method in TINY.methods)
    assert sketched.pop("sketch") == {"name": "balanced", "ratio": 0.5}
    assert sketched["algorithm"].pop("public_start")
    assert (plain["algorithm"].pop("name"), sketched["algorithm"].pop("name")) == ("fedavg", "dbcl")
    assert plain == sketched
    for method in TINY.methods:
        assert load_config(dict(arm(TINY, method, rate=0.1, rounds=3, seed=0, tuning=True).tables)).data.validation == 0.1


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    experiment.run(TINY, tmp_path)
    tuning, results = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] for name in ("tuning", "results")
    )
    assert {(row["key"]["method"], row["key"]["rate"]) for row in tuning} == {(m, r) for m in TINY.methods for r in TINY.rates}
    assert all(len(row["positives"]) + len(row["negatives"]) == 8 for row in tuning)
    assert [(len(row["positives"]), len(row["negatives"])) for row in results] == [(10, 30)] * 3
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"tuning.jsonl", "results.jsonl", "table.md", "figure.svg"}
    assert all(f"| sketched, 0.5 of the inputs, {rounds} rounds | 0." in written["table.md"] for rounds in (3, 4))
    monkeypatch.setattr("sketchfed.runs.run", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written


def test_a_run_that_diverged_is_reported_and_never_chosen(tmp_path):
    good = {"key": dict(arm(TINY, "plain", rate=0.1, rounds=3, seed=0, tuning=False).key), "diverged": False}
    good |= {"positives": [1.0, 2.0, 0.5], "negatives": [0.0, 1.5, -1.0], "curve": [[3, 0.5, 0.75, 100, 200]]}
    bad = {"key": dict(arm(TINY, "sketched", rate=0.1, rounds=3, seed=0, tuning=False).key), "diverged": True}
    bad |= {"positives": [], "negatives": []}
    assert experiment.quality(bad) < experiment.quality(good) == pytest.approx(7 / 9)
    report.write([good, bad], tmp_path)
    assert "| sketched, 0.5 of the inputs, 3 rounds | diverged |" in (tmp_path / "table.md").read_text()
