"""Membership inference on recorded runs: who is looked for where, and how it is written up."""

import json
from dataclasses import replace

import pytest
import torch

from sketchfed.seeds import PublicSeed
from sketchfed_lab.experiments import audit_membership as experiment
from sketchfed_lab.experiments import audit_membership_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.audit_membership import arms, judged, recorded_run, small

SETTINGS = make_settings(experiment, recorded_settings("audit-membership"))
TINY = replace(
    SETTINGS, data=["digits"], members=40, others=60, sought=20, canaries=24, hidden=8, batch=10, rounds=6, looked=2,
    epsilons=[8.0], seeds=[0],
)  # fmt: skip


def test_canaries_come_on_top_of_the_members():
    key = {"data": "digits", "form": "whole", "epsilon": None, "seed": 0}
    subset = small("digits", TINY.members, PublicSeed(0))
    recorded, canaries = recorded_run(key, TINY, subset)
    sizes = [len(part) for part in recorded.workload.parts]
    assert sum(sizes) == TINY.members + int(canaries.included.sum())
    torch.testing.assert_close(recorded.workload.dataset.x_train[: TINY.members], subset.x_train)


def test_scores_that_know_everything_prove_as_much_as_their_number_can():
    there = torch.arange(200) % 2 == 0
    found = judged(there.float(), there, 1e-5)
    assert (found["auc"], found["tpr 0.01"], found["guesses"], found["correct"]) == (1.0, 1.0, 100, 100)
    assert found["lower"] > 3
    assert "lower" not in judged(there.float(), there)


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    experiment.run(TINY, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["key"]["form"], row["key"]["epsilon"]) for row in rows] == [
        ("whole", None), ("whole", 8.0), ("sketch", None), ("sketch", 8.0),
    ]  # fmt: skip
    assert all(row["attacks"].keys() == set(report.ATTACKS) for row in rows)
    assert all(row["spent"] <= 8 for row in rows if row["key"]["epsilon"])
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"results.jsonl", "table.md", "figure.svg"}
    assert len(written["table.md"].splitlines()) == 2 + 4 * 4
    monkeypatch.setattr(experiment, "recorded_run", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written


def test_every_claim_is_tried_beside_none():
    tried = {arm.key["epsilon"] for arm in arms(SETTINGS)}
    assert tried == {None, *SETTINGS.epsilons}


@pytest.mark.parametrize("form", experiment.FORMS)
def test_noise_is_for_one_example_against_the_server(form):
    tables = experiment.tables_of({"form": form, "epsilon": 3.0, "seed": 0}, SETTINGS)
    assert (tables["privacy"]["unit"], tables["privacy"]["observer"]) == ("example", "server")
    assert ("sketch" in tables) is (form == "sketch")
