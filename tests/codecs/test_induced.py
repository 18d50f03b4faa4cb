"""The induced compressor: the largest exactly, some of the rest at random."""

import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs.induced import Induced
from sketchfed.codecs.rand_k import RandK, rows_of
from sketchfed.codecs.top_k import largest
from sketchfed.wire import pack

SEED = PublicSeed(7)
X = torch.randn(80, generator=torch.Generator().manual_seed(1)) ** 3


def by_hand(x: torch.Tensor, client: int, half: int) -> torch.Tensor:
    """C₁(x) + C₂(x − C₁(x)), as Horváth & Richtárik define it."""
    top, drawn = torch.zeros_like(x), torch.zeros_like(x)
    kept, rows = largest(x, half), rows_of(SEED, client, dim=len(x), size=half)
    top[kept] = x[kept]
    drawn[rows] = len(x) / half * (x - top)[rows]
    return top + drawn


@pytest.mark.parametrize("size", [2, 3, 16, 17, 79, 80])
def test_it_is_the_top_half_and_a_random_half_of_what_is_left(size):
    codec = Induced(dim=80, size=size)
    assert torch.allclose(codec.decode([codec.encode(X, SEED, 3)], SEED), by_hand(X, 3, size // 2), rtol=1e-6)


def test_the_mean_is_that_of_what_each_packet_decodes_to():
    codec = Induced(dim=80, size=12)
    vectors = [X, X.flip(0), -2 * X]
    packets = [codec.encode(x, SEED, client) for client, x in enumerate(vectors)]
    expected = torch.stack([by_hand(x, client, 6) for client, x in enumerate(vectors)]).mean(0)
    assert torch.allclose(codec.decode(packets, SEED), expected, atol=1e-4)


def test_one_number_is_rand_k():
    codec, other = Induced(dim=80, size=1, clients=2), RandK(dim=80, size=1, clients=2)
    assert set(codec.encode(X, SEED, 3).arrays) == {"values"}
    assert torch.equal(codec.decode([codec.encode(X, SEED, 3)], SEED), other.decode([other.encode(X, SEED, 3)], SEED))
    assert codec.mse(3.0, 1.0) == other.mse(3.0, 1.0)
    assert codec.shrinkage == other.shrinkage
    assert codec.norm(codec.encode(X, SEED, 3), SEED) == pytest.approx(other.norm(other.encode(X, SEED, 3), SEED))


def test_an_odd_size_sends_one_number_less():
    assert pack(Induced(dim=80, size=9).encode(X, SEED)) == pack(Induced(dim=80, size=8).encode(X, SEED))


@pytest.mark.parametrize("size", [4, 16])
def test_its_error_is_that_of_rand_k_on_what_the_top_part_leaves(size):
    """E‖C(x) − x‖² = (dim/k₂ − 1)‖x − C₁(x)‖². False alarm below 1e-6, by Student's t."""
    codec = Induced(dim=80, size=size)
    rest = X.clone()
    rest[largest(X, size // 2)] = 0
    decoded = [codec.decode([codec.encode(X, SEED, client)], SEED) for client in range(1_000)]
    low, high = mean_interval([float((x - X).square().sum()) for x in decoded], false_alarm=1e-6)
    assert low <= (80 / (size // 2) - 1) * float(rest.square().sum()) <= high


def test_what_error_feedback_applies_follows_from_the_largest_variance():
    """Equal magnitudes leave the top part as little as there can be: 1 + ω = E‖C(x)‖²/‖x‖²."""
    codec, flat = Induced(dim=80, size=16), torch.ones(80)
    squares = [float(codec.decode([codec.encode(flat, SEED, client)], SEED).square().sum()) / 80 for client in range(500)]
    low, high = mean_interval(squares, false_alarm=1e-6)
    assert low <= 1 / codec.shrinkage <= high


def test_only_the_top_part_pays_for_its_coordinates():
    induced = Induced(dim=100_000, size=1_000)
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    assert len(pack(induced.encode(x, SEED))) < 4 * 1_000 + 500 * 9.7 / 8 + 100


def test_the_norm_is_right_in_the_mean_square():
    """False alarm below 1e-6, by Student's t."""
    codec = Induced(dim=80, size=16)
    squares = [codec.norm(codec.encode(X, SEED, client), SEED) ** 2 for client in range(1_000)]
    low, high = mean_interval(squares, false_alarm=1e-6)
    assert low <= float(X.square().sum()) <= high
