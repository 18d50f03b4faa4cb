"""Scaled signs: what is sent, what is lost, and that error feedback brings the rest across."""

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import CODECS
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.wire import pack

Sign = CODECS["sign"]
SEED = PublicSeed(7)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_mean_is_that_of_the_scaled_signs():
    codec, x = Sign(dim=100), normal(5, 100)
    packets = [codec.encode(row, SEED, client) for client, row in enumerate(x)]
    expected = (x.abs().mean(1, keepdim=True) * x.sign()).mean(0)
    assert torch.allclose(codec.decode(packets, SEED), expected, atol=1e-6)


@pytest.mark.parametrize("zeros", [0, 40, 99])
def test_what_is_lost_is_what_the_paper_says(zeros):
    """‖C(x) − x‖² = ‖x‖² − ‖x‖₁²/dim (Karimireddy et al. 2019, Lemma 8), whatever sign zero gets."""
    codec, x = Sign(dim=100), normal(100)
    x[:zeros] = 0
    lost = float((codec.decode([codec.encode(x, SEED)], SEED) - x).square().sum())
    assert lost == pytest.approx(float(x.square().sum() - x.abs().sum() ** 2 / 100), rel=1e-4)


def test_zero_counts_as_positive():
    codec = Sign(dim=3)
    packet = codec.encode(torch.tensor([0.0, -0.0, -3.0]), SEED)
    assert packet.arrays["values"].values.tolist() == [0, 0, 1]
    assert codec.decode([packet], SEED).tolist() == [1, 1, -1]


@pytest.mark.parametrize("size", [None, 50])
def test_with_error_feedback_everything_gets_across(size):
    """A constant vector: what a client owes stays bounded, so what was applied on average tends to the vector."""
    codec, x, memory, applied = Sign(dim=100, size=size), normal(100), None, torch.zeros(100)
    owed = []
    for number in range(1_000):
        seed = SEED.child("round", number)
        packet, memory = encode_with_memory(codec, x, memory, seed)
        applied += codec.shrinkage * codec.decode([packet], seed)
        owed.append(float(memory.norm() / x.norm()))
    assert max(owed) < 30
    assert (applied / 1_000 - x).norm() < 0.03 * x.norm()


def test_fewer_coordinates_shrink_under_error_feedback_and_lose_less_than_nothing_would():
    codec, x = Sign(dim=100, size=25), normal(100)
    assert codec.shrinkage == 0.25
    for trial in range(20):
        seed = SEED.child("trial", trial)
        assert (codec.shrinkage * codec.decode([codec.encode(x, seed)], seed) - x).norm() < x.norm()


def test_a_packet_takes_a_bit_a_coordinate():
    codec = Sign(dim=10_000)
    packet = codec.encode(normal(10_000), SEED, 12)
    assert len(pack(codec.bare(packet))) - 1_250 < 64


def test_it_does_not_claim_to_be_unbiased_nor_to_know_its_error():
    assert not Sign(dim=100).unbiased
    assert Sign(dim=100, clients=3).mse(1.0) is None
    assert Sign(dim=100).shrinkage == 1
