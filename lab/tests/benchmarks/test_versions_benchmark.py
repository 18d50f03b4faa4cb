"""The benchmark of two versions runs and records. How fast either is, is not for a test to say."""

import pytest
from quick import load, run_quickly

from sketchfed.errors import InputError
from sketchfed.sketches import SKETCHES
from sketchfed_lab.benchmarks import version_cells, versions

CELLS = {("sketch", f"{name}, {way}") for name in SKETCHES for way in ("apply", "adjoint")}
CELLS |= {("round", name) for name in version_cells.ROUNDS}


@pytest.mark.slow
def test_every_cell_of_a_version_is_compared_with_itself(tmp_path, monkeypatch):
    monkeypatch.setenv(versions.VARIABLE, str(versions.own_source()))
    _, rows, printed = run_quickly(load("versions", passes=1, turn=1e-5, turns=1, rounds=1), tmp_path)
    assert {(row["topic"], row["what"]) for row in rows} == CELLS
    assert all(row["ratio"] == row["seconds"] / row["before_seconds"] and row["control"] >= 1 for row in rows)
    assert f"{sum(row['met'] for row in rows)} of {len(rows)} targets met" in printed


def test_the_ratio_is_that_of_the_least_times_and_cells_of_one_version_have_none():
    best = {
        "before": {"round: a": 2.2},
        "now": {"round: a": 2.08, "round: b": 1.0},
        "before, again": {"round: a": 2.0},
        "now, again": {"round: a": 2.1, "round: b": 1.0},
    }
    old, new = versions.measurements(best)
    assert (old.ratio, old.met, old.facts["control"]) == (1.04, True, pytest.approx(2.2 / 2.0))
    assert (new.ratio, new.met) == (None, None)
    assert "–" in "".join(str(cell) for column in versions.table([old, new]).columns for cell in column.cells)


def test_a_version_that_cannot_run_the_cells_is_named_with_what_it_said(tmp_path):
    package = tmp_path / "sketchfed"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('too old')")
    with pytest.raises(InputError, match=r"cannot run the cells: RuntimeError: too old"):
        list(versions.raced({"before": tmp_path}, versions.QUICK))


def test_without_another_version_it_says_where_to_name_one(tmp_path, monkeypatch):
    monkeypatch.delenv(versions.VARIABLE, raising=False)
    with pytest.raises(InputError, match="Set SKETCHFED_BEFORE to the folder src of another checkout"):
        versions.other_source()
    monkeypatch.setenv(versions.VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match="holds no package sketchfed"):
        versions.other_source()
