"""What a neighbour learns: the cases, what is attacked in them, and how it is written up. On digits, which are embedded."""

from dataclasses import replace

import pytest

from sketchfed.config import load_config
from sketchfed.data import load
from sketchfed_lab.experiments import audit_neighbours as experiment
from sketchfed_lab.experiments import audit_neighbours_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings

SETTINGS = make_settings(experiment, recorded_settings("audit-neighbours"))
TINY = replace(
    SETTINGS,
    cases=["dbcl 0.5 complete", "gossip dense ring"],
    larger=["gossip dense ring"],
    batch=3,
    hidden=8,
    nodes=4,
    rounds=4,
    victims=[0, 2],
    iterations=2,
    shadows=12,
    trees=4,
    seeds=[0],
    processes=1,
)


@pytest.fixture(autouse=True)
def digits(monkeypatch):
    dataset = load("digits")
    small = replace(dataset, prepare=lambda x: dataset.prepare(x).reshape(-1, 1, 8, 8), shape=(1, 8, 8))
    monkeypatch.setattr(experiment, "images", lambda: small)
    experiment._brightness.cache_clear()
    yield
    experiment._brightness.cache_clear()


@pytest.mark.parametrize("case", sorted({*SETTINGS.cases, *SETTINGS.larger}))
def test_every_case_names_a_run_between_neighbours(case):
    config = load_config(experiment.tables_of(case, 1, 0, SETTINGS))
    assert config.graph is not None
    assert (config.privacy is not None) == (" 8" in case)


def test_cases_are_attacked_and_written_up(tmp_path):
    experiment.run(TINY, tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "| dbcl 0.5 complete | 1 |" in text
    assert "| gossip dense ring | 3 |" in text
    assert (tmp_path / "figure.svg").stat().st_size > 1_000


def test_changes_of_the_first_round_are_seen_as_they_are_and_two_messages_do_not_show_them():
    blind, plain, larger = (experiment.audited(arm) for arm in experiment.arms(TINY))
    for row in (blind, plain, larger):
        assert report.cosine_of(row, report.MESSAGE, (0,)) > 0.999
    assert report.cosine_of(blind, report.ALL, (1,)) > 0.9
    assert abs(report.cosine_of(blind, report.TWO, (1, 2, 3))) < 0.5
    assert "images" not in larger
    assert all(value > 60 for value in plain["images"]["psnr"]["all messages, division"][:1])
