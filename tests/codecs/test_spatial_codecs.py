"""Rand-k-Spatial and Rand-Proj-Spatial: what they believe, where from, and that beliefs cost accuracy but no bias."""

from itertools import product

import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import make_codec
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.wire import pack, unpack

SEED = PublicSeed(7)
both = pytest.mark.parametrize("name", ["rand_k_spatial", "rand_proj_spatial"])


def vectors(clients: int, dim: int, correlation: float) -> torch.Tensor:
    """Unit vectors with exactly this R: every pair has the inner product R/(n − 1)."""
    rho = correlation / (clients - 1)
    basis = torch.linalg.qr(torch.randn(dim, clients + 1, generator=torch.Generator().manual_seed(3)).double()).Q.T
    return (rho**0.5 * basis[0] + (1 - rho) ** 0.5 * basis[1:]).float()


def encoded(codec, x, seed=SEED):
    return [unpack(pack(codec.encode(row, seed, client))) for client, row in enumerate(x)]


@pytest.mark.parametrize("correlation", ["none", "avg", "max", 3.0, -0.5])
@pytest.mark.parametrize("decoder", ["dual", "cg"])
def test_sampling_maps_are_rand_k_spatial(correlation, decoder):
    """Jiang et al. 2023, Lemma 4.1: the same numbers are sent, and the general decoder finds what the simple one does."""
    x = vectors(8, 90, 4.0)
    simple = make_codec("rand_k_spatial", dim=90, size=20, clients=8, correlation=correlation)
    general = make_codec(
        "rand_proj_spatial", dim=90, size=20, clients=8, correlation=correlation, ensemble="sampling", decoder=decoder
    )
    sent = [codec.encode(x[3], SEED, 3).arrays["values"] for codec in (simple, general)]
    assert torch.equal(*sent)
    one, other = (codec.decode(encoded(codec, x), SEED) for codec in (simple, general))
    assert torch.allclose(one, other, atol=1e-6)
    assert simple.mse(8.0, 4.0) == pytest.approx(general.mse(8.0, 4.0))


@both
def test_without_correlation_both_are_rand_k(name):
    codec = make_codec(name, dim=90, size=9, clients=5, correlation="none")
    assert codec.mse(5.0, 2.0) == pytest.approx(5.0 / 25 * (10 - 1))


def test_the_rand_k_decoder_is_that_of_the_paper():
    """Jiang et al. 2023, Eq. 2, coordinate by coordinate."""
    x, n = vectors(6, 40, 3.0), 6
    codec = make_codec("rand_k_spatial", dim=40, size=10, clients=n, correlation=3.0)
    packets = encoded(codec, x)
    rand_k = make_codec("rand_k", dim=40, size=10, clients=n)
    alone = torch.stack([rand_k.decode([rand_k.encode(row, SEED, i)], SEED) for i, row in enumerate(x)]) / (40 / 10)
    counts = (alone != 0).sum(0).double()
    believed = 1 + 3.0 / (n - 1) * (counts - 1)
    chances = [
        1
        / (1 + 3.0 / (n - 1) * m)
        * torch.distributions.Binomial(n - 1, torch.tensor(0.25)).log_prob(torch.tensor(float(m))).exp()
        for m in range(n)
    ]
    beta = 1 / (0.25 * float(sum(chances)))
    assert torch.allclose(codec.decode(packets, SEED).double(), beta / n * alone.double().sum(0) / believed, atol=1e-5)


@pytest.mark.parametrize(("ensemble", "correlation"), [*product(ENSEMBLES, ["avg"]), ("srht", 6.0), ("srht", "max")])
def test_a_short_cohort_is_decoded_without_bias(ensemble, correlation):
    """Five of nine clients answer: β is for five. One direction, the mean's; false alarm below 1e-6 by Student's t."""
    x = vectors(9, 128, 4.0)
    codec = make_codec("rand_proj_spatial", dim=128, size=12, clients=9, correlation=correlation, ensemble=ensemble)
    there, mean = [1, 3, 4, 6, 8], x[[1, 3, 4, 6, 8]].mean(0)
    found = []
    for trial in range(200):
        seed = PublicSeed(1).child("trial", trial)
        decoded = codec.decode([codec.encode(x[client], seed, client) for client in there], seed)
        found.append(float(decoded @ mean / mean.square().sum()))
    low, high = mean_interval(found, false_alarm=1e-6)
    assert low - 0.005 <= 1 <= high + 0.005  # laws of large dim are off by less than half a per cent here


@both
def test_the_correlation_is_learnt_from_one_round_and_used_in_the_next(name):
    x = vectors(20, 512, 12.0)
    codec = make_codec(name, dim=512, size=100, clients=20)
    assert codec.correlation == "estimated"
    packets = encoded(codec, x)
    knowledge = codec.learn(packets, SEED)
    assert float(knowledge) == pytest.approx(12 / 19, abs=5 * (2 * 512) ** 0.5 / (20 * 100))
    plain, known = make_codec(name, dim=512, size=100, correlation="none"), codec.decode(packets, SEED, knowledge)
    assert torch.equal(codec.decode(packets, SEED), plain.decode(packets, SEED))
    told = make_codec(name, dim=512, size=100, clients=20, correlation=19 * float(knowledge))
    assert torch.allclose(known, told.decode(packets, SEED), atol=1e-6)
    current = make_codec(name, dim=512, size=100, correlation="current").decode(packets, SEED)
    assert torch.allclose(known, current, atol=1e-6)
    assert (known - x.mean(0)).norm() < 0.8 * (plain.decode(packets, SEED) - x.mean(0)).norm()


@both
def test_there_is_nothing_to_learn_from_one_packet_or_when_all_is_known(name):
    x, knowledge = vectors(3, 64, 1.0), torch.tensor([0.25], dtype=torch.float64)
    codec = make_codec(name, dim=64, size=8)
    assert codec.learn(encoded(codec, x)[:1], SEED, knowledge) is knowledge
    assert make_codec(name, dim=64, size=8, correlation="avg").learn(encoded(codec, x), SEED) is None
    assert float(codec.learn(encoded(codec, torch.zeros(3, 64)), SEED)) == 0


@both
def test_estimates_stay_in_bounds(name):
    same = torch.ones(6, 64)
    codec = make_codec(name, dim=64, size=30)
    assert 0.5 < float(codec.learn(encoded(codec, same), SEED)) <= 0.98
    opposed = torch.cat([torch.ones(3, 64), -torch.ones(3, 64)])
    assert 0 <= float(codec.learn(encoded(codec, opposed), SEED)) < 0.3


@both
def test_the_order_of_arrival_changes_no_bit(name):
    x = vectors(7, 100, 3.0)
    codec = make_codec(name, dim=100, size=20, correlation="avg")
    packets = encoded(codec, x)
    assert torch.equal(codec.decode(packets, SEED), codec.decode(packets[::-1], SEED))


def test_blocks_have_the_error_of_the_whole():
    """At dim 512, in one piece and in blocks of 64: false alarm below 2e-6 by Student's t."""
    x, size, n = vectors(10, 512, 6.0), 48, 10
    mean, predicted = x.mean(0), None
    for block in (512, 64):
        codec = make_codec("rand_proj_spatial", dim=512, size=size, clients=n, correlation=6.0, block=block)
        predicted = predicted or codec.mse(float(n), 6.0)
        assert codec.mse(float(n), 6.0) == pytest.approx(predicted, rel=1e-9)
        errors = []
        for trial in range(120):
            seed = PublicSeed(2).child("trial", trial)
            decoded = codec.decode([codec.encode(row, seed, i) for i, row in enumerate(x)], seed)
            errors.append(float((decoded - mean).square().sum()))
        low, high = mean_interval(errors, false_alarm=1e-6)
        assert low <= predicted <= high


def test_few_bits_a_number_cost_little():
    x = vectors(20, 1024, 12.0)
    errors = {}
    for bits in (32, 4):
        codec = make_codec("rand_proj_spatial", dim=1024, size=40, clients=20, correlation=12.0, bits=bits)
        packets = encoded(codec, x)
        errors[bits] = float((codec.decode(packets, SEED) - x.mean(0)).square().sum()), len(pack(packets[0]))
    assert errors[4][0] < 1.1 * errors[32][0]
    assert errors[4][1] < errors[32][1] - 120


@both
def test_beliefs_that_cannot_be_are_refused(name):
    with pytest.raises(
        InputError, match="correlation must be a number or one of none, avg, max, estimated, current, got 'some'"
    ):
        make_codec(name, dim=64, size=8, correlation="some")
    with pytest.raises(InputError, match=r"correlation must be a number or one of none, .*, got True"):
        make_codec(name, dim=64, size=8, correlation=True)
    with pytest.raises(InputError, match=r"the correlation of 5 vectors must be from −1 to 4 \(identical vectors\), got 4\.5"):
        make_codec(name, dim=64, size=8, clients=5, correlation=4.5)
    with pytest.raises(InputError, match="the correlation of 5 vectors must be from"):
        make_codec(name, dim=64, size=8, clients=5).mse(1.0, 7.0)
    with pytest.raises(InputError, match="depends on the number of clients"):
        make_codec(name, dim=64, size=8).mse(1.0, 0.0)


def test_what_there_is_not_is_refused():
    with pytest.raises(UnknownNameError, match="no ensemble named 'haar'"):
        make_codec("rand_proj_spatial", dim=64, size=8, ensemble="haar")
    with pytest.raises(InputError, match="decoder must be one of auto, dual, cg, got 'eig'"):
        make_codec("rand_proj_spatial", dim=64, size=8, decoder="eig")
