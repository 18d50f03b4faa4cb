"""The benchmark of rounds runs, records and draws. How fast anything is, is not for a test to say."""

import json
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from sketchfed.shipped import shipped


@pytest.mark.slow
def test_it_races_ours_against_the_loop_and_records_ratios(tmp_path):
    """Flower takes part where it is installed."""
    spec = spec_from_file_location("sketchfed_benchmark_rounds", shipped("benchmarks") / "rounds.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.QUICK = module.Plan(passes=1, rounds=1, idle_rounds=1, participants=(2,), populations=(100,))
    module.main(folder=tmp_path, quick=True)
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert {"sketchfed", "autograd, 1 thread"} <= {str(value) for row in rows for value in row.values()}
    assert (tmp_path / "rounds.svg").read_text().startswith("<svg")
