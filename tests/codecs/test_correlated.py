"""Shared dice: the law of places, rounding as the paper has it, and errors that cancel."""

import numpy as np
import pytest
import torch

from odds import mean_interval, uniformity
from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, make_codec
from sketchfed.codecs.correlated import SharedDice
from sketchfed.errors import InputError
from sketchfed.wire import pack

Correlated = CODECS["correlated"]
SEED = PublicSeed(7)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def places(shared: SharedDice) -> np.ndarray:
    """πᵢ of every client and number, `(clients, sent)`."""
    moved = (shared.ranks[: shared.sent].astype(np.uint64) * np.uint64(shared.clients)) >> np.uint64(32)
    return (shared.order[:, None] + moved.astype(np.int64)) % shared.clients


def test_every_number_has_a_permutation_of_the_clients():
    assert (np.sort(places(SharedDice(50, 50, 6, False, SEED)), axis=0) == np.arange(6)[:, None]).all()


def test_two_clients_have_any_two_places_with_equal_probability():
    """χ² over the 20 pairs of 5 places, one number a round. False alarm below 1e-6 for each of three pairs of clients."""
    drawn = np.stack([places(SharedDice(1, 1, 5, False, SEED.child("round", t)))[:, 0] for t in range(4_000)])
    for one, other in ((0, 1), (1, 4), (2, 3)):
        counts = np.zeros((5, 5))
        np.add.at(counts, (drawn[:, one], drawn[:, other]), 1)
        assert not counts.diagonal().any()
        assert uniformity(counts[~np.eye(5, dtype=bool)]) > 1e-6


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_are_what_the_paper_says(bits):
    """Suresh et al. 2022, written out for one client of three."""
    codec, x, client, count = Correlated(dim=40, bits=bits, rotate=False, clients=3), normal(40), 7, 2**bits
    packet = codec.encode(x, SEED, client)
    largest = float(x.abs().max())
    assert packet.arrays["reaches"].tolist() == [largest]
    own = (SEED.child("client", client).child("rounding").words(40) + 0.5) / 2**32
    uniform = (places(SharedDice(40, 40, 3, False, SEED))[client % 3] + own) / 3
    first, spacing = np.zeros(40), 1.0
    if bits > 1:
        spacing = (count + 1) / (count * (count - 1))
        first = -(SEED.child("starts").words(40) + 0.5) / 2**32 / count
    y = (x.double().numpy() / largest + 1) / 2
    grid = first[:, None] + spacing * np.arange(count)
    assert (grid[:, 0] <= y).all()
    assert (grid[:, -1] >= y).all()
    below = (grid < y[:, None]).sum(1) - 1
    below = below.clip(0, count - 2)
    up = uniform < (y - grid[np.arange(40), below]) / spacing
    assert packet.arrays["values"].values.tolist() == (below + up).tolist()
    expected = largest * (2 * grid[np.arange(40), below + up] - 1)
    assert np.allclose(codec.decode([packet], SEED).numpy(), expected, atol=1e-5)


def mean_square(codec, x: torch.Tensor, trials: int = 12) -> float:
    errors = []
    for trial in range(trials):
        seed = SEED.child("trial", trial)
        mean = codec.decode([codec.encode(row, seed, client) for client, row in enumerate(x)], seed)
        errors.append(float((mean - x.mean(0)).square().sum()))
    return float(np.mean(errors))


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_errors_of_equal_vectors_fall_with_the_square_of_their_number(bits, rotate):
    """From 4 to 16 clients by 16, where independent rounding, which is what `clients = 1` does, gets 4."""
    x, error, alone = normal(500), {}, {}
    for clients in (4, 16):
        error[clients] = mean_square(Correlated(dim=500, bits=bits, clients=clients, rotate=rotate), x.repeat(clients, 1))
        alone[clients] = mean_square(Correlated(dim=500, bits=bits, clients=1, rotate=rotate), x.repeat(clients, 1))
    assert error[4] / error[16] == pytest.approx(16, rel=0.15)
    assert alone[4] / alone[16] == pytest.approx(4, rel=0.15)
    assert error[16] < alone[16] / 10


def test_nearly_equal_vectors_profit_and_others_lose_nothing():
    similar, different = normal(1, 500) + 0.02 * normal(16, 500, seed=2), normal(16, 500, seed=2)
    for x, factor in ((similar, 0.1), (different, 1.05)):
        together, alone = (mean_square(Correlated(dim=500, clients=clients), x) for clients in (16, 1))
        assert together <= factor * alone


def test_it_is_unbiased_when_clients_stay_away_or_share_a_place():
    """Clients 0, 2 and 5 of three places, two of which meet. False alarm below 4e-6, by Student's t."""
    codec, x = Correlated(dim=60, bits=2, clients=3), normal(3, 60)
    directions, got = normal(4, 60, seed=2), []
    for trial in range(300):
        seed = SEED.child("trial", trial)
        got.append(directions @ codec.decode([codec.encode(row, seed, c) for row, c in zip(x, (0, 2, 5), strict=True)], seed))
    for samples, expected in zip(torch.stack(got).T, directions @ x.mean(0), strict=True):
        low, high = mean_interval(samples, false_alarm=1e-6)
        assert low <= float(expected) <= high


def test_all_clients_send_the_same_coordinates():
    codec, x = Correlated(dim=100, size=20, rotate=False, clients=4), torch.ones(100)
    decoded = [codec.decode([codec.encode(x, SEED, client)], SEED) != 0 for client in range(4)]
    assert int(decoded[0].sum()) == 20
    assert all(torch.equal(decoded[0], other) for other in decoded)


def test_a_rotation_keeps_a_spike_from_making_levels_coarse():
    x = 0.1 * normal(1_024)
    x[5] = 10
    errors = {rotate: mean_square(Correlated(dim=1_024, bits=4, clients=1, rotate=rotate), x[None]) for rotate in (True, False)}
    assert errors[True] < errors[False] / 10


def test_rounding_loses_no_more_than_shrinkage_allows():
    """E‖decoded‖² ≤ ‖x‖²/shrinkage, in the worst case without a rotation and for vectors of all shapes with one."""
    for dim in (10, 1_000):
        spike = torch.eye(dim)[3] + 1e-3 * normal(dim)
        for x in (normal(dim), torch.ones(dim), spike):
            for options in ({"bits": 1}, {"bits": 2}, {"bits": 2, "size": dim // 2}, {"bits": 3, "rotate": False}):
                codec = Correlated(dim=dim, clients=1, **options)
                seeds = [SEED.child("trial", trial) for trial in range(60)]
                squares = [float(codec.decode([codec.encode(x, seed)], seed).square().sum()) for seed in seeds]
                assert np.mean(squares) <= 1.1 * float(x.square().sum()) / codec.shrinkage


def test_the_number_of_clients_must_be_known():
    with pytest.raises(InputError, match=r"shares random draws between the clients of a round.*clients="):
        Correlated(dim=100)
    with pytest.raises(InputError, match="clients="):
        make_codec("correlated", dim=100)
    assert make_codec("correlated", dim=100, clients=5).mse(1.0) is None


def test_a_packet_takes_its_bits_and_a_number_a_piece():
    codec = Correlated(dim=2**14, bits=2, clients=5)
    assert len(pack(codec.bare(codec.encode(normal(2**14), SEED)))) - 2**12 < 80
