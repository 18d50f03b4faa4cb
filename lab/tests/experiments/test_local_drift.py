"""Arms differ in what they are named for, the experiment runs from search to figure, and differences are taken by seed."""

from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError
from sketchfed_lab.experiments import local_drift as experiment
from sketchfed_lab.experiments import local_drift_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.climbing import values
from sketchfed_lab.experiments.local_drift import ARMS, case

SETTINGS = make_settings(experiment, recorded_settings("local-drift"))


def made(name, inverse):
    return case(SETTINGS, name, inverse, values(ARMS[name].start, ARMS[name].axes), seed=0, validation=0.1)


@pytest.mark.parametrize("inverse", SETTINGS.inverse_ratios)
def test_every_arm_is_a_run_that_is_not_refused_and_is_what_it_is_called(inverse):
    configs = {name: load_config(made(name, inverse).tables) for name in SETTINGS.arms}
    for config in configs.values():
        completed = config.completed(dim=500, sizes=[30] * SETTINGS.clients)
        assert (completed.algorithm.name == "iterative") == (inverse > 1)
    assert [config.algorithm.server_optimiser.name for config in configs.values()] == ["sgd", "adam", "sgd", "sgd"]
    assert [config.algorithm.scaffold for config in configs.values()] == [False, False, False, True]
    assert [config.training.proximal for config in configs.values()] == [0.0, 0.0, 0.01, 0.0]
    with pytest.raises(UnknownNameError, match="no arm named 'x'"):
        replace(SETTINGS, arms=["x"])


def test_arms_share_their_data_model_and_local_work():
    tables = [made(name, 1).tables for name in SETTINGS.arms]
    own = {"global_rate", "server", "scaffold"}
    assert all(each["data"] == tables[0]["data"] and each["model"] == tables[0]["model"] for each in tables)
    shared = [{key: value for key, value in each["algorithm"].items() if key not in own} for each in tables]
    assert all(each == shared[0] for each in shared)


def test_the_experiment_runs_from_search_to_figure(tmp_path):
    small = replace(SETTINGS, data="digits", clients=6, hidden=8, participation=0.5, local_epochs=1, rounds=2, scores=2)
    small = replace(small, arms=["FedAvg", "SCAFFOLD"], inverse_ratios=[1, 5], tuning_seeds=[9], seeds=[0, 1])
    experiment.run(small, tmp_path)
    table, findings = ((tmp_path / name).read_text() for name in ("table.md", "findings.md"))
    assert [line.split(" | ")[1] for line in table.splitlines()[2:]] == ["FedAvg", "SCAFFOLD"] * 2
    assert "Size 1/5 against 1:" in findings
    assert "</svg>" in (tmp_path / "figure.svg").read_text()
    before = (tmp_path / "tuning.jsonl").read_text()
    experiment.run(small, tmp_path)
    assert (tmp_path / "tuning.jsonl").read_text() == before, "what is recorded is not computed again"


def row(inverse, arm, seed, *scores, sent=10):
    """A run that is scored after each round, in which `sent` bytes go each way."""
    curve = [[at + 1, 0.5, score, sent * (at + 1), sent * (at + 1), 0] for at, score in enumerate(scores)]
    key = {"inverse_ratio": inverse, "arm": arm, "seed": seed, "local_rate": 0.1, "global_rate": 1.0}
    return {"key": key, "curve": curve, "diverged": False}


def runs_of(*rows):
    found = {}
    for each in rows:
        found.setdefault((each["key"]["inverse_ratio"], each["key"]["arm"]), {})[each["key"]["seed"]] = each
    return found


def test_at_equal_bytes_an_arm_that_sends_twice_as_much_is_scored_at_half_of_the_rounds():
    runs = runs_of(
        row(1, "FedAvg", 0, *[0.5] * 12),
        row(1, "SCAFFOLD", 0, *[0.4] * 6, *[0.9] * 6, sent=20),
    )
    assert report.at_equal_rounds(runs, 1, "SCAFFOLD", 0) == pytest.approx(90)
    assert report.at_equal_bytes(runs, 1, "SCAFFOLD", 0) == pytest.approx(40)
    assert report.at_equal_bytes(runs, 1, "FedAvg", 0) == pytest.approx(50)


def test_places_change_only_if_both_differences_are_beyond_their_intervals():
    """Dense, B leads by 10, 11 and 12 points and C by 3, 0 and −3. Sketched, A leads B by 5, 6 and 7, and C by 20."""
    runs = runs_of(
        *(row(1, "A", seed, 0.5) for seed in range(3)),
        *(row(1, "B", seed, 0.6 + seed / 100) for seed in range(3)),
        *(row(1, "C", seed, 0.53 - 3 * seed / 100) for seed in range(3)),
        *(row(10, "A", seed, 0.5) for seed in range(3)),
        *(row(10, "B", seed, 0.45 - seed / 100) for seed in range(3)),
        *(row(10, "C", seed, 0.3) for seed in range(3)),
    )
    said = list(report._swaps(runs, report.at_equal_rounds))
    assert said == ["Size 1/10 against 1: A and B change places beyond the intervals."]
    assert report.gap(runs, 1, "B", "A", report.at_equal_rounds).values == pytest.approx((10, 11, 12))
    headings, lines = report._pairs(runs, report.at_equal_rounds)
    assert headings[-1] == "change at 1/10"
    assert lines[0][-1] == "**+17.0 ± 5.0**", "from −11 to +6; Student's t with two degrees of freedom is 4.30"
    assert next(report._rankings(runs, report.at_equal_rounds)) == "Size 1: B (61.0), A (50.0), C (50.0)."
