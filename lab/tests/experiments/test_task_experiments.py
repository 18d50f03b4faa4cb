"""The three tasks as experiments, on a small scale."""

import json
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch

from sketchfed.codecs import CODECS
from sketchfed.data import DataSet
from sketchfed.errors import InputError
from sketchfed_lab.experiments import k_means, linear_regression, power_iteration, tasks, tasks_problems
from sketchfed_lab.experiments.tasks_methods import AT_EQUAL_BYTES, METHODS
from sketchfed_lab.experiments.tasks_report import markdown

GRID = {
    "cells": ["3 x 4", "3 x 16", "4 x 8"],
    "every_codec_at": ["3 x 16"],
    "main_cells": ["3 x 16"],
    "splits": ["iid", "skewed"],
    "iterations": 3,
    "runs": 2,
    "other_runs": 1,
    "seed": 7,
    "processes": 1,
}
EXPERIMENTS = {
    "power-iteration": (power_iteration, {}),
    "k-means": (k_means, {}),
    "linear-regression": (linear_regression, {"rate": 0.01}),
}
FILES = ["table.md", *(f"{name}.svg" for name in ("iid", "skewed", "codecs", "bytes-codecs", "bytes", "time"))]


def images() -> DataSet:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(60) % 10
    bright = torch.randint(0, 256, (10, 28, 28), generator=generator)[labels]
    x = (bright // 2 + torch.randint(0, 120, (60, 28, 28), generator=generator)).to(torch.uint8)
    prepare = lambda rows: rows.unsqueeze(1).to(torch.float32) / 255  # noqa: E731
    return DataSet(
        name="small", x_train=x[:1], y_train=labels[:1], x_test=x, y_test=labels, outputs=10, shape=(1, 28, 28), prepare=prepare
    )


def fingerprints() -> DataSet:
    x = torch.randint(-104, 0, (50, 70), generator=torch.Generator().manual_seed(7)).to(torch.int8)
    x[:, 3] = 100
    y = x[:, :2].to(torch.float32) / 100
    return DataSet(
        name="small",
        x_train=x,
        y_train=y,
        x_test=x,
        y_test=y,
        task="regression",
        outputs=2,
        shape=(70,),
        prepare=lambda rows: torch.where(rows == 100, 0.0, (rows.to(torch.float32) + 104) / 104),
    )


CACHES = (tasks_problems._images, tasks_problems._centred, tasks_problems._principal, tasks_problems._fingerprints)


@pytest.fixture(autouse=True)
def _small_data(monkeypatch):
    monkeypatch.setattr(tasks_problems, "load", lambda name, **_: images() if name == "fashion_mnist" else fingerprints())
    monkeypatch.setattr(tasks_problems, "SIDE", 8)
    monkeypatch.setattr(tasks_problems, "FEATURES", 64)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def rows_in(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def few_methods(monkeypatch):
    """One of each kind: with a size and without, with packets that vary, with memory of rounds before."""
    few = ("rand_k", "rand_proj_spatial, avg", "wangni", "top_k, prediction", "eden", "dense")
    monkeypatch.setattr(tasks, "METHODS", {name: METHODS[name] for name in few})
    monkeypatch.setattr(tasks, "PAPER", {name: METHODS[name] for name in few[:3]})
    monkeypatch.setattr(tasks, "AT_EQUAL_BYTES", {name: METHODS[name] for name in few[:-1]})


@pytest.mark.usefixtures("few_methods")
@pytest.mark.parametrize("task", EXPERIMENTS)
def test_everything_is_measured_and_written(task, tmp_path, capsys, monkeypatch):
    module, more = EXPERIMENTS[task]
    settings = module.Settings(**GRID, **more)
    files = FILES
    if task != "power-iteration":  # pictures take most of the time, and are the same
        monkeypatch.setattr(tasks.tasks_report.tasks_figures, "figures", lambda *_: {})
        files = FILES[:1]
    module.run(settings, tmp_path)
    rows = rows_in(tmp_path)
    at_size, at_bytes, timed = ([row for row in rows if row["key"]["compare"] == what] for what in ("size", "bytes", "time"))
    assert len(at_size) == 2 * (6 + 2 * 3)
    assert len(at_bytes) == 2 * 5
    assert {row["key"]["method"] for row in timed} == {"rand_k", "rand_proj_spatial, avg", "wangni", "eden", "dense"}
    for row in at_size:
        assert len(row["error"]) == len(row["error_sd"]) == len(row["loss"]) == len(row["loss_sd"]) == len(row["bytes"]) == 3
        assert row["diverged"] == 0
    dense = [row for row in at_size if row["key"]["method"] == "dense"]
    assert all(max(row["error"]) < 1e-8 for row in dense)
    assert all((tmp_path / name).stat().st_size > 100 for name in files)
    assert "| rand_proj_spatial, avg |" in capsys.readouterr().out
    monkeypatch.setattr(tasks, "compute", lambda arm: pytest.fail("this was measured already"))
    monkeypatch.setattr(tasks.tasks_report, "write", lambda *_: None)
    before = (tmp_path / "results.jsonl").read_bytes()
    module.run(settings, tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_all_methods_of_a_run_have_the_same_split_and_start():
    """The first vectors that clients send do not depend on the codec, so dense packets say what others began with."""
    key = {"task": "k-means", "iterations": 1, "runs": 1, "seed": 7, "split": "iid", "clients": 3, "size": 16}
    solved = tasks_problems.problem("k-means")
    firsts = []
    for name in ("dense", "rand_k", "top_k, prediction"):
        codec = tasks._codec(METHODS[name], {**key, "compare": "size"}, solved)
        firsts.append(tasks._listen(solved, key, METHODS[name].channel(codec, tasks.PublicSeed(1)))[0])
    assert torch.equal(firsts[0], firsts[1])
    assert torch.equal(firsts[0], firsts[2])


def test_every_codec_takes_part():
    assert {method.codec for method in METHODS.values()} == set(CODECS)


def test_codecs_at_equal_bytes_stay_within_the_budget():
    """To a tenth on average for `wangni`, whose packets depend on the vectors; to the byte for all others."""
    key = {"compare": "bytes", "task": "power-iteration", "split": "iid", "clients": 4, "size": 32, "iterations": 6, "runs": 2}
    budget = tasks.packet_bytes(tasks.make_codec("rand_k", dim=64, size=32))
    for name in AT_EQUAL_BYTES:
        row = tasks.compute(tasks.Case(key={**key, "seed": 7, "method": name}, tables={}))
        assert "refused" not in row
        assert row["bytes"][-1] / 6 <= budget * (1.1 if name == "wangni" else 1), name


def test_what_does_not_fit_and_what_overflows_is_said(tmp_path):
    settings = power_iteration.Settings(**GRID)
    arms = tasks.arms("power-iteration", settings)
    rows = [tasks.compute(arm) for arm in arms if arm.key["method"] in ("rand_k", "induced") and arm.key["clients"] == 3]
    overflowed = {**rows[0], "diverged": 1, "key": {**rows[0]["key"], "method": "wangni"}}
    refused = {"key": {**rows[0]["key"], "compare": "bytes", "size": 16, "method": "wangni"}, "refused": "too small"}
    text = markdown([*rows, overflowed, refused], asdict(settings))
    assert "too large: wangni" in text
    assert "(1 overflowed)" in text


@pytest.mark.parametrize("cell", ["10", "10 x", "x 5", "10 x 0", "ten x 5", "1 x 2 x 3"])
def test_what_is_no_cell_is_refused(cell):
    with pytest.raises(InputError, match="a cell is written clients x size"):
        tasks.parse(cell)
    assert tasks.parse("10 x 5") == tasks.parse("10x5") == (10, 5)


def test_splits_are_by_class_and_by_target():
    seed = tasks.PublicSeed(7)
    data = tasks_problems._images()
    skewed = tasks_problems._rows(data, "skewed", 5, seed)
    assert all(len(set(data.y_train[rows].tolist())) <= 2 for rows in skewed)
    data = tasks_problems._fingerprints()
    cut = tasks_problems._rows(data, "skewed", 5, seed)
    assert sum(map(len, cut)) == len(data.x_train)
    ends = [(float(data.y_train[rows].min()), float(data.y_train[rows].max())) for rows in cut]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    assert float(data.x_train[:, 3].abs().max()) == 0
    assert torch.allclose(data.x_train[:, 0].std(correction=0), torch.tensor(1.0))
