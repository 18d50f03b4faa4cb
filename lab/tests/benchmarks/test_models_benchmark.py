"""The benchmark of models runs and records. How fast anything is, is not for a test to say."""

import os
import sys

import pytest
import torch
from quick import load, run_quickly
from torch import nn
from torch.nn import functional

from sketchfed.errors import InputError
from sketchfed_lab.benchmarks import model_cells, model_memory, model_steps, models
from sketchfed_lab.benchmarks.turns import Order, taken


@pytest.mark.slow
def test_every_model_is_compared_and_the_large_one_is_weighed(tmp_path, monkeypatch):
    monkeypatch.delenv(models.VARIABLE, raising=False)
    _, rows, printed = run_quickly(load("models", passes=1, rounds=1, width=100), tmp_path)
    assert {row["what"] for row in rows if row["topic"] == "rounds"} == set(model_cells.CELLS)
    assert all(row["ratio"] == row["seconds"] / row["peer_seconds"] for row in rows if row["topic"] == "rounds")
    assert f"{sum(row.get('met', False) for row in rows)} of" in printed
    assert "SKETCHFED_PFL names no Python" in printed


def test_ratios_are_those_of_the_least_times_and_the_faster_loop_counts():
    best = {
        ("MLP 784-200-200-10", side): seconds for side, seconds in zip((*models.OURS, *models.LOOPS), (1, 2, 4, 5), strict=True)
    }
    fedavg, iterative = models.compared(best, ("MLP 784-200-200-10",))
    assert (fedavg.ratio, iterative.ratio, fedavg.over) == (0.25, 0.5, models.LOOP)
    judged = list(models.compared({**best, ("MLP 784-200-200-10", models.PFL): 2.0}, ("MLP 784-200-200-10",)))
    assert [m.met for m in judged if m.over == models.PFL] == [False, False]


def test_the_large_model_is_judged_by_copies_and_by_transforms():
    found = {
        models.ROUND: {"seconds": 3.0, "peak_bytes": 2_000, "dim": 100},
        models.STEP: {"seconds": 1.0, "peak_bytes": 1_200, "dim": 100},
        models.CUSTOM: {"seconds": 2.0, "peak_bytes": 2_400, "dim": 100},
        models.CUSTOM_STEP: {"seconds": 1.5, "peak_bytes": 1_600, "dim": 100},
        models.TRANSFORM: {"seconds": 0.5, "peak_bytes": 0, "dim": 100},
    }
    ours, step, custom, custom_step, overhead, custom_overhead = models.of_large(found)
    assert (ours.ratio, ours.met, step.ratio, step.met) == (5.0, True, 3.0, None)
    assert (custom.ratio, custom.met, custom_step.ratio, custom_step.met) == (6.0, False, 4.0, None)
    assert (overhead.ratio, overhead.met) == (4.0, False)
    assert (custom_overhead.ratio, custom_overhead.met) == (1.0, True)


def test_other_ways_to_take_steps_are_information():
    found = {"as it is": 2.0, "torch.compile": 3.0, "vmap(grad) of ten clients": 1.0}
    ways = list(models.of_steps({way: {"seconds": s, "ready_seconds": 9.0} for way, s in found.items()}, 60))
    assert [(m.ratio, m.met, m.at_most) for m in ways] == [(1.5, None, None), (0.5, None, None)]
    assert all("Steps of one client" in str(table.title) for table in list(models.tables(ways))[2:])


def test_gradients_of_several_clients_at_once_are_those_of_one():
    module, x, y = nn.Linear(4, 3), torch.randn(10, 10, 4), torch.arange(10) % 3
    found = model_steps.gradients_of(module)(model_steps.stacked(module), x, y.expand(10, 10))
    functional.cross_entropy(module(x[7]), y).backward()
    assert torch.allclose(found["weight"][7], module.weight.grad, atol=1e-6)


def test_sides_and_cells_have_the_names_under_which_they_are_compared():
    assert {*models.OURS, *models.LOOPS, models.PFL} == set(model_cells.SIDES)
    assert {models.AS_IT_IS, *models.OTHERWISE} == set(model_steps.SIDES)
    assert {cell for cell, _ in models.AT_MOST} == set(model_cells.CELLS)
    for name in ("ROUND", "CUSTOM", "STEP", "CUSTOM_STEP", "TRANSFORM"):
        assert getattr(models, name) == getattr(model_memory, name)


def test_a_python_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv(models.VARIABLE, "/nowhere/python")
    with pytest.raises(InputError, match="SKETCHFED_PFL = /nowhere/python is no file"):
        models.other_python()


def test_sides_that_have_ended_end_the_turns_and_a_failing_one_is_named():
    answer = "import sys; sys.stdin.readline(); print('[\"a\", 1.5]', flush=True); sys.stdin.close()"
    sides = {name: Order(command=(sys.executable, "-c", answer), environment=os.environ) for name in ("one", "other")}
    assert list(taken(sides, "{}: {}".format)) == [("one", "a", 1.5), ("other", "a", 1.5)]
    broken = {"bad": Order(command=(sys.executable, "-c", "raise SystemExit('no such cell')"), environment=os.environ)}
    with pytest.raises(InputError, match="bad: no such cell"):
        list(taken(broken, "{}: {}".format))
