"""The benchmark of secure sums runs, records and draws. How fast anything is, is not for a test to say."""

from xml.etree import ElementTree

import numpy as np
import pytest
from quick import load, run_quickly


@pytest.fixture(scope="module")
def benchmark():
    return load("secure", clients=(6, 12), size=200, dropouts=(0.0, 0.17), sampled=2, masks=((1_000, 16),), rounds=1, turn=1e-5)


@pytest.fixture(scope="module")
def run(benchmark, tmp_path_factory):
    return run_quickly(benchmark, tmp_path_factory.mktemp("bench"))


def test_masks_are_raced_against_flowers(run):
    ours, flower = (row for row in run[1] if row["topic"] == "masks")
    assert ours["what"] == "secure"
    assert flower["what"].startswith("Flower")
    assert flower["over"] == "secure"
    assert "met" in flower


def test_sums_are_compared_with_sums_in_the_clear_with_and_without_dropouts(run):
    sums = [row for row in run[1] if row["topic"] == "sum"]
    assert {(row["clients"], row["dropouts"]) for row in sums} == {(6, 0.0), (6, 0.17), (12, 0.0), (12, 0.17)}
    client = next(row for row in sums if row["what"] == "client")
    clear = next(row for row in sums if row["what"] == "client, in the clear")
    assert client["up_bytes"] > clear["up_bytes"] > 400
    assert client["down_bytes"] > clear["down_bytes"] == 0
    assert "targets met" in run[2]


def test_a_picture_is_drawn(run):
    assert ElementTree.parse(run[0] / "secure.svg").getroot().tag.endswith("svg")


def test_the_copy_of_flowers_call_draws_what_flower_draws(benchmark):
    """The first numbers of flwr 1.41.0's pseudo_rand_gen for this seed; compared with Flower itself where it is installed."""
    seed, shapes = bytes(range(32)), [(4,), (2, 3)]
    copied = benchmark._flowers_masks(seed, 1 << 24, shapes)
    assert [part.shape for part in copied] == shapes
    label, generate = benchmark.flower()
    assert label.startswith("Flower")
    assert all(np.array_equal(a, b) for a, b in zip(copied, generate(seed, 1 << 24, shapes), strict=True))
