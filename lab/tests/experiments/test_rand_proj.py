import json
from dataclasses import replace

import pytest

from sketchfed.errors import InputError
from sketchfed_lab.experiments import (
    EXPERIMENTS,
    find,
    make_settings,
    rand_proj_closed_form,
    rand_proj_correlation,
    rand_proj_identical,
    rand_proj_rank,
    recorded_settings,
)
from sketchfed_lab.experiments.rand_proj import Cell, deviation, measure, predicted

IDENTICAL = rand_proj_identical.Settings(
    dim=64, clients=[4, 8], fills=[0.25, 0.75], vectors="normal", trials=40, seed=7, processes=1
)
CORRELATION = rand_proj_correlation.Settings(
    dim=64, clients=[6], fills=[0.2, 0.7], correlation_shares=[0.0, 0.6], vectors="base", trials=40, seed=7, processes=1
)
RANK = rand_proj_rank.Settings(dims=[8, 16], trials=[60, 30], clients=[2, 4], fills=[0.5, 1.0], seed=7, processes=1)
CLOSED = rand_proj_closed_form.Settings(
    dims=[64],
    clients=[4],
    fills=[0.5],
    correlation_shares=[0.0, 0.5],
    beliefs=["none", "max"],
    trials=30,
    draws=8,
    seed=7,
    processes=1,
)
SMALL = {
    rand_proj_identical: IDENTICAL,
    rand_proj_correlation: CORRELATION,
    rand_proj_rank: RANK,
    rand_proj_closed_form: CLOSED,
}


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder in which an experiment was run with its small settings; each is run once."""
    folders = {}

    def run(module):
        if module not in folders:
            folders[module] = tmp_path_factory.mktemp("experiment")
            module.run(SMALL[module], folders[module])
        return folders[module]

    return run


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("rand-proj")])
def test_recorded_settings_are_settings(name):
    module = find(name)
    assert module.cells(make_settings(module, recorded_settings(name)))


@pytest.mark.parametrize("module", SMALL, ids=lambda module: module.__name__.rpartition(".")[2])
def test_everything_is_measured_and_written_and_not_measured_twice(module, measured, monkeypatch, capsys):
    settings, folder = SMALL[module], measured(module)
    first = results(folder)
    assert len(first) == len(module.cells(settings))
    assert {file.name for file in folder.iterdir()} == {"results.jsonl", "table.md", "figure.svg"}
    assert (folder / "figure.svg").read_text().startswith("<svg")
    assert (folder / "table.md").read_text().startswith("| ")
    capsys.readouterr()
    monkeypatch.setattr(module, "measure", None)
    module.run(settings, folder)
    assert results(folder) == first
    assert capsys.readouterr().out


def test_points_lie_where_theory_has_them(measured):
    """Twelve points of a fixed seed; five standard errors of forty trials."""
    rows = results(measured(rand_proj_identical))
    assert all(abs(deviation(row)) < 5 for row in rows)
    by = {(row["key"]["estimator"], row["key"]["clients"], row["key"]["size"]): row for row in rows}
    for clients, size in ((4, 12), (8, 6)):
        errors = [by[name, clients, size]["error"] for name in rand_proj_identical.SHOWN]
        assert errors == sorted(errors, reverse=True)
        assert by["Rand-Proj-Spatial (Max)", clients, size]["predicted"] == pytest.approx(
            rand_proj_identical.bound(64, clients, size), abs=1e-6
        )


def test_base_vectors_are_predicted_with_the_correlation_that_they_have(tmp_path):
    row = measure(Cell(estimator="Rand-k", dim=64, clients=5, size=8, correlation=3.2, vectors="base", trials=5, seed=7))
    assert row["correlation"] == pytest.approx(2.4)
    assert row["predicted"] == pytest.approx((64 / 8 - 1) / 5)


def test_without_correlation_projections_and_coordinates_are_alike():
    """Theorem 4.4."""
    shape = {"dim": 1024, "clients": 20, "size": 30, "correlation": 0.0}
    errors = [predicted(name, **shape) for name in rand_proj_correlation.SHOWN]
    assert errors == pytest.approx([(1024 / 30 - 1) / 20] * 3)


def test_two_clients_that_fill_the_space_seldom_do(measured):
    rows = results(measured(rand_proj_rank))
    share = {(r["key"]["dim"], r["key"]["clients"], r["key"]["size"]): rand_proj_rank.deficient(r) for r in rows}
    assert share[8, 2, 4] > 0.5
    assert share[16, 4, 2] < 0.2
    assert all(sum(row["ranks"].values()) == row["key"]["trials"] for row in rows)


def test_ranks_need_a_number_of_trials_for_every_dim():
    with pytest.raises(InputError, match="a number for each of the 2 dims, got"):
        rand_proj_rank.cells(replace(RANK, trials=[5]))


def test_beta_is_what_simulation_says(measured):
    rows = results(measured(rand_proj_closed_form))
    assert {row["key"]["ensemble"] for row in rows} == {"srht", "balanced", "gaussian", "orthonormal", "sampling"}
    assert all(row["beta_closed"] == pytest.approx(row["beta"], rel=0.05) for row in rows)
    for row in rows:
        if row["key"]["correlation"] == 0 and row["key"]["belief"] in ("known", "none"):
            assert row["beta_closed"] == pytest.approx(64 / row["key"]["size"])
