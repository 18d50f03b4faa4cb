"""Rand-k: the coordinates that the seed names, as they are, times dim/size."""

import pytest
import torch

from odds import mean_interval, uniformity
from sketchfed import PublicSeed
from sketchfed.codecs import make_codec
from sketchfed.codecs.rand_k import RandK, rows_of
from sketchfed.errors import InputError

SEED = PublicSeed(7)
X = torch.randn(50, generator=torch.Generator().manual_seed(1))


def test_a_packet_holds_the_drawn_coordinates_and_nothing_of_which_they_are():
    packet = RandK(dim=50, size=6).encode(X, SEED, client=3)
    assert set(packet.arrays) == {"values"}
    assert torch.equal(packet.arrays["values"], X[rows_of(SEED, 3, dim=50, size=6)])


def test_a_single_vector_decodes_to_its_drawn_coordinates_times_dim_over_size():
    codec, rows = RandK(dim=50, size=6), rows_of(SEED, 3, dim=50, size=6)
    decoded = codec.decode([codec.encode(X, SEED, 3)], SEED)
    assert torch.allclose(decoded[rows], X[rows] * 50 / 6)
    assert decoded.count_nonzero() == 6


def test_the_mean_is_that_of_what_each_packet_decodes_to():
    codec = RandK(dim=50, size=6, bits=8)
    packets = [codec.encode(X * scale, SEED, client) for client, scale in enumerate((1, -2, 5))]
    alone = torch.stack([codec.decode([packet], SEED) for packet in packets])
    assert torch.allclose(codec.decode(packets, SEED), alone.mean(0), atol=1e-5)


def test_all_coordinates_are_the_vector_itself():
    codec = RandK(dim=50, size=50)
    assert torch.equal(codec.decode([codec.encode(X, SEED)], SEED), X)
    assert codec.shrinkage == 1


def test_clients_and_rounds_draw_differently():
    drawn = [rows_of(seed, client, dim=50, size=6).tolist() for seed in (SEED, SEED.child("next")) for client in (0, 1)]
    assert len({tuple(rows) for rows in drawn}) == 4
    assert all(rows == sorted(set(rows)) for rows in drawn)


def test_every_coordinate_is_drawn_equally_often():
    """False alarm below 1e-6, by Pearson's χ²: draws without replacement spread more evenly than it supposes."""
    counts = torch.zeros(50)
    for client in range(1_000):
        counts[rows_of(SEED, client, dim=50, size=6)] += 1
    assert uniformity(counts) > 1e-6


def test_its_error_is_that_of_the_paper():
    """Jiang et al. 2023, Eq. 1: (1/n²)(d/k − 1)·Σ‖xᵢ‖²."""
    assert make_codec("rand_k", dim=1024, size=16, clients=20).mse(20.0, 7.0) == pytest.approx(63 / 20)
    assert make_codec("rand_k", dim=1024, size=16, clients=20, bits=8).mse(20.0) is None


def test_what_error_feedback_applies_is_what_was_sent():
    assert RandK(dim=50, size=5).shrinkage == pytest.approx(0.1)
    assert 0.09 < RandK(dim=50, size=5, bits=8).shrinkage < 0.1


def test_the_norm_is_right_in_the_mean_square():
    """False alarm below 1e-6, by Student's t."""
    codec = RandK(dim=50, size=10)
    squares = [codec.norm(codec.encode(X, SEED, client), SEED) ** 2 for client in range(1_000)]
    low, high = mean_interval(squares, false_alarm=1e-6)
    assert low <= float(X.square().sum()) <= high


def test_widths_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="got bits = 5"):
        RandK(dim=50, size=6, bits=5)
