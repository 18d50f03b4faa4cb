"""Attacks on blind learning: who is given what, what they come to where it is known, and how it is written up."""

import json
from dataclasses import replace

import pytest
import torch

from sketchfed.attacks import AllBroadcasts, ByAdjoint, ByPseudoInverse, cosine
from sketchfed.errors import InputError
from sketchfed.vectors import flatten
from sketchfed_lab.experiments import audit_dbcl as experiment
from sketchfed_lab.experiments import audit_dbcl_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings

SETTINGS = make_settings(experiment, recorded_settings("audit-dbcl"))
TINY = replace(
    SETTINGS,
    hidden=[16, 8],
    steps=["digits mlp 0.5"],
    participations=[1.0],
    step_clients=3,
    step_examples=20,
    step_rounds=5,
    client=["digits mlp plain", "digits mlp 0.5"],
    client_rounds=12,
    client_examples=3,
    server=["digits mlp plain", "digits mlp 0.5", "digits cnn plain", "digits cnn 0.5"],
    server_rounds=8,
    victims=2,
    validation=1,
    variations=[0.001, 0.1],
    iterations=1,
    newton=1,
    newton_starts=1,
)


def key(federation: str) -> dict[str, str]:
    return dict(zip(("data", "model", "ratio"), federation.split(), strict=True))


def run_of_two():
    work = {"rounds": 12, "local_steps": 1, "batch": 1}
    return experiment.recorded_run(key("digits mlp 0.5"), TINY, work, clients=2, examples=3, seed=0)


def test_estimates_of_weights_move_as_the_attacks_on_steps_say():
    view = run_of_two().view("client")
    found = experiment.estimated_weights(view)
    for attack in (ByAdjoint(), ByPseudoInverse(), AllBroadcasts()):
        weights, step = found[attack.name], attack.steps(view)[3]
        moved = view.public.layout.views(weights[4] - weights[3])
        for layer, expected in step.items():
            torch.testing.assert_close(moved[layer], expected, rtol=1e-3, atol=1e-5)


def test_a_client_that_knows_the_step_knows_what_the_other_replied():
    """Early rounds: later ones are what the smoother knows them by."""
    recorded, case = run_of_two(), experiment.client_case(key("digits mlp 0.5"), TINY, 3, 0)
    early = case.rounds.index(min(case.rounds))
    found = case.matched[experiment.THROUGH][early].values
    assert cosine(found, experiment._said(recorded, case.rounds[early], 1)) > 0.99
    assert case.cosines[experiment.THROUGH][early] > 0.99
    assert abs(case.cosines["option I"][early]) < 0.5


def test_the_attack_as_printed_takes_what_the_server_would_step_by_for_the_gradient():
    case = experiment.server_case(key("digits mlp 0.5"), TINY, 2, 0)
    printed, seen = case.matched["as printed"][0], case.matched["through the sketch"][0]
    assert len(printed.values) == 64 * 16 + 16 + 16 * 8 + 8 + 8 * 10 + 10
    assert len(seen.values) == 32 * 16 + 16 + 8 * 8 + 8 + 8 * 10 + 10
    assert printed.map is None
    assert printed.gram is None


def test_division_solves_for_examples_that_were_used_again():
    """64 pixels from 32 numbers an update: two or three are enough unless their sketches overlap."""
    case = experiment.server_case(key("digits mlp 0.5"), TINY, 2, 0)
    guesses = [solve() for solve in case.solved["first layer, several updates"]]
    assert min(report.decibels(guesses, case.truths)) > 40


def test_the_networks_are_those_that_are_named():
    dataset, seed = experiment.images("digits"), experiment.PublicSeed(1)
    cnn = experiment.network("cnn", dataset, [], seed)
    assert cnn(dataset.prepare(dataset.x_test[:2])).shape == (2, 10)
    assert 0.45 < float(flatten(cnn).abs().max()) <= 0.5


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    experiment.run(TINY, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["key"]["part"] for row in rows] == ["steps"] + ["client"] * 2 + ["server"] * 4
    attacks = [set(row["attacks"]) for row in rows[1:]]
    assert set().union(*attacks) == set(report.LABELS)
    for row in rows[1:]:
        assert all(len(found["psnr"]) == 2 for found in row["attacks"].values())
        assert row["originals"]["picked out"] == 1
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"results.jsonl", "table.md", "figure.svg"}
    for label in report.LABELS.values():
        assert f"| {label} |" in written["table.md"]
    monkeypatch.setattr(experiment, "recorded_run", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written


def test_what_failed_counts_as_wrong():
    dataset = experiment.images("digits")
    truth = experiment.Examples(dataset.prepare(dataset.x_train[:1]), dataset.y_train[:1])
    found = report.scored([None], [truth], dataset)
    assert (found["psnr"], found["labels"], found["failures"], found["pictures"]) == ([0.0], 0, 1, [None])


def test_a_federation_has_three_parts():
    with pytest.raises(InputError, match=r"'mnist mlp 0\.5', got 'mnist'"):
        experiment.arms(replace(SETTINGS, client=["mnist"]))
