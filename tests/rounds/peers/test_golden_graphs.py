"""Nodes of this version say what nodes of earlier versions said."""

import json
from pathlib import Path

import pytest
from golden_graphs import CASES, digests

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "graphs.json").read_text())


@pytest.mark.parametrize("kind", CASES)
def test_nodes_say_the_same_bytes_for_the_same_changes(kind):
    """A difference is a break of compatibility; `tests/golden/make_graphs.py` records what is new."""
    assert digests(kind) == GOLDEN.get(kind), f"record it, if it is new: {json.dumps({kind: digests(kind)})}"
