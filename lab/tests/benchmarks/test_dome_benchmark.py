"""The benchmark of subspaces runs, records and draws. How fast anything is, is not for a test to say."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from quick import load, run_quickly

from sketchfed.subspaces import UPDATES

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_quickly(load("dome", dim=500, size=6, cycles=1), tmp_path_factory.mktemp("bench"))


def test_every_rule_is_raced_against_a_qr(run):
    races = [row for row in run.rows if row["topic"] == "update"]
    assert {row["over"] for row in races if row["what"] == "a QR from scratch"} == set(UPDATES)
    assert all("met" in row for row in races if "ratio" in row)


def test_memory_is_judged_where_the_system_tells_it(run):
    memory = [row for row in run.rows if row["topic"] == "memory"]
    assert len(memory) in (0, len(UPDATES))
    assert f"of {len(UPDATES) + len(memory)} targets met" in run.printed


def test_a_picture_is_drawn(run):
    assert ElementTree.parse(run.folder / "dome.svg").getroot().tag.endswith("svg")


def test_the_recording_has_every_rule_and_what_it_misses_is_told():
    """Of the last run in benchmarks/results/: a rule that became too slow or too large must be said to be so in its README."""
    rows = [json.loads(line) for line in (RESULTS / "dome.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["date"] == max(row["date"] for row in rows) and "met" in row]
    assert {row["rule"] for row in last} == set(UPDATES)
    assert all(row["met"] for row in last)
