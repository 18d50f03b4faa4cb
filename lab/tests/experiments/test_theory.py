import json
from dataclasses import asdict, replace

import pytest
import torch

from sketchfed.data import DataSet
from sketchfed.errors import InputError
from sketchfed_lab.experiments import theory
from sketchfed_lab.experiments.theory_report import relative

SETTINGS = theory.Settings(
    clients=2,
    rows=30,
    concentration=0.5,
    regularisation=0.1,
    local_steps=[1, 2],
    families=["srht", "count"],
    sizes=[8, 4, 2],
    runs=2,
    target=0.5,
    tuned_targets=[0.5, 0.2],
    max_rounds=3_000,
    seed=7,
)


@pytest.fixture(autouse=True)
def _small_data(monkeypatch):
    """Two overlapping classes in place of a9a. One of eight coordinates is empty, so least squares has μ = 0."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(200) % 2
    x = torch.randn(200, 8, generator=generator) + labels[:, None] * torch.tensor([1.0, 0.5] + [0.0] * 6)
    x[:, 7] = 0
    data = DataSet(
        name="small",
        x_train=x,
        y_train=labels,
        x_test=x[:10],
        y_test=labels[:10],
        outputs=2,
        shape=(8,),
        prepare=lambda rows: rows,
    )
    monkeypatch.setattr(theory, "load", lambda name: data)


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_everything_is_measured_and_written(tmp_path, capsys):
    theory.run(SETTINGS, tmp_path)
    header, *rest = results(tmp_path)
    constants, rows = rest[:2], rest[2:]
    assert header == {"settings": asdict(SETTINGS)}
    assert [c["problem"] for c in constants] == ["logistic", "linear"]
    assert constants[0]["strong_convexity"] == 0.1
    assert {row["family"] for row in rows} == {"dense", "srht", "count"}
    assert {row["rule"] for row in rows} == {*theory.RULES, "tuned"}
    assert all(row["worst_low"] <= 1 for row in rows if "worst_low" in row)  # the bounds hold; the seeds are fixed
    published = next(r for r in rows if (r["family"], r["size"], r["rule"]) == ("count", 4, "published"))
    assert published["alpha"] == 3 * 8 / 4
    assert published["rounds"] is not None
    assert {name.name for name in tmp_path.iterdir()} == {"results.jsonl", "table.md", "communication.svg", "bounds.svg"}
    assert "| count | 4 | " in (tmp_path / "table.md").read_text()
    assert (tmp_path / "bounds.svg").read_text().startswith("<svg")
    assert "written:" in capsys.readouterr().out


def test_theory_has_nothing_to_say_of_curvature_with_several_steps_or_without_strong_convexity():
    bench = theory.Bench(SETTINGS)
    said = {
        (case.problem, case.local_steps): set(bench.rules(case)) for case in theory.cases(SETTINGS, 8) if case.family == "srht"
    }
    assert "curvature" in said["logistic", 1]
    assert all("curvature" not in rules for key, rules in said.items() if key != ("logistic", 1))


def test_communication_is_relative_to_sending_everything_under_the_same_rule():
    common = {"problem": "logistic", "local_steps": 1, "dim": 8, "rule": "published"}
    rows = [
        common | {"family": "dense", "size": 8, "rounds": 10},
        common | {"family": "srht", "size": 2, "rounds": 60},
        common | {"family": "srht", "size": 4, "rounds": None},
        common | {"family": "srht", "size": 2, "rounds": 30, "rule": "tuned", "fraction": 0.5},
    ]
    assert relative(rows) == {
        ("logistic", 1, "dense", 8, "published"): 1.0,
        ("logistic", 1, "srht", 2, "published"): 1.5,
    }


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    few = replace(SETTINGS, local_steps=[1], families=["srht"], sizes=[8, 4], tuned_targets=[0.5])
    measured = []
    whole = theory.Bench.tuned

    def counting(bench, case):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(case)
        return whole(bench, case)

    monkeypatch.setattr(theory.Bench, "tuned", counting)
    with pytest.raises(KeyboardInterrupt):
        theory.run(few, tmp_path)
    with (tmp_path / "results.partial.jsonl").open("a") as file:
        file.write('[{"problem": "cut of')  # what a crash in the middle of writing leaves
    with pytest.raises(InputError, match="left by a run with other settings"):
        theory.run(replace(few, seed=8), tmp_path)
    monkeypatch.setattr(theory.Bench, "tuned", lambda bench, case: measured.append(case) or whole(bench, case))
    theory.run(few, tmp_path)
    assert len(measured) == len(set(measured)) == len(list(theory.cases(few, 8)))
    monkeypatch.setattr(theory.Bench, "tuned", whole)
    theory.run(few, tmp_path / "at once")
    assert results(tmp_path) == results(tmp_path / "at once")
