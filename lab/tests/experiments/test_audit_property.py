"""Property inference on recorded runs: batches are arranged as said, evidence is what was sent, and it is written up."""

import json
from dataclasses import replace

import pytest
import torch

from sketchfed.attacks import auc
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed_lab.experiments import audit_property as experiment
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.audit_property import Seats, arms, recorded_run, topic
from sketchfed_lab.experiments.audit_property_judges import BatchForest, Clues, by_line

SETTINGS = make_settings(experiment, recorded_settings("audit-property"))
TINY = replace(
    SETTINGS, cases=["digits 1"], undefended=["digits 1/4"], hidden=8, batch=8, rounds=12, first=2, last=9, judged=4, spare=4,
    epsilons=[8.0], pool=80, shadows=20, trees=4, seeds=[0],
)  # fmt: skip


def a_run(defence, epsilon=None, share=1.0):
    key = {"data": "digits", "share": share, "defence": defence, "epsilon": epsilon, "seed": 0}
    return recorded_run(key, TINY, topic("digits"))


def test_half_of_the_rounds_have_the_property_in_as_many_examples_as_said():
    _, counts = a_run("none", share=0.25)
    assert counts.count(0) == 6
    assert all(1 <= count <= 3 for count in counts if count)
    _, counts = a_run("sketch", epsilon=8.0)
    assert sorted(counts) == [0] * 6 + [8] * 6, "passes have no place in common"


@pytest.mark.parametrize("defence", ["none", "sketch", "dbcl"])
def test_what_examples_would_add_is_what_the_victim_sent(defence):
    recorded, _ = a_run(defence)
    batch = recorded.behind(3, (experiment.VICTIM,))
    for name, evidence in Seats(recorded).evidences(3, batch):
        if name in ("server", "client, plain part"):
            torch.testing.assert_close(evidence.rows.sum(0), evidence.values, rtol=1e-3, atol=1e-6)


def test_under_noise_it_differs_by_noise_of_the_stated_deviation():
    """A deviation of 60 numbers or more is within a half of the true one, but for odds below 1e-6."""
    recorded, _ = a_run("sketch", epsilon=8.0)
    [(_, evidence)] = Seats(recorded).evidences(3, recorded.behind(3, (experiment.VICTIM,)))
    assert len(evidence.values) >= 60
    assert float((evidence.values - evidence.rows.sum(0)).std()) == pytest.approx(evidence.noise, rel=0.5)


def test_both_judges_find_what_is_plain_to_see():
    seed, has = PublicSeed(0), torch.arange(80) < 40
    rows = torch.randn(80, 30, generator=torch.Generator().manual_seed(0))
    rows[has, 0] += 3
    forest, found = BatchForest(trees=20, shadows=40, share=1.0), {"forest": ([], []), "linear": ([], [])}
    for trial in range(12):
        inside = trial % 2 == 0
        chosen = torch.randperm(40, generator=torch.Generator().manual_seed(trial))[:8]
        evidence = Clues(values=rows[has == inside][chosen].sum(0), rows=rows, noise=0.0, sizes=[30])
        found["forest"][inside].append(forest.judge(evidence, has, 8, seed.child("trial", trial)))
        found["linear"][inside].append(by_line(evidence, has, 8, forest, seed.child("trial", trial)))
    for without, having in found.values():
        assert auc(having, without) > 0.9


def test_adults_sex_is_not_among_its_inputs():
    try:
        subject = topic("adult")
    except InputError as error:
        pytest.skip(str(error))
    assert subject.dataset.prepare(subject.dataset.x_train[:2]).shape == (2, 106)


def test_everything_runs_and_is_not_run_twice(tmp_path, monkeypatch):
    experiment.run(TINY, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["key"]["defence"], row["key"]["epsilon"]) for row in rows] == [
        ("none", None), ("dbcl", None), ("sketch", None), ("sketch", 8.0), ("none", None),
    ]  # fmt: skip
    assert len(rows[1]["attacks"]) == 4
    assert all(len(kinds["with"]) == len(kinds["without"]) == 2 for kinds in rows[1]["attacks"]["server"].values())
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written.keys() == {"results.jsonl", "table.md", "figure.svg"}
    assert len(written["table.md"].splitlines()) == 2 + 8
    monkeypatch.setattr(experiment, "recorded_run", None)
    experiment.run(TINY, tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == written


def test_noise_is_for_one_example_against_the_server():
    private = [experiment.tables_of(arm.key, SETTINGS)["privacy"] for arm in arms(SETTINGS) if arm.key["epsilon"] is not None]
    assert {table["epsilon"] for table in private} == {1.0, 8.0}
    assert all((table["unit"], table["observer"], table["delta"]) == ("example", "server", 1e-5) for table in private)


def test_half_of_the_adversarys_examples_have_the_property():
    pool, has = experiment.adversarys(topic("digits"), 40, PublicSeed(0))
    assert (len(pool.x), int(has.sum())) == (40, 20)


def test_a_case_that_cannot_be_read_is_refused():
    with pytest.raises(InputError, match=r"got 'adult'"):
        arms(replace(SETTINGS, cases=["adult"]))
