"""Seeds are fixed; where odds of a false alarm are stated, they are those over all seeds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_inputs import ROWS, SECRET, SHARED, clipped, discrete, rows_of

from odds import mean_interval
from sketchfed.errors import InputError
from sketchfed.privacy.base import Mechanism
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.flattening import Flattening
from sketchfed.privacy.gaussian import GaussianNoise
from sketchfed.privacy.rounded import Rounded
from sketchfed.seeds import PublicSeed, SecretSeed


def every(**changes) -> list[Mechanism]:
    shape = {"size": 20, "clip": 1.0} | changes
    return [GaussianNoise(deviation=1.0, **shape), discrete(**shape), Rounded(clients=10, units=9, **shape)]


def summed(mechanism: Mechanism, rows: torch.Tensor) -> torch.Tensor:
    """Clipped and added up, without noise, as the server sees it."""
    if isinstance(mechanism, GaussianNoise):
        return mechanism.clipped_sum(rows)
    total = mechanism.clipped_sum(rows, SECRET, SHARED)
    return mechanism.recovered(total & 2**mechanism.bits - 1, SHARED)


# What all of them do --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_long_rows_are_scaled_to_the_clip_and_short_ones_are_left_alone(mechanism):
    rows = torch.diag(torch.tensor([5.0, 0.5, 1.0, -7.0, -0.25]))
    rows = torch.cat([rows, torch.zeros(5, 15)], 1)
    expected = torch.tensor([1.0, 0.5, 1.0, -1.0, -0.25] + [0.0] * 15)
    assert (summed(mechanism, rows) - expected).norm() < 0.15
    assert mechanism.norms(rows).tolist() == [5.0, 0.5, 1.0, 7.0, 0.25]
    assert (summed(mechanism, rows.double()) - expected).norm() < 0.15


@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_no_rows_and_zero_rows_add_nothing(mechanism):
    assert summed(mechanism, torch.zeros(0, 20)).tolist() == [0.0] * 20
    assert summed(mechanism, torch.zeros(3, 20)).tolist() == [0.0] * 20


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_rows_that_are_not_finite_are_refused(mechanism, bad):
    rows = torch.zeros(4, 20)
    rows[2, 7] = bad
    with pytest.raises(InputError, match=r"row 2 .*NaN, infinity"):
        summed(mechanism, rows)
    with pytest.raises(InputError, match="row 2"):
        mechanism.norms(rows)


@pytest.mark.parametrize("mechanism", every(), ids=lambda mechanism: mechanism.name)
def test_rows_and_sums_of_another_shape_are_refused(mechanism):
    for rows in (torch.zeros(20), torch.zeros(2, 19), torch.zeros(2, 20, dtype=torch.int64), torch.zeros(1, 2, 20)):
        with pytest.raises(InputError, match=r"rows \(units, 20\)"):
            summed(mechanism, rows)
    with pytest.raises(InputError, match="20 numbers"):
        mechanism.noised(torch.zeros(19, dtype=torch.int64), SECRET)


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf, None, "1"])
def test_a_clip_that_bounds_nothing_is_refused(clip):
    for make in (
        lambda: GaussianNoise(size=3, clip=clip, deviation=1.0),
        lambda: discrete(clip=clip),
        lambda: every(clip=clip),
    ):
        with pytest.raises(InputError, match="clip must be a positive number"):
            make()


@pytest.mark.parametrize("size", [0, -1, 2.0, True, 2**31])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match="size"):
        every(size=size)


@pytest.mark.parametrize("bits", [7, 33, 0, 16.0, True, None])
def test_integers_have_8_to_32_bits(bits):
    for make in (lambda: discrete(bits=bits), lambda: Rounded(size=3, clip=1.0, clients=1, bits=bits)):
        with pytest.raises(InputError, match="8 to 32 bits"):
            make()
    if bits is not None:
        with pytest.raises(InputError, match="8 to 32 bits"):
            DiscreteGaussian.planned(size=3, clip=1.0, multiplier=1.0, clients=1, least=1, bits=bits)


def test_public_seeds_make_no_noise():
    with pytest.raises((InputError, AttributeError)):
        discrete().noised(torch.zeros(20, dtype=torch.int64), SHARED)
    with pytest.raises((InputError, AttributeError)):
        every()[0].noised(torch.zeros(20), SHARED)


# Gaussian -------------------------------------------------------------------------------------------------------------


def test_normal_noise_has_its_deviation_and_no_mean():
    """χ² and Student intervals with a false alarm of 1e-6 each."""
    mechanism = GaussianNoise(size=200_000, clip=2.0, deviation=3.0)
    total = torch.full((200_000,), 7.0)
    noise = (mechanism.noised(total, SECRET) - total).numpy().astype(np.float64)
    low, high = mean_interval(noise, false_alarm=1e-6)
    assert low <= 0 <= high
    low, high = mean_interval(noise**2, false_alarm=1e-6)
    assert low <= 9 <= high
    assert mechanism.multiplier == 1.5


def test_the_gaussian_sum_is_exact_to_float32_at_a_hundred_thousand_numbers():
    rows = rows_of(100, 100_000)
    exact = clipped(rows, 1.0).sum(0)
    found = GaussianNoise(size=100_000, clip=1.0, deviation=0.0).clipped_sum(rows)
    assert found.dtype == torch.float32
    assert (found - exact).norm() <= 2e-7 * exact.norm()


def test_no_deviation_adds_nothing_and_wild_ones_are_refused():
    total = torch.arange(5.0)
    assert (GaussianNoise(size=5, clip=1.0, deviation=0.0).noised(total, SECRET) == total).all()
    for deviation in (-1.0, math.nan, math.inf, None):
        with pytest.raises(InputError, match="deviation"):
            GaussianNoise(size=5, clip=1.0, deviation=deviation)


# Flattening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 127, 128, 509, 513, 4097, 50_890])
def test_flattening_is_a_rotation(size):
    rows = np.random.default_rng(size).normal(size=(3, size))
    flat, turned = rows.copy(), Flattening(size=size, seed=SHARED)
    turned.apply_(flat)
    assert np.allclose(flat @ flat.T, rows @ rows.T, rtol=1e-12, atol=1e-9)
    for row, original in zip(flat, rows, strict=True):
        again = row.copy()
        turned.invert_(again)
        assert np.allclose(again, original, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [3, 65, 100, 513])
@pytest.mark.parametrize("place", ["first", "last", "everywhere"])
def test_no_vector_keeps_a_large_number(size, place):
    """E y² ≤ ‖x‖²/width for every number y, by Student's bound over 400 seeds; false alarm 1e-6 in all for each case."""
    x = np.ones(size) / math.sqrt(size) if place == "everywhere" else np.eye(size)[0 if place == "first" else -1]
    squares = np.empty((400, size))
    for seed in range(400):
        flat, turned = x[None].copy(), Flattening(size=size, seed=PublicSeed(seed))
        turned.apply_(flat)
        squares[seed] = flat[0] ** 2
    low = [mean_interval(column, false_alarm=1e-6 / size)[0] for column in squares.T]
    assert max(low) <= 1 / turned.width
    assert 1 / turned.width < 2 / size


# Rounded --------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    row=ROWS,
    clients=st.integers(1, 300),
    units=st.integers(1, 3),
    bits=st.integers(8, 32),
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
)
def test_rounded_sums_never_wrap(row, clients, units, bits, clip, seed):
    if 4 * clients * units >= 2**bits:
        return
    mechanism = Rounded(size=row.size, clip=clip, clients=clients, units=units, bits=bits)
    rows = torch.from_numpy(row).expand(units, -1)
    secret, shared = SecretSeed.insecure(seed), PublicSeed(seed)
    total = mechanism.clipped_sum(rows, secret, shared)
    assert int(total.abs().max()) * clients < 2 ** (bits - 1)
    sent = mechanism.noised(total, secret)
    found = mechanism.recovered(sent * clients % 2**bits, shared)
    exact = clients * clipped(rows, clip).sum(0)
    assert (found - exact).abs().max() <= 1.01 * clients * units / mechanism.scale + 1e-6 * exact.abs().max()


def test_rounding_is_unbiased_and_as_fine_as_stated():
    """A thousand draws; the mean of each number, false alarm 1e-6 in all."""
    mechanism, rows = Rounded(size=30, clip=1.0, clients=20, units=3, bits=12), clipped(rows_of(3, 30), 1.0)
    errors = np.array(
        [
            mechanism.recovered(mechanism.clipped_sum(rows, SECRET.child("draw", i), SHARED) % 2**12, SHARED) - rows.sum(0)
            for i in range(1000)
        ]
    )
    for column in errors.T:
        low, high = mean_interval(column, false_alarm=1e-6 / 30)
        assert low <= 0 <= high
    assert errors.var(0).max() <= 3 / (4 * mechanism.scale**2) * 1.3


def test_rounded_refuses_too_few_bits_and_too_many_rows():
    with pytest.raises(InputError, match="bits = 9"):
        Rounded(size=3, clip=1.0, clients=100, bits=8)
    assert Rounded(size=3, clip=1.0, clients=100, bits=9).scale > 1
    with pytest.raises(InputError, match="fewer"):
        Rounded(size=3, clip=1.0, clients=2**20, units=2**20)
    with pytest.raises(InputError, match="units = 2"):
        Rounded(size=3, clip=1.0, clients=1).clipped_sum(torch.zeros(2, 3), SECRET, SHARED)
    assert not Rounded(size=3, clip=1.0, clients=1).private
    assert GaussianNoise.private
    assert DiscreteGaussian.private
