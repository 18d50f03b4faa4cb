"""The benchmark of decoding runs, records and draws. How fast anything is, is not for a test to say."""

from xml.etree import ElementTree

import numpy as np
import pytest
from quick import load, run_quickly


@pytest.fixture(scope="module")
def benchmark():
    module = load("mean", settings=((4, 12),), logs=(10, 14), rounds=1, turn=1e-5)
    module.DIM = 128
    module.scale = lambda dim: [  # what it does in a process of its own, here
        module.Measurement(
            topic="scale", what="decode", seconds=module._decoded_alone(dim)[0], facts={"dim": dim, "clients": 50}
        )
    ]
    return module


@pytest.fixture(scope="module")
def run(benchmark, tmp_path_factory):
    return run_quickly(benchmark, tmp_path_factory.mktemp("bench"))


def test_everything_is_measured_and_what_was_asked_is_judged(run):
    _, rows, printed = run
    assert {row["topic"] for row in rows} == {"decoder", "difference", "belief", "encoding", "scale", "growth"}
    judged = {(row["topic"], row["what"]) for row in rows if "met" in row}
    assert judged >= {
        ("decoder", "the paper's, eig"),
        ("decoder", "the same with eigh"),
        ("encoding", "srht"),
        ("encoding", "balanced"),
        ("growth", "n·dim·log dim"),
    }
    met = [row["met"] for row in rows if "met" in row]
    assert f"{sum(met)} of {len(met)} targets met" in printed


def test_our_decoder_and_the_papers_find_the_same(run):
    differences = [row for row in run[1] if row["topic"] == "difference"]
    assert len(differences) == 2
    assert all(row["met"] and row["ratio"] < 1e-9 for row in differences)


def test_a_picture_is_drawn(run):
    assert ElementTree.parse(run[0] / "mean.svg").getroot().tag.endswith("svg")


def test_the_papers_decoder_is_its_equation(benchmark):
    """For maps that do not overlap S is a projection, T(1) = 1, and the estimate is Gᵀy whatever ρ is."""
    rows, y = np.eye(6)[:4], np.arange(4.0)
    for symmetric in (False, True):
        found = benchmark.paper_decoder(rows, y, 0.4, symmetric=symmetric)
        assert np.allclose(found, [0, 1, 2, 3, 0, 0])
