"""Arms differ in the weights only, the experiment runs from search to figure, and small clients are scored by themselves."""

from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError
from sketchfed.runs import trained
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments import quantity_skew as experiment
from sketchfed_lab.experiments import quantity_skew_report as report
from sketchfed_lab.experiments.quantity_skew import SPREADS, WEIGHTINGS, case

SETTINGS = make_settings(experiment, recorded_settings("quantity-skew"))
SMALL = replace(SETTINGS, data="digits", clients=12, hidden=8, participation=0.5, rounds=3, scores=3, most_examples=120)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("inverse", SETTINGS.inverse_ratios)
def test_every_arm_is_a_run_and_they_differ_in_the_weights_only(spread, inverse):
    cases = [case(SETTINGS, (spread, inverse, name), {"local_rate": 0.1}, seed=0, validation=0.1) for name in WEIGHTINGS]
    algorithms = [dict(each.tables["algorithm"]) for each in cases]
    told = [(each.pop("weighting"), each.pop("most_examples", None)) for each in algorithms]
    assert told == [("equal", None), ("examples", None), ("examples", SETTINGS.most_examples)]
    assert all(each == algorithms[0] for each in algorithms)
    assert all(each.tables["data"] == cases[0].tables["data"] for each in cases)
    for each in cases:
        load_config(each.tables).completed(dim=500, sizes=[30] * SETTINGS.clients)
    for setting, kind in (("spreads", "spread"), ("weightings", "weighting")):
        with pytest.raises(UnknownNameError, match=f"no {kind} named 'x'"):
            replace(SETTINGS, **{setting: ["x"]})


def test_a_run_is_that_of_its_tables_and_scores_small_clients_besides():
    """With one client, the small clients, all clients and all training examples are the same."""
    made = case(SMALL, ("quantity", 1, "examples"), {"local_rate": 0.3, "global_rate": 1.0}, seed=0, validation=0.1)
    found = experiment.measured(made)
    assert found["curve"] == trained(made)["curve"]
    assert found["sizes"][0] < found["sizes"][1] < found["sizes"][2]
    assert 0 < found["small"] <= 1
    alone = replace(SMALL, clients=1, participation=1.0)
    one = experiment.measured(case(alone, ("quantity", 1, "equal"), {"local_rate": 0.3}, seed=0, validation=0.1))
    assert one["small"] == one["clients"] > 0.2


def test_a_run_that_diverges_scores_nothing():
    made = case(SMALL, ("quantity", 1, "equal"), {"local_rate": 1e30, "global_rate": 1e30}, seed=0, validation=0.1)
    found = experiment.measured(made)
    assert found["diverged"]
    assert [measure(found) for measure in report.MEASURES] == [0, 0, 0]


def test_the_experiment_runs_from_search_to_figure(tmp_path):
    short = replace(SMALL, spreads=["quantity"], weightings=["equal", "bounded"], tuning_seeds=[9], seeds=[0, 1], rounds=2)
    experiment.run(short, tmp_path)
    lines = [line.split(" | ") for line in (tmp_path / "table.md").read_text().splitlines()[2:]]
    assert [line[1:3] for line in lines] == [["1", "equal"], ["1", "bounded"], ["1/10", "equal"], ["1/10", "bounded"]]
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_weightings_are_compared_seed_by_seed():
    def row(weighting, seed, score, small):
        key = {"spread": "quantity", "inverse_ratio": 1, "weighting": weighting, "seed": seed}
        return {"key": key, "curve": [[1, 0.1, score]], "diverged": False, "small": small, "clients": 0.5}

    runs = {
        ("quantity", 1, "equal"): {seed: row("equal", seed, 0.5 + seed / 10, 0.4) for seed in (0, 1)},
        ("quantity", 1, "examples"): {seed: row("examples", seed, 0.6 + seed / 10, 0.3) for seed in (1, 0)},
    }
    place = ("quantity", 1, "examples")
    assert report.gap(runs, place, report.on_test).values == pytest.approx((10, 10))
    assert report.gap(runs, place, report.small).values == pytest.approx((-10, -10))
    assert report.gap(runs, place, report.clients).values == pytest.approx((0, 0))
