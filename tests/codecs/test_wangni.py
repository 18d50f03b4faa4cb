"""Wangni's sparsification: the probabilities of their greedy algorithm at rest, unbiased, and packets whose parts agree."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import subsets
from sketchfed.codecs.wangni import Wangni, split
from sketchfed.errors import InputError, WireError
from sketchfed.wire import Bits, Packet, pack

SEED = PublicSeed(7)
X = torch.randn(80, generator=torch.Generator().manual_seed(1)) ** 3


def probabilities(x: np.ndarray, size: int) -> np.ndarray:
    _, scale = split(np.abs(x), size)
    return np.minimum(np.abs(x), scale) / scale if scale else (x != 0).astype(float)


def greedy(x: np.ndarray, size: int) -> np.ndarray:
    """Wangni et al. 2018, Alg. 3, as printed, run until it changes nothing."""
    p = np.minimum(size * np.abs(x) / np.abs(x).sum(), 1)
    while True:
        active = p < 1
        if not p[active].sum() > 0:
            return p
        gain = (size - len(x) + active.sum()) / p[active].sum()
        if gain <= 1 + 1e-12:
            return p
        p = np.minimum(gain * p, 1)


@cache
def sent(size: int) -> list[torch.Tensor]:
    """What arrives of X from each of 500 clients."""
    codec = Wangni(dim=80, size=size)
    return [codec.decode([codec.encode(X, SEED, client)], SEED) for client in range(500)]


VECTORS = {
    "normal": X.sign() * X.abs() ** (1 / 3),
    "outliers": X,
    "wild": X.double() ** 5,
    "flat": torch.ones(80),
    "geometric": 0.5 ** torch.arange(80.0),
    "few": torch.cat([torch.zeros(70), torch.arange(1.0, 11)]),
    "one": torch.eye(80)[5],
}


@pytest.mark.parametrize("size", [1, 2, 9, 40, 79, 80])
@pytest.mark.parametrize("name", VECTORS)
def test_probabilities_are_those_of_the_greedy_algorithm_at_rest(name, size):
    x = VECTORS[name].double().numpy()
    assert np.allclose(probabilities(x, size), greedy(x, size), rtol=1e-9)


@settings(deadline=None)
@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=40), st.data())
def test_the_expected_number_is_size_or_all_that_is_not_zero(numbers, data):
    x = np.array(numbers)
    size = data.draw(st.integers(1, len(x)))
    assert probabilities(x, size).sum() == pytest.approx(min(size, np.count_nonzero(x)), rel=1e-9)
    threshold, scale = split(x, size)
    assert np.count_nonzero(x > threshold) < size
    assert (x[x <= threshold] <= scale).all()


@pytest.mark.parametrize("size", [3, 20, 60])
def test_its_error_is_the_least_that_these_probabilities_allow(size):
    """E‖sent − x‖² = Σxᵢ²(1/pᵢ − 1), below dim/size − 1. False alarm below 1e-6 a size, by Student's t."""
    codec, x = Wangni(dim=80, size=size), X.double().numpy()
    low, high = mean_interval([float((each - X).square().sum()) for each in sent(size)], false_alarm=1e-6)
    expected = (x**2 * (1 / probabilities(x, size) - 1)).sum()
    assert low <= expected <= high
    assert expected <= (1 / codec.shrinkage - 1) * (x**2).sum()


def test_flat_vectors_have_the_largest_variance():
    x = np.ones(80)
    assert (1 / probabilities(x, 20)).sum() / 80 == pytest.approx(1 / Wangni(dim=80, size=20).shrinkage)


def test_the_number_that_is_sent_is_random_around_size():
    """False alarm below 1e-6, by Student's t."""
    counts = [int(each.count_nonzero()) for each in sent(20)]
    low, high = mean_interval(counts, false_alarm=1e-6)
    assert low <= 20 <= high
    assert len(set(counts)) > 5


def test_sure_coordinates_arrive_as_they_are_and_others_as_one_magnitude():
    codec = Wangni(dim=80, size=20)
    packet = codec.encode(X, SEED)
    decoded = codec.decode([packet], SEED)
    sure = X.abs().double() > packet.scalars["scale"]
    assert 0 < sure.sum() < 20
    assert torch.equal(decoded[sure], X[sure])
    others = decoded[~sure][decoded[~sure] != 0]
    assert torch.allclose(others.abs(), torch.tensor(packet.scalars["scale"], dtype=torch.float32))
    assert torch.equal(others.sign(), X[~sure][decoded[~sure] != 0].sign())


def test_a_drawn_coordinate_costs_its_place_and_a_sign():
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    codec = Wangni(dim=100_000, size=1_000)
    assert len(pack(codec.bare(codec.encode(x, SEED)))) < 1.1 * 1_000 * (8.7 + 1) / 8 + 100


@pytest.mark.parametrize("bits", [32, 8, 1])
def test_fewer_numbers_than_size_are_all_sent(bits):
    codec, x = Wangni(dim=80, size=20, bits=bits), VECTORS["few"]
    packet = codec.encode(x, SEED)
    assert packet.scalars["scale"] == 0
    decoded = codec.decode([packet], SEED)
    assert torch.allclose(decoded, x, atol=0 if bits == 32 else packet.scalars["step"] / 2 + 1e-6)


@pytest.mark.parametrize("size", [1, 20, 80])
def test_a_zero_vector_is_nothing_at_all(size):
    codec = Wangni(dim=80, size=size)
    packet = codec.encode(torch.zeros(80), SEED)
    assert codec.check(packet, 0, SEED) == 0
    assert torch.equal(codec.decode([packet], SEED), torch.zeros(80))


def test_all_numbers_of_a_flat_vector_take_one_sign_each():
    codec = Wangni(dim=80, size=80)
    packet = codec.encode(-3 * torch.ones(80), SEED)
    assert set(packet.arrays) == {"drawn", "signs"}
    assert torch.equal(codec.decode([packet], SEED), -3 * torch.ones(80))


def test_what_would_overflow_is_refused():
    with pytest.raises(InputError, match=r"would arrive as 8e\+39, more than float32 holds"):
        Wangni(dim=80, size=1).encode(torch.full((80,), 1e38), SEED)


def test_the_norm_is_at_most_that_of_the_vector_in_the_mean_square_and_the_same_for_flat_ones():
    """False alarm below 2e-6, by Student's t."""
    codec = Wangni(dim=80, size=20)
    for x in (X, torch.ones(80)):
        squares = [codec.norm(codec.encode(x, SEED, client), SEED) ** 2 for client in range(500)]
        low, high = mean_interval(squares, false_alarm=1e-6)
        assert low <= float(x.square().sum())
        assert high >= 80 or x is X


def packet(sure: list[int], drawn: list[int], **changes: object) -> Packet:
    """A packet of 80 numbers with these coordinates, put together by hand."""
    arrays = {
        "rows": subsets.to_bits(np.array(sure, np.int64), dim=80),
        "values": torch.ones(len(sure)),
        "drawn": subsets.to_bits(np.array(drawn, np.int64), dim=80),
        "signs": Bits(torch.zeros(len(drawn)).long(), bits=1),
    } | changes
    return Packet(kind="wangni", arrays={k: v for k, v in arrays.items() if v is not None}, scalars={"client": 0, "scale": 2.0})


def test_parts_of_a_packet_must_agree():
    codec = Wangni(dim=80, size=5)
    codec.check(packet([1, 2], [3, 4, 5]), 0)
    codec.check(packet([], [3], rows=None, values=None), 0)
    spoilt = {
        "coordinate 3 both as sure and as drawn": packet([1, 3], [3, 4, 5]),
        "5 sure coordinates, but with size = 5 at most 4": packet([1, 2, 3, 4, 5], [9]),
        "an array 'rows' of": packet([1, 2], [3], values=torch.ones(3)),
        "an array 'values' of": packet([], [3], values=None),
        "array 'rows' of 1-bit.*missing": packet([1], [3], rows=None),
        "an array 'drawn' of": packet([1], [3, 4, 5], signs=Bits(torch.zeros(2).long(), bits=1)),
        "an array 'signs' of": packet([1], [3], signs=None),
        "names 81 coordinates in 'drawn'": packet([1], [3], signs=Bits(torch.zeros(81).long(), bits=1)),
    }
    for message, bad in spoilt.items():
        with pytest.raises(WireError, match=message):
            codec.check(bad, 0)
        with pytest.raises(WireError, match=message):
            codec.decode([bad], SEED)


@pytest.mark.parametrize("scale", [-1.0, 1e39, "2", True])
def test_a_scale_that_cannot_be_is_refused(scale):
    bad = replace(packet([1], [3]), scalars={"client": 0, "scale": scale})
    with pytest.raises(WireError, match="should carry a number 'scale'"):
        Wangni(dim=80, size=5).check(bad, 0)
