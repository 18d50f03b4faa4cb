"""Arms that differ only in what is compared, one rule of tuning that never sees the test set, and intervals that are honest."""

import json
import math
from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments import private_accuracy as experiment
from sketchfed_lab.experiments import private_accuracy_report as report
from sketchfed_lab.experiments.private_accuracy import METHODS, WHERE, arm, places, tuned

SETTINGS = make_settings(experiment, recorded_settings("private-accuracy"))
CLIENTS = make_settings(experiment, recorded_settings("private-accuracy-clients"))
UNTRUSTED = replace(CLIENTS, methods=[*CLIENTS.methods, "sketch, secure sums"])
TINY = replace(
    SETTINGS,
    data=["digits"],
    epsilons=[3.0],
    ratios=[0.1],
    clients=4,
    hidden=8,
    rounds=4,
    seeds=[0, 1],
    rates=[0.2],
    processes=1,
)
TINY = replace(TINY, least_rate=0.2, most_rate=0.2)
PLACES = [(settings, place) for settings in (SETTINGS, UNTRUSTED) for place in places(settings)]


def named(value) -> str:
    return value.level if isinstance(value, experiment.Settings) else " ".join(map(str, value))


@pytest.mark.parametrize(("settings", "place"), [each for each in PLACES if each[1][:2] == ("mnist", 3.0)], ids=named)
def test_every_arm_can_be_run_and_its_noise_is_for_what_is_asked(settings, place):
    tables = dict(arm(settings, place, rate=0.2, seed=3, validation=0.0).tables)
    config = load_config(tables).completed(dim=50_890, sizes=[60_000 // settings.clients] * settings.clients)
    assert config.privacy.noise_multiplier > 0
    assert (config.privacy.epsilon, config.privacy.unit, config.privacy.clip) == (3.0, settings.level, settings.clip)
    assert config.algorithm.global_rate == 0.2


def test_sketches_are_of_the_sizes_asked_and_everything_is_compared_everywhere():
    compared = places(SETTINGS)
    assert len(compared) == len(set(compared)) == 2 * 3 * (1 + 2 + 2 + 1 + 2)
    for place in compared:
        tables = arm(SETTINGS, place, rate=0.2, seed=3, validation=0.0).tables
        assert tables.get("sketch", {}).get("ratio", 1.0) == place[3]
        assert ("secure" in tables) == (place[2] == "sketch, secure sums")
    assert set(SETTINGS.methods) == METHODS.keys()


@pytest.mark.parametrize("settings", [SETTINGS, UNTRUSTED], ids=named)
def test_arms_of_a_place_differ_in_algorithm_sketch_and_where_noise_goes_only(settings):
    """The same data, model, rounds, batches and steps, and the same claim: ε, δ, unit and clip norm."""
    arms = [arm(settings, place, rate=0.2, seed=3, validation=0.0) for place in places(settings) if place[:2] == ("mnist", 1.0)]
    compared = {"sketch": None, "secure": None}

    def common(tables):
        privacy = {name: tables["privacy"][name] for name in ("unit", "epsilon", "delta", "clip", "insecure_noise_seed")}
        algorithm = {name: value for name, value in tables["algorithm"].items() if name != "name"}
        return {name: table for name, table in tables.items() if name not in compared} | {
            "privacy": privacy,
            "algorithm": algorithm,
        }

    assert all(common(each.tables) == common(arms[0].tables) for each in arms)
    assert len({each.name for each in arms}) == len(arms)


def test_unknown_methods_are_refused():
    with pytest.raises(UnknownNameError, match=r"no method named 'sketches'"):
        replace(SETTINGS, methods=["sketches"])


def row(arm, score: float) -> dict:
    """A result without having run: four clients, whose sketches are as long as their ratio says."""
    size = 1000 * arm.key["ratio"]
    curve = [[number, 1.0, score, 4 * size * number, 4 * size * number - 4 * size, size * number] for number in (5, 10, 15)]
    return {"key": dict(arm.key), "diverged": False, "curve": curve, "seconds": 1.0, "epsilon": arm.key["epsilon"] - 1e-3}


def test_rates_are_tuned_without_the_test_set_by_one_rule_for_all(tmp_path, monkeypatch):
    """On the validation split, with a seed of its own. The grid grows at either end while that is best, up to its bounds."""
    few = replace(SETTINGS, data=["mnist"], epsilons=[1.0], rates=[0.1, 0.2, 0.4], least_rate=0.025, most_rate=0.8)
    best = dict(zip(places(few), (0.2, 0.1, 0.4, 0.8, 0.2, 6.4, 0.001, 0.05), strict=True))
    asked = []

    def fake(arms, path, **how):
        asked.append(len(arms))
        assert all(
            (arm.key["validation"], arm.tables["data"]["validation"], arm.key["seed"]) == (0.1, 0.1, 100) for arm in arms
        )
        assert path.name == "tuning.jsonl"
        return [row(arm, -abs(math.log(arm.key["rate"] / best[tuple(arm.key[name] for name in WHERE)]))) for arm in arms]

    monkeypatch.setattr(experiment, "run_arms", fake)
    found = tuned(few, places(few), tmp_path / "tuning.jsonl")
    assert found == {place: min(0.8, max(0.025, rate)) for place, rate in best.items()}
    assert asked[0] == 3 * len(best)
    assert sum(asked[1:]) < 3 * len(best)


def test_secure_sums_take_the_rate_of_the_steps_that_they_make(tmp_path, monkeypatch):
    final = []

    def fake(arms, path, **how):
        final[:] = [arm.key for arm in arms]
        return [row(arm, arm.key["rate"] * (1 if arm.key["method"] == "sketch" else -1)) for arm in arms]

    monkeypatch.setattr(experiment, "run_arms", fake)
    experiment.run(replace(TINY, rates=[0.2, 0.4]), tmp_path)
    assert {key["method"]: key["rate"] for key in final} == dict.fromkeys(METHODS, 0.2) | dict.fromkeys(
        ("sketch", "sketch, secure sums"), 0.4
    )


def results_in(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch, capsys):
    """On small data, with secure sums; the final runs train on all the training data."""
    experiment.run(TINY, tmp_path)
    tuning, results = (results_in(tmp_path / name) for name in ("tuning.jsonl", "results.jsonl"))
    assert {row["key"]["method"] for row in tuning} == METHODS.keys() - {"sketch, secure sums"}
    assert {(row["key"]["method"], row["key"]["seed"]) for row in results} == {(m, s) for m in METHODS for s in (0, 1)}
    assert {row["key"]["validation"] for row in tuning} == {0.1}
    assert {row["key"]["validation"] for row in results} == {0.0}
    assert all(row["key"]["rate"] == 0.2 and len(row["curve"]) == 4 and not row["diverged"] for row in results)
    assert all(0 < row["epsilon"] <= 3 for row in results)
    assert report.participants(results) == 4
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"tuning.jsonl", "results.jsonl", "table.md", "findings.md", "figure.svg", "bytes.svg"}
    assert "| digits | 3 | sketch 1/10, secure sums | 0." in written["table.md"]
    assert "protect nobody" in capsys.readouterr().out
    monkeypatch.setattr("sketchfed.runs.run", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written


SCORES = {"dense": 0.9, "sketch": 0.895, "sketch, secure sums": 0.894, "dense, noise in steps": 0.86, "private_iterative": 0.6}


def made_up(settings, seeds, *, jitter=0.001):
    """Rows as good as SCORES; a hundredth of the size costs a point more, and sketches vary by seed."""
    rows = []
    for place in places(settings):
        for seed in seeds:
            worse = (place[3] == 0.01) * 0.01 + jitter * seed * (place[3] < 1)
            rows.append(row(arm(settings, place, rate=0.2, seed=seed, validation=0.0), SCORES[place[2]] - worse))
    return rows


def test_differences_are_paired_by_seed_with_a_t_interval():
    """Losses of 0.5, 0.6 and 0.7 points: deviation 0.1, and t = 4.303 with two degrees of freedom."""
    found = {(finding.method, finding.against): finding for finding in report.findings(made_up(SETTINGS, [0, 1, 2]))}
    tenth = found["sketch 1/10", "dense"].places["mnist", 1.0]
    assert tenth.points == pytest.approx(-0.6)
    assert tenth.reach == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert tenth.verdict == "less"
    assert found["sketch 1/100", "dense"].places["fashion_mnist", 8.0].verdict == "more"
    assert found["sketch 1/10, secure sums", "sketch 1/10"].mean.points == pytest.approx(-0.1)
    assert found["private_iterative 1/100", "dense, noise in steps"].mean.points == pytest.approx(-27.1)
    assert all(len(finding.places) == 6 for finding in found.values())


def test_one_seed_or_a_wide_interval_decides_nothing():
    assert report.Contrast(differences=(-0.2,)).verdict == "open"
    assert str(report.Contrast(differences=(-0.2,))) == "-0.20"
    assert report.Contrast(differences=(-0.2, -1.9, 0.1)).verdict == "open"
    assert report.Contrast(differences=(-3.0, -3.1, -2.9)).verdict == "more"


@pytest.mark.parametrize("settings", [SETTINGS, CLIENTS], ids=named)
def test_what_was_measured_becomes_tables_and_pictures(settings, tmp_path):
    report.write(made_up(settings, [0, 1, 2]), tmp_path)
    table = (tmp_path / "table.md").read_text().splitlines()
    assert len(table) == 2 + len(places(settings))
    assert table[2] == "| mnist | 1 | dense | 0.9000 ± 0.0000 | — | 1.00 kB | 933 B | 1.00 | 0.2 | 3 |"
    assert table[3].startswith("| mnist | 1 | sketch 1/10 | 0.8940 ± 0.0010 | -0.60 ± 0.25 | 100 B | ")
    said = (tmp_path / "findings.md").read_text()
    assert "| sketch 1/10 | dense | -0.60 ± 0.25 (less) |" in said
    for picture in ("figure.svg", "bytes.svg"):
        drawn = (tmp_path / picture).read_text()
        assert drawn.startswith("<svg")
        assert f"{settings.level} level" in drawn


def test_part_of_the_rows_is_reported_as_far_as_it_goes(tmp_path):
    """One seed of some places and two of others, and a run that diverged."""
    rows = made_up(SETTINGS, [0])[:20] + made_up(SETTINGS, [1])[:5]
    rows[3] = rows[3] | {"diverged": True, "curve": []}
    report.write(rows, tmp_path)
    assert len((tmp_path / "table.md").read_text().splitlines()) == 2 + 20
    report.write([row for row in rows if row["key"]["ratio"] < 1], tmp_path)
    assert "| — |" in (tmp_path / "table.md").read_text()
