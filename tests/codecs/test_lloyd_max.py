"""The best levels for normal numbers are centroids of their cells, and lose what is published."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from sketchfed.codecs.lloyd_max import centroids, distortion, thresholds

every_width = pytest.mark.parametrize("bits", range(1, 9))


@every_width
def test_levels_ascend_and_are_symmetric(bits):
    levels = centroids(bits)
    assert len(levels) == 2**bits
    assert (np.diff(levels) > 0).all()
    assert np.array_equal(levels, -levels[::-1])


@every_width
def test_each_level_is_the_mean_of_the_numbers_nearest_to_it(bits):
    """Computed another way, from scipy's distribution function: so the levels are the fixed point of Lloyd's iteration."""
    levels, normal = centroids(bits), scipy.stats.norm
    edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    assert np.array_equal(thresholds(bits), edges[1:-1])
    upper = edges[len(levels) // 2 :]
    means = (normal.pdf(upper[:-1]) - normal.pdf(upper[1:])) / (normal.sf(upper[:-1]) - normal.sf(upper[1:]))
    assert np.abs(means - levels[len(levels) // 2 :]).max() < 1e-12


@every_width
def test_the_distortion_is_the_mean_square_error_of_rounding(bits):
    edges = np.concatenate([[-12], thresholds(bits), [12]])
    parts = zip(centroids(bits), edges, edges[1:], strict=False)
    error = sum(
        scipy.integrate.quad(lambda z, level=level: (z - level) ** 2 * scipy.stats.norm.pdf(z), low, high, epsabs=1e-13)[0]
        for level, low, high in parts
    )
    assert distortion(bits) == pytest.approx(error, abs=1e-11)


def test_one_bit_is_known_in_closed_form():
    assert centroids(1)[1] == pytest.approx(math.sqrt(2 / math.pi), abs=1e-15)
    assert distortion(1) == pytest.approx(1 - 2 / math.pi, abs=1e-15)


def test_tables_in_print_agree():
    """Max 1960, Table I: 4 and 8 levels to four digits, and the distortions of 2 to 16."""
    assert np.allclose(centroids(2)[2:], [0.4528, 1.510], atol=5e-4)
    assert np.allclose(centroids(3)[4:], [0.2451, 0.7560, 1.344, 2.152], atol=5e-4)
    assert [distortion(bits) for bits in (1, 2, 3, 4)] == pytest.approx([0.3634, 0.1175, 0.03454, 0.009497], rel=1e-3)


def test_tables_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        centroids(2)[0] = 0
