"""The benchmark of noise runs, records and draws, and its peers draw the same noise. How fast is not for a test to say."""

from fractions import Fraction
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats
from quick import load, run_quickly

from sketchfed.seeds import SecretSeed


@pytest.fixture(scope="module")
def benchmark():
    return load("privacy", deviations=(0.5, 4.5), samples=500, opendp_samples=50, shapes=((3, 20),), rounds=1, turn=1e-5)


@pytest.fixture(scope="module")
def run(benchmark, tmp_path_factory):
    return run_quickly(benchmark, tmp_path_factory.mktemp("bench"))


def test_everything_is_measured_and_what_was_asked_is_judged(run):
    folder, rows, printed = run
    assert {row["topic"] for row in rows} == {"discrete", "normals", "mechanism"}
    peers = {"numpy, vectorised"} | ({"OpenDP"} if find_spec("opendp") else set())
    assert {row["what"] for row in rows if "met" in row} == peers
    assert all(row["million_a_second"] > 0 for row in rows if row["topic"] == "discrete")
    met = [row["met"] for row in rows if "met" in row]
    assert f"{sum(met)} of {len(met)} targets met" in printed
    assert ElementTree.parse(folder / "privacy.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(81, 4)])
def test_the_peers_draw_the_same_noise(benchmark, variance):
    """χ² of their samples against exact probabilities, false alarm 1e-6: nothing easier is timed."""
    x = np.arange(-60, 61)
    law = np.exp(-(x**2) / (2 * float(variance)))
    law /= law.sum()
    drawn = {"numpy": benchmark.vectorised(SecretSeed.insecure(1), 20_000, *variance.as_integer_ratio())}
    sampler = benchmark.opendp_sampler(float(variance) ** 0.5)
    if sampler is not None:
        drawn["opendp"] = np.array(sampler([0] * 2_000))
    for name, samples in drawn.items():
        most = x[len(samples) * law >= 20].max()  # larger ones count as this one
        counts = np.bincount(samples.clip(-most, most) + most, minlength=2 * most + 1)
        expected = len(samples) * np.bincount(x.clip(-most, most) + most, weights=law)
        assert scipy.stats.chisquare(counts, expected).pvalue > 1e-6, name
