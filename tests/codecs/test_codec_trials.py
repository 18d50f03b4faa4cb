import math

import pytest
import torch

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import make_codec
from sketchfed.codecs.examples import example_vectors
from sketchfed.codecs.trials import measure, squared_errors
from sketchfed.errors import InputError
from sketchfed.wire import pack

SEED = PublicSeed(7)


def vectors(correlation=3.0):
    return example_vectors("normal", clients=6, dim=64, correlation=correlation)


def test_errors_are_those_of_rounds_with_seeds_of_their_own():
    x, codec = vectors(), make_codec("sketched", dim=64, size=16, clients=6)
    errors = squared_errors(codec, x, trials=3, seed=SEED)
    for trial, error in enumerate(errors):
        seed = SEED.child("trial", trial)
        decoded = codec.decode([codec.encode(row, seed, client) for client, row in enumerate(x)], seed)
        assert error == pytest.approx(float((decoded - x.mean(0)).square().sum()), rel=1e-4)
    assert len(set(errors)) == 3


@pytest.mark.parametrize("name", ["sketched", "rand_k"])
def test_measured_and_predicted_errors_agree(name):
    """False alarm 1e-6 by Student's t."""
    codec = make_codec(name, dim=64, size=16, clients=6)
    low, high = mean_interval(squared_errors(codec, vectors(), trials=300, seed=SEED), false_alarm=1e-6)
    assert low <= codec.mse(6.0, 3.0) <= high


def test_everything_is_measured():
    codec, ticks = make_codec("sketched", dim=64, size=16, clients=6, bits=4), []
    found = measure(codec, vectors(), trials=5, seed=SEED, watch=lambda: ticks.append(None))
    assert len(ticks) == 6
    errors = squared_errors(codec, vectors(), trials=6, seed=SEED)[1:]  # one round goes before
    assert found.error == pytest.approx(sum(errors) / 5, rel=1e-4)
    spread = math.sqrt(sum((error - found.error) ** 2 for error in errors) / 4 / 5)
    assert found.standard_error == pytest.approx(spread, rel=1e-3)
    assert found.bytes == len(pack(codec.bare(codec.encode(torch.ones(64), SEED, 1))))
    assert found.predicted is None
    assert found.bits == 4
    assert found.encode_seconds > 0
    assert found.decode_seconds > 0


def test_what_a_round_teaches_is_used_in_the_next():
    """An estimated correlation is none in the first round, so decoding is that of Rand-k; later it is better than that."""
    x = vectors(5.0)
    estimating = make_codec("rand_k_spatial", dim=64, size=32, clients=6)
    known = make_codec("rand_k_spatial", dim=64, size=32, clients=6, correlation=5.0)
    ignorant = make_codec("rand_k_spatial", dim=64, size=32, clients=6, correlation="none")
    errors = {codec: measure(codec, x, trials=40, seed=SEED).error for codec in (estimating, known, ignorant)}
    assert errors[known] < errors[ignorant]
    assert errors[estimating] < (errors[known] + errors[ignorant]) / 2


def test_a_single_trial_has_no_standard_error_and_none_is_refused():
    codec = make_codec("dense", dim=64)
    assert measure(codec, vectors(), trials=1, seed=SEED).standard_error is None
    for function in (measure, squared_errors):
        with pytest.raises(InputError, match="trials must be a positive integer, got 0"):
            function(codec, vectors(), trials=0, seed=SEED)
