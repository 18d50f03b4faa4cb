"""Arms that differ only in what is compared, one search for all of them, and tables that say what was measured."""

from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError
from sketchfed.models import build
from sketchfed.seeds import PublicSeed
from sketchfed_lab.experiments import dome_accuracy as experiment
from sketchfed_lab.experiments import dome_accuracy_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.dome_accuracy import METHODS, arm, places, tuned

SETTINGS = make_settings(experiment, recorded_settings("dome-accuracy"))
DIM = 25_450
PLACES = [place for place in places(SETTINGS, SETTINGS.epsilons) if place[:2] == ("mnist", 3.0)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[2]} {place[3]}")
def test_every_arm_can_be_run_and_sends_as_many_numbers_as_asked(place):
    tables = dict(arm(SETTINGS, place, (1.0, 1.0), seed=3, validation=0.0).tables)
    module = build("mlp", shape=(1, 28, 28), outputs=10, seed=PublicSeed(0), hidden=[SETTINGS.hidden])
    config = load_config(tables).completed(dim=DIM, sizes=[6_000] * 10, module=module)
    assert config.privacy.noise_multiplier > 0
    assert (config.privacy.epsilon, config.privacy.unit) == (3.0, "example")
    inner = tables.get("sketch") or tables.get("subspace") or {}
    assert inner.get("size", 0) == place[3]


def test_arms_of_a_place_differ_in_the_algorithm_and_what_it_sends_only():
    """The same data, model, rounds, batches and the same claim."""
    common = [
        {
            "data": tables["data"],
            "model": tables["model"],
            "work": {
                name: tables["algorithm"][name] for name in ("rounds", "batch", "local_steps", "local_rate", "final_rate")
            },
            "claim": {name: tables["privacy"][name] for name in ("unit", "epsilon", "delta", "insecure_noise_seed")},
        }
        for tables in (arm(SETTINGS, place, (1.0, 1.0), seed=3, validation=0.0).tables for place in PLACES)
    ]
    assert all(each == common[0] for each in common)


def test_unknown_methods_are_refused():
    with pytest.raises(UnknownNameError, match="randm"):
        replace(SETTINGS, methods=["randm sketch"])


def row(made, score, *, captured=None):
    curve = [[10 * turn, 1.0, score, 4_000 * turn, 4_000 * turn, 400 * turn] for turn in (1, 2, 3)]
    found = {"key": dict(made.key), "diverged": False, "curve": curve, "seconds": 1.0, "epsilon": made.key["epsilon"]}
    return found if captured is None else found | {"captured": [captured]}


def test_searches_walk_to_the_best_point_on_the_validation_split_alone(monkeypatch, tmp_path):
    """A hill with its top at twice the clip norm and half the rate is climbed within the tries that are allowed."""
    seen = []

    def fake(arms, path, **_):
        seen.extend(arms)
        return [row(made, 0.9 - 0.1 * abs(made.key["clip"] - 2.0) - 0.1 * abs(made.key["rate"] - 0.5)) for made in arms]

    monkeypatch.setattr(experiment, "run_arms", fake)
    best = tuned(replace(SETTINGS, tries=9), tmp_path / "tuning.jsonl")
    assert set(best.values()) == {(2.0, 0.5)}
    assert all(made.tables["data"]["validation"] == 0.1 for made in seen)
    assert {made.key["epsilon"] for made in seen} == {SETTINGS.tuned_at}
    seen.clear()
    tuned(replace(SETTINGS, tries=3), tmp_path / "tuning.jsonl")
    assert len(seen) == 3 * len(best)


SCORES = {name: 0.5 + 0.03 * number for number, name in enumerate(METHODS)}


def made_up(seeds):
    return [
        row(arm(SETTINGS, place, (1.0, 1.0), seed=seed, validation=0.0), SCORES[place[2]] + 0.001 * seed, captured=0.02)
        for place in places(SETTINGS, SETTINGS.epsilons)
        for seed in seeds
    ]


def test_what_was_measured_becomes_tables_and_a_picture(tmp_path):
    report.write(made_up([0, 1, 2]), tmp_path)
    table = (tmp_path / "table.md").read_text().splitlines()
    assert len(table) == 2 + len(places(SETTINGS, SETTINGS.epsilons))
    assert "| 40 B | 40 B |" in table[2]
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    gain = 100 * (SCORES["incremental_svd"] - SCORES["random sketch"])
    assert f"| 50 | incremental_svd | +{gain:.2f} ± 0.00 |" in (tmp_path / "findings.md").read_text()
    gain = 100 * (SCORES["fresh, centred"] - SCORES["random sketch"])
    assert f"| 50 | fresh, centred | random sketch | 200 | +{gain:.2f} ± 0.00 |" in (tmp_path / "fewer-numbers.md").read_text()


def test_part_of_the_rows_is_reported_as_far_as_it_goes(tmp_path):
    rows = made_up([0])[:20] + made_up([1])[:5]
    rows[3] = rows[3] | {"diverged": True}
    report.write(rows, tmp_path)
    assert len((tmp_path / "table.md").read_text().splitlines()) == 2 + 20
