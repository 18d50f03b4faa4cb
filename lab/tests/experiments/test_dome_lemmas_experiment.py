"""The lemmas as an experiment: figures agree with formulas, and what is printed does not."""

import json
from dataclasses import replace

import pytest

from sketchfed.subspaces import UPDATES
from sketchfed_lab.experiments import dome_lemmas as experiment
from sketchfed_lab.experiments import make_settings, recorded_settings

SETTINGS = make_settings(experiment, recorded_settings("dome-lemmas"))
TINY = replace(SETTINGS, dims=[300, 600], sizes=[10, 20], trials=100)


def test_every_rule_is_looked_at():
    assert set(SETTINGS.rules) == set(UPDATES)
    places = [(cell.rule, cell.dim, cell.size) for cell in experiment.cells(TINY)]
    assert len(places) == len(set(places)) == 4 + 3


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    """Errors are within 6 of their standard errors: false alarm below 1e-6 for all 21 together."""
    experiment.run(TINY, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for row in rows:
        for name, (error, deviation) in row["errors"].items():
            assert error == pytest.approx(row["predicted"][name], abs=6 * deviation)
        noise = 0.05**2 * row["key"]["size"]
        assert row["bias"]["as they come"] - row["bias"]["exact"] == pytest.approx(noise, rel=1e-3)
        assert row["bias"]["as they come"] - row["bias"]["printed"] == pytest.approx(10 * 0.05**2 * row["key"]["dim"], rel=1e-3)
        assert 10 * row["off"]["exact"] < row["off"]["printed"]
        assert row["below"]["printed"] > 0.9
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"results.jsonl", "table.md", "moments.md", "figure.svg"}
    monkeypatch.setattr(experiment, "_followed", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written
