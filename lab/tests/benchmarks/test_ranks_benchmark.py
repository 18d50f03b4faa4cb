"""The benchmark of ranks runs and records. How fast anything is, is not for a test to say."""

import pytest
from quick import load, run_quickly

from sketchfed_lab.benchmarks import models, ranks
from sketchfed_lab.benchmarks.peers import Result, Work


@pytest.mark.slow
def test_ranks_and_threads_are_compared_and_bytes_between_ranks_are_counted(tmp_path, monkeypatch):
    monkeypatch.delenv(models.VARIABLE, raising=False)
    rows = run_quickly(load("ranks", passes=1, rounds=1), tmp_path).rows
    found = {row["what"]: row for row in rows if row["topic"] == "ranks"}
    assert {ranks.THREADS, ranks.ON_RANKS} <= found.keys()
    assert len(found[ranks.ON_RANKS]["peaks"]) == ranks.RANKS
    assert found[ranks.ON_RANKS]["received"] > 5 * 4 * 199_210  # half of the ten clients send a whole model


def test_on_paper_rank_0_sends_each_rank_the_same_and_receives_from_all_clients_but_its_own():
    facts = {"ranks": 2, "sent": 100.0, "received": 500.0}
    results = {ranks.ON_RANKS + words: Result([1.0], 1.0, 1, facts) for words in ("", ranks.SKETCHED)}
    paper = {m.what: m.facts for m in ranks.scaled(results, Work(rounds=1))}
    assert paper["2 ranks"] == facts
    assert paper["4 ranks"] == {"ranks": 4, "sent": 300.0, "received": 750.0}
