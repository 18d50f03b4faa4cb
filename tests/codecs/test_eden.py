"""Rotated and rounded to the best levels: the published errors, no bias, and what is sent."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Codec
from sketchfed.codecs.lloyd_max import centroids, thresholds
from sketchfed.codecs.rotation import Rotation
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.wire import pack

Eden = CODECS["eden"]
SEED = PublicSeed(7)
PUBLISHED = {1: 0.571, 2: 0.133, 3: 0.0358, 4: 0.00959}


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spiked(dim: int) -> torch.Tensor:
    """One coordinate a hundred times as large as the others."""
    x = 0.1 * normal(dim)
    x[3] = 10
    return x


def round_trips(codec: Codec, x: torch.Tensor, trials: int) -> torch.Tensor:
    seeds = [SEED.child("trial", trial) for trial in range(trials)]
    return torch.stack([codec.decode([codec.encode(x, seed)], seed) for seed in seeds])


@pytest.mark.parametrize("bits", PUBLISHED)
def test_the_error_is_the_published_one(bits):
    """1/(1 − D) − 1, which is π/2 − 1 for one bit (Vargaftik et al. 2022). False alarm below 1e-6, by Student's t, beside half
    a percent for the difference between dim = 2^14 and the limit.
    """
    codec, x = Eden(dim=2**14, bits=bits, clients=1), spiked(2**14)
    errors = (round_trips(codec, x, 30) - x).square().sum(1) / x.square().sum()
    low, high = mean_interval(errors, false_alarm=1e-6)
    assert low * 0.995 <= PUBLISHED[bits] <= high * 1.005
    assert codec.mse(1.0) == pytest.approx(PUBLISHED[bits], rel=2e-3)


@pytest.mark.parametrize("scale", ["unbiased", "smallest"])
@pytest.mark.parametrize("size", [None, 1_000])
@pytest.mark.parametrize("bits", [1, 3])
def test_the_error_of_a_mean_is_foretold(bits, size, scale):
    """At dim = 4096 for four clients that have something in common. False alarm below 1e-6 a case, by Student's t, and half a
    percent for the limit.
    """
    x = normal(1, 4_096) + normal(4, 4_096, seed=2)
    codec = Eden(dim=4_096, bits=bits, size=size, scale=scale, clients=4)
    square = float(x.square().sum())
    correlation = float(x.sum(0).square().sum()) / square - 1
    errors = []
    for trial in range(60):
        seed = SEED.child("trial", trial)
        mean = codec.decode([codec.encode(row, seed, client) for client, row in enumerate(x)], seed)
        errors.append(float((mean - x.mean(0)).square().sum()))
    low, high = mean_interval(errors, false_alarm=1e-6)
    assert low * 0.995 <= codec.mse(square, correlation) <= high * 1.005


@pytest.mark.parametrize(("dim", "shape"), [(1, normal), (3, normal), (100, normal), (100, spiked)])
@pytest.mark.parametrize("options", [{}, {"bits": 3}])
def test_it_is_unbiased_for_short_vectors_and_for_spikes_too(dim, shape, options):
    """The mean of 300 round trips is no further from x than its standard error allows: E‖mean − x‖² = error/300 if there is no
    bias, and 5 + 60/dim times that comes up by chance in less than 1e-6 of all cases (Laurent & Massart 2000, on χ²). At dim
    100 a bias of a sixth of the error's root mean square is found with probability 0.99.
    """
    x = shape(dim)
    got = round_trips(Eden(dim=dim, **options), x, 300)
    allowed = float((got - x).square().sum(1).mean()) / 300 * (5 + 60 / dim)
    assert float((got.mean(0) - x).square().sum()) <= allowed + 1e-9


def test_along_the_vector_itself_nothing_is_lost():
    """⟨x̂, x⟩ = ‖x‖² for the unbiased scale, and ⟨x̂, x⟩ = ‖x̂‖² for the smallest error, each time, piece by piece."""
    x = spiked(300)
    unbiased, smallest = (Eden(dim=300, bits=2, scale=scale) for scale in ("unbiased", "smallest"))
    longer = unbiased.decode([unbiased.encode(x, SEED)], SEED)
    shorter = smallest.decode([smallest.encode(x, SEED)], SEED)
    for start, stop in pairwise(Rotation(dim=300, seed=SEED).edges):
        piece = slice(start, stop)
        assert float(longer[piece] @ x[piece]) == pytest.approx(float(x[piece].square().sum()), rel=1e-4)
        assert float(shorter[piece] @ x[piece]) == pytest.approx(float(shorter[piece].square().sum()), rel=1e-4)


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_the_nearest_levels_of_the_rotated_vector(bits):
    codec, x = Eden(dim=200, bits=bits), normal(200)
    packet = codec.encode(x, SEED, 3)
    rotation = Rotation(dim=200, seed=SEED.child("client", 3).child("rotation"))
    rotated = rotation.apply(x.numpy()).astype(np.float64)
    for (start, stop), scale in zip(pairwise(rotation.edges), packet.arrays["scales"].tolist(), strict=True):
        y = rotated[start:stop]
        codes = np.searchsorted(thresholds(bits), y * np.sqrt(len(y)) / np.linalg.norm(y))
        assert packet.arrays["values"].values[start:stop].tolist() == codes.tolist()
        assert scale == pytest.approx(y @ y / (y @ centroids(bits)[codes]), rel=1e-5)


def test_clients_have_rotations_of_their_own():
    codec, x = Eden(dim=200), normal(200)
    assert codec.encode(x, SEED, 0).arrays["values"] != codec.encode(x, SEED, 1).arrays["values"]


def test_errors_of_clients_average_out():
    codec, x = Eden(dim=4_096), normal(4_096)
    packets = [codec.encode(x, SEED, client) for client in range(20)]
    one, all_of_them = (float((codec.decode(some, SEED) - x).square().sum()) for some in (packets[:1], packets))
    assert all_of_them == pytest.approx(one / 20, rel=0.1)


def test_a_packet_takes_its_bits_and_a_scale_a_piece():
    assert len(pack((codec := Eden(dim=2**14)).bare(codec.encode(normal(2**14), SEED)))) - 2**11 < 80
    assert len(Rotation(dim=10**6, seed=SEED).edges) - 1 == 7


def test_the_smallest_error_is_biased_and_says_so():
    assert Eden(dim=100).unbiased
    assert not Eden(dim=100, scale="smallest").unbiased
    assert Eden(dim=100, scale="smallest").shrinkage == 1
    assert Eden(dim=100).shrinkage == pytest.approx(2 / np.pi)
    assert Eden(dim=100, size=25).shrinkage == pytest.approx(0.5 / np.pi)


def test_what_cannot_work_is_refused():
    with pytest.raises(UnknownNameError, match="no scale named 'least'"):
        Eden(dim=100, scale="least")
    with pytest.raises(InputError, match="depends on the number of clients"):
        Eden(dim=100).mse(1.0)
    with pytest.raises(InputError, match="correlation of 3 vectors must be from −1 to 2"):
        Eden(dim=100, clients=3).mse(1.0, 2.5)
