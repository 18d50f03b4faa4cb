"""The kernel benchmark runs, records and draws. How fast anything is, is not for a test to say."""

import json
from xml.etree import ElementTree

import pytest
from quick import load, run_quickly

from sketchfed.errors import InputError


@pytest.fixture(scope="module")
def benchmark():
    return load("kernels", transforms=(10, 16), tenths=(10, 14), hundredths=(14,), rounds=1, turn=1e-5, starts=1)


@pytest.fixture(scope="module")
def run(benchmark, tmp_path_factory):
    """The folder of a run without the C library, and what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FFHT_LIBRARY", raising=False)
        made = run_quickly(benchmark, tmp_path_factory.mktemp("bench"))
    return made.folder, made.printed


def rows_of(folder):
    return [json.loads(line) for line in (folder / "kernels.jsonl").read_text().splitlines()]


def test_every_measurement_is_a_row_that_says_when_and_on_what_machine(run, benchmark):
    rows = rows_of(run[0])
    assert {row["topic"] for row in rows} == {"transform", "families", "first use", "dense", "start"}
    assert {row["what"] for row in rows if row["topic"] == "families"} >= set(benchmark.FAMILIES)
    for row in rows:
        assert row["seconds"] > 0
        assert row["date"]
        assert {"cpu", "python", "numba", "torch", "sketchfed"} <= set(row["machine"])


def test_targets_are_recorded_where_they_apply(run):
    asked = {(row["what"], row["dim"]) for row in rows_of(run[0]) if "met" in row}
    assert {("scipy DCT", 2**16), ("srht", 2**14), ("count", 2**14), ("balanced", 2**14)} <= asked
    assert not {("scipy DCT", 2**10), ("srht", 2**10)} & asked


def test_a_picture_is_drawn(run):
    assert ElementTree.parse(run[0] / "kernels.svg").getroot().tag.endswith("svg")


def test_without_the_c_library_its_column_is_left_out_and_that_is_said(run, benchmark):
    assert benchmark.FFHT not in {row["what"] for row in rows_of(run[0])}
    assert "FFHT (C) is left out: set FFHT_LIBRARY" in run[1]


def test_the_tables_end_with_how_many_targets_were_met(run):
    met = [row["met"] for row in rows_of(run[0]) if "met" in row]
    assert f"{sum(met)} of {len(met)} targets met" in run[1]


def test_a_wrong_path_to_the_c_library_is_refused_with_a_remedy(benchmark, tmp_path, monkeypatch):
    monkeypatch.setenv("FFHT_LIBRARY", str(tmp_path / "libnone.so"))
    with pytest.raises(InputError, match=r"FFHT_LIBRARY is .*libnone\.so.* unset FFHT_LIBRARY"):
        benchmark.main(folder=tmp_path, quick=True)
    assert not (tmp_path / "kernels.jsonl").exists()


def test_rows_are_appended_to_those_of_earlier_runs(benchmark, tmp_path):
    measurement = benchmark.Measurement(topic="transform", what="fwht", seconds=1.0)
    for _ in range(2):
        benchmark.harness.append_jsonl(tmp_path / "kernels.jsonl", [measurement])
    assert [row["what"] for row in rows_of(tmp_path)] == ["fwht", "fwht"]


@pytest.mark.parametrize(("ratio", "met"), [(1.6, True), (1.7, False), (None, None)])
def test_a_target_is_met_up_to_and_including_its_limit(benchmark, ratio, met):
    assert benchmark.Measurement(topic="families", what="srht", seconds=1.0, ratio=ratio, at_most=1.6).met is met
