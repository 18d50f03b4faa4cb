"""A client's estimates of real steps: what is compared with what, and how it is written up."""

import json
from dataclasses import replace

import pytest
import torch

from sketchfed.attacks import relative_error
from sketchfed.errors import InputError
from sketchfed_lab.experiments import dbcl_estimates as experiment
from sketchfed_lab.experiments import dbcl_estimates_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.dbcl_estimates import ALL, arms, qualities

SETTINGS = make_settings(experiment, recorded_settings("dbcl-figure-3"))
TINY = replace(SETTINGS, data="digits", hidden=[16, 16], clients=4, share=0.5, rounds=3)


def rounds_of(family: str = "balanced"):
    """Weights before and after a round, and the sketches of both broadcasts."""
    _, _, server, algorithm = experiment._federation(arms(replace(TINY, families=[family], rates=[0.1]))[0])
    before = server.state.replica.weights.clone()
    server.advance()
    return before, server.state.replica.weights, algorithm.given(server.seed, 0).sketch, algorithm.given(server.seed, 1).sketch


def test_estimates_are_of_what_was_broadcast_against_the_true_step():
    before, after, old, new = rounds_of()
    found = {(layer, option): (error, cosine) for layer, option, error, cosine in qualities(before, after, old, new)}
    assert found.keys() == {(layer, option) for layer in ("1.weight", "3.weight", ALL) for option in report.OPTIONS}
    step = (before - after)[: 64 * 16].view(16, 64)
    estimate = old.adjoint(old.apply(before)) - new.adjoint(new.apply(after))
    assert found["1.weight", "adjoint"][0] == pytest.approx(relative_error(estimate[: 64 * 16].view(16, 64), step), rel=1e-4)


def test_steps_lie_where_the_old_sketch_looks():
    """Δ = USᵀ: what a client knows of every step without having seen it, and neither option uses."""
    before, after, old, _ = rounds_of()
    for name, sketch in old.sketches.items():
        step = old.layout.views(before - after)[name]
        again = sketch.adjoint(sketch.apply(step) / sketch.loads)
        torch.testing.assert_close(again, step, rtol=1e-4, atol=1e-6)


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    experiment.run(TINY, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["key"]["sketch"] for row in rows] == ["balanced", "count"]
    for row in rows:
        assert len(row["estimates"]) == 3 * 3 * 2
        assert len(row["steps"]) == 3 * 3
        assert all(error > 0 and -1 <= cosine <= 1 for _, _, _, error, cosine in row["estimates"])
        assert all(expected > 0 for _, _, _, expected in row["steps"])
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"results.jsonl", "table.md", "figure.svg"}
    assert len(written["table.md"].splitlines()) == 2 + 2 * (3 * 2 + 1)
    assert f"| balanced 0.5 | {ALL} | all zeros | 1 |" in written["table.md"]
    monkeypatch.setattr(experiment, "_federation", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written


def test_the_papers_setting_is_recorded():
    chosen = arms(SETTINGS)[0].tables
    assert (chosen["data"], chosen["model"]["hidden"]) == ({"name": "mnist", "clients": 100}, [200, 200])
    algorithm = chosen["algorithm"]
    assert [algorithm[name] for name in ("participation", "batch", "local_epochs")] == [0.1, 10, 1]


def test_every_family_needs_its_rate():
    with pytest.raises(InputError, match=r"1 rates, 2 families"):
        replace(SETTINGS, rates=[0.1])
