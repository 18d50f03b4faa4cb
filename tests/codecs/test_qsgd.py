"""Stochastic rounding relative to norms: what is sent, its variance, and what is refused."""

import math

import numpy as np
import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import CODECS
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.errors import InputError, WireError
from sketchfed.wire import Bits, pack

Qsgd = CODECS["qsgd"]
SEED = PublicSeed(7)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_codes_are_what_the_paper_says():
    """Alistarh et al. 2017, Sec. 3.1, written out: level ℓ or ℓ + 1 of s, up with probability |x|/norm·s − ℓ."""
    codec, x = Qsgd(dim=10, bits=4, bucket=4), normal(10)
    packet = codec.encode(x, SEED, 3)
    uniform = (SEED.child("client", 3).child("rounding").words(10) + 0.5) / 2**32
    levels = []
    for i, value in enumerate(x.tolist()):
        norm = math.sqrt(sum(v**2 for v in x[i // 4 * 4 : i // 4 * 4 + 4].tolist()))
        assert float(packet.arrays["norms"][i // 4]) == pytest.approx(norm, rel=2e-7)
        height = abs(value) / norm * 7
        level = math.floor(height) + (uniform[i] < height - math.floor(height))
        levels.append(7 + math.copysign(level, value))
    assert packet.arrays["values"].values.tolist() == levels
    expected = np.repeat(packet.arrays["norms"].numpy(), 4)[:10] * (np.array(levels) - 7) / 7
    assert np.allclose(codec.decode([packet], SEED).numpy(), expected)


@pytest.mark.parametrize(("bits", "bucket"), [(2, 1), (2, 7), (2, None), (3, 512), (8, 1), (8, 100), (8, None)])
def test_rounding_is_unbiased_and_its_variance_below_the_bound(bits, bucket):
    """E‖Q(x)‖² ≤ (1 + min(n/s², √n/s))‖x‖² (Lemma 3.1). False alarm below 2e-6 a case, by Student's t.

    With 250 trials, a bias of 0.47 standard deviations is found with probability 0.99.
    """
    codec, x = Qsgd(dim=100, bits=bits, bucket=bucket), normal(100)
    direction, products, squares = normal(100, seed=2), [], []
    for trial in range(250):
        seed = SEED.child("trial", trial)
        decoded = codec.decode([codec.encode(x, seed)], seed)
        products.append(float(decoded @ direction))
        squares.append(float(decoded.square().sum() / x.square().sum()))
    low, high = mean_interval(products, false_alarm=1e-6)
    assert low - 1e-4 <= float(x @ direction) <= high + 1e-4
    assert mean_interval(squares, false_alarm=2e-6)[0] <= 1 / codec.shrinkage + 1e-5


def test_with_one_level_the_square_is_known():
    """s = 1: E‖Q(x)‖² = ‖x‖·‖x‖₁. False alarm below 1e-6, by Student's t."""
    codec, x = Qsgd(dim=200, bits=2, bucket=None), normal(200)
    squares = []
    for trial in range(1_000):
        seed = SEED.child("trial", trial)
        squares.append(float(codec.decode([codec.encode(x, seed)], seed).square().sum()))
    low, high = mean_interval(squares, false_alarm=1e-6)
    assert low <= float(x.norm() * x.abs().sum()) <= high


def test_shrinkage_comes_from_the_bound_and_from_what_is_not_sent():
    assert Qsgd(dim=1_000, bits=2).shrinkage == pytest.approx(1 / (1 + math.sqrt(512)))
    assert Qsgd(dim=1_000, bits=8, bucket=100).shrinkage == pytest.approx(1 / (1 + 100 / 127**2))
    assert Qsgd(dim=100, bits=2).shrinkage == pytest.approx(1 / 11)
    assert Qsgd(dim=1_000, bits=8, bucket=50, size=100).shrinkage == pytest.approx(1 / (10 * (1 + 50 / 127**2)))


def test_with_error_feedback_the_sum_of_what_arrives_keeps_up():
    codec, x, memory, applied = Qsgd(dim=100, bits=2, bucket=100), normal(100), None, torch.zeros(100)
    for number in range(300):
        seed = SEED.child("round", number)
        packet, memory = encode_with_memory(codec, x, memory, seed)
        applied += codec.shrinkage * codec.decode([packet], seed)
    assert memory is not None
    assert memory.norm() < 30 * x.norm()
    assert torch.allclose(applied + memory, 300 * x, atol=1e-2)


def test_buckets_cost_four_bytes_each():
    x = normal(5_120)
    lengths = [len(pack(Qsgd(dim=5_120, bits=4, bucket=bucket).encode(x, SEED))) for bucket in (512, 256)]
    assert lengths[1] - lengths[0] == 40


def test_the_dice_are_the_clients_own():
    codec, x = Qsgd(dim=100), normal(100)
    one, other = codec.encode(x, SEED, 0), codec.encode(x, SEED, 1)
    assert torch.equal(one.arrays["norms"], other.arrays["norms"])
    assert one.arrays["values"] != other.arrays["values"]


@pytest.mark.parametrize("bucket", [0, -1, 2.5, True, "512"])
def test_buckets_that_cannot_be_are_refused(bucket):
    with pytest.raises(InputError, match="bucket must be a positive number of coordinates, got"):
        Qsgd(dim=100, bucket=bucket)


def test_the_code_that_stands_for_nothing_is_refused():
    codec = Qsgd(dim=6, bits=3)
    packet = codec.encode(normal(6), SEED)
    forged = {**packet.arrays, "values": Bits(torch.full((6,), 7), bits=3)}
    bad = type(packet)(kind="qsgd", arrays=forged, scalars=packet.scalars)
    with pytest.raises(WireError, match="holds level 4, but the highest level is 3"):
        codec.check(bad, 0)
