"""Arms that differ only in the method, one rule of tuning, and a table and a picture of what came of it."""

from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed_lab.experiments import dbcl_training as experiment
from sketchfed_lab.experiments import dbcl_training_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings

NAMES = ("dbcl-table-1", "dbcl-table-1-cnn", "dbcl-figure-1")
RECORDED = {name: make_settings(experiment, recorded_settings(name)) for name in NAMES}
TABLE, FIGURE = RECORDED["dbcl-table-1"], RECORDED["dbcl-figure-1"]


def arm(settings, method: str, *, share: float = 0.1, rate: float = 0.2, seed: int = 0, tuning: bool = False):
    return experiment.arm(settings, method, share, rate, 600, epochs=settings.local_epochs, seed=seed, tuning=tuning)


def row(arm, *, arrives: int | None, bytes_each: int = 1_000) -> dict:
    """A result, without having run: the accuracy reaches 0.97 in the round in which it `arrives`, or stays below 0.96."""
    key, cohort = dict(arm.key), round(100 * arm.key["share"])
    rounds = arrives or key["rounds"]
    scores = [0.9 if number < rounds else 0.97 if arrives else 0.96 for number in range(1, rounds + 1)]
    curve = [
        [number, 0.2, score, cohort * bytes_each * number, cohort * bytes_each * (number - 1), bytes_each * number]
        for number, score in enumerate(scores, 1)
    ]
    return {"key": key, "diverged": False, "curve": curve, "seconds": 1.0}


def lines(folder) -> list[dict[str, str]]:
    """The table's lines; a heading that repeats counts up."""
    text = [[cell.strip() for cell in line.strip("|").split("|")] for line in (folder / "table.md").read_text().splitlines()]
    headings = [f"{name} {text[0][:place].count(name)}".removesuffix(" 0") for place, name in enumerate(text[0])]
    return [dict(zip(headings, line, strict=True)) for line in text[2:]]


@pytest.mark.parametrize("tuning", [False, True])
@pytest.mark.parametrize("settings", RECORDED.values(), ids=RECORDED)
def test_arms_can_be_run_and_differ_in_algorithm_and_sketch_only(settings, tuning):
    plain, sketched = (arm(settings, method, tuning=tuning) for method in settings.methods)
    configs = [load_config(dict(each.tables)) for each in (plain, sketched)]
    assert [config.algorithm.name for config in configs] == ["fedavg", "dbcl"]
    assert configs[1].algorithm.sketch.ratio == settings.ratio
    assert all(config.engine.target_accuracy == (settings.target or None) for config in configs)
    own = {"name", "public_start"}
    common = [
        {name: value for name, value in each.tables["algorithm"].items() if name not in own} for each in (plain, sketched)
    ]
    assert common[0] == common[1]
    assert all(plain.tables[name] == sketched.tables[name] for name in ("seed", "data", "model", "engine"))


def test_tuning_is_scored_on_held_out_data_with_a_seed_of_its_own(tmp_path, monkeypatch):
    asked = {}

    def fake(arms, path, **how):
        asked[path.name] = arms
        return [row(arm, arrives=round(10 / arm.key["rate"]) if arm.key["rate"] < 0.3 else None) for arm in arms]

    monkeypatch.setattr(experiment, "run_arms", fake)
    experiment.run(TABLE, tmp_path)
    assert all(each.tables["data"]["validation"] == 0.1 for each in asked["tuning.jsonl"])
    assert all(each.tables["data"]["validation"] == 0.0 for each in asked["results.jsonl"])
    assert {each.key["seed"] for each in asked["tuning.jsonl"]}.isdisjoint(
        {each.key["seed"] for each in asked["results.jsonl"]}
    )
    assert {each.key["rate"] for each in asked["results.jsonl"]} == {0.2}
    assert [line["clients"] for line in lines(tmp_path)] == ["1%", "10%", "20%", "50%", "100%"]
    assert [line["published"] for line in lines(tmp_path)][:2] == ["222, 572", "96, 322"]


def test_reaching_the_target_early_beats_any_accuracy_that_falls_short():
    early, late, never = (row(arm(TABLE, "plain"), arrives=when) for when in (30, 60, None))
    assert experiment.quality(early) > experiment.quality(late) > experiment.quality(never)
    assert experiment.quality(never) > experiment.quality(never | {"diverged": True})


def test_without_a_target_tuning_takes_the_least_held_out_loss():
    key = {"target": 0.0}
    low, high = ({"key": key, "diverged": False, "curve": [[5, loss, 0.5, 1, 1, 1]]} for loss in (0.4, 0.6))
    assert experiment.quality(low) > experiment.quality(high)


def test_the_table_has_rounds_by_seed_and_bytes_in_all(tmp_path):
    found = [row(arm(TABLE, "plain", seed=seed), arrives=30 + 10 * seed) for seed in (0, 1)]
    found += [row(arm(TABLE, "sketched", seed=seed), arrives=140, bytes_each=500) for seed in (0, 1)]
    report.write(found, tmp_path)
    (line,) = lines(tmp_path)
    assert (line["rounds, plain"], line["rounds, sketched"], line["ratio"]) == ("30, 40", "140, 140", "4.00")
    assert (line["published"], line["their ratio"], line["rates"]) == ("96, 322", "3.35", "0.2 and 0.2")
    assert (line["sent in a round, plain"], line["sketched"]) == ("1,000 B", "500 B")
    assert (line["received in a round, plain"], line["sketched 1"]) == ("1,000 B", "500 B")
    assert (line["all sent, plain"], line["sketched 2"], line["ratio 1"]) == ("350 kB", "700 kB", "2.00")
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")


def test_what_falls_short_of_the_target_shows_its_best_accuracy_and_bounds_only(tmp_path):
    report.write([row(arm(TABLE, "plain"), arrives=40), row(arm(TABLE, "sketched"), arrives=None)], tmp_path)
    (line,) = lines(tmp_path)
    assert (line["rounds, sketched"], line["ratio"], line["sketched 2"]) == ("> 600 (0.960)", "> 15.00", "> 6.00 MB")
    report.write([row(arm(TABLE, "plain"), arrives=None), row(arm(TABLE, "sketched"), arrives=40)], tmp_path)
    assert lines(tmp_path)[0]["ratio"] == "—"
    diverged = row(arm(TABLE, "sketched"), arrives=None) | {"diverged": True, "curve": []}
    report.write([row(arm(TABLE, "plain"), arrives=40), diverged], tmp_path)
    assert lines(tmp_path)[0]["rounds, sketched"] == "diverged after 0"


def test_without_a_target_accuracies_are_compared(tmp_path):
    short = replace(FIGURE, rounds=[7])
    report.write([row(arm(short, method), arrives=7) for method in short.methods], tmp_path)
    (line,) = lines(tmp_path)
    assert (line["best accuracy, plain"], line["best accuracy, sketched"], line["ratio"]) == ("0.970", "0.970", "1.00")
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
