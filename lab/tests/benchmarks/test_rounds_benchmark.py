"""The benchmark of rounds runs, records and draws. How fast anything is, is not for a test to say."""

import pytest
from quick import load, run_quickly


@pytest.mark.slow
def test_it_races_ours_against_the_loop_and_records_ratios(tmp_path):
    """Flower takes part where it is installed."""
    module = load("rounds", passes=1, rounds=1, idle_rounds=1, participants=(2,), populations=(100,))
    rows = run_quickly(module, tmp_path).rows
    assert {"sketchfed", "autograd, 1 thread"} <= {str(value) for row in rows for value in row.values()}
    assert (tmp_path / "rounds.svg").read_text().startswith("<svg")
