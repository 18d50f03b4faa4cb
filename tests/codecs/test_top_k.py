"""Top-k: the largest coordinates, exactly; ties go to the lower one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sketchfed import PublicSeed
from sketchfed.codecs.top_k import TopK, largest
from sketchfed.errors import WireError
from sketchfed.wire import Bits, pack

SEED = PublicSeed(7)
X = torch.randn(200, generator=torch.Generator().manual_seed(1))


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-45, 3e38]), min_size=1, max_size=30), st.data())
def test_the_largest_are_those_that_come_first_when_sorted_by_magnitude_then_place(numbers, data):
    size = data.draw(st.integers(0, len(numbers)))
    ordered = sorted(range(len(numbers)), key=lambda i: (-abs(numbers[i]), i))
    assert largest(torch.tensor(numbers), size).tolist() == sorted(ordered[:size])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_largest_are_found_in_any_precision(dtype):
    assert largest(torch.tensor([1, -3, 2, 0.5], dtype=dtype), 2).tolist() == [1, 2]


@pytest.mark.parametrize("size", [1, 7, 60, 199, 200])
def test_it_keeps_the_largest_and_drops_the_rest(size):
    codec = TopK(dim=200, size=size)
    decoded = codec.decode([codec.encode(X, SEED)], SEED)
    kept = X.abs().argsort(descending=True)[:size]
    assert torch.equal(decoded[kept], X[kept])
    assert decoded.count_nonzero() == size
    assert codec.norm(codec.encode(X, SEED), SEED) == pytest.approx(float(X[kept].norm()))


def test_zeros_stay_zeros():
    codec = TopK(dim=200, size=9, bits=4)
    assert torch.equal(codec.decode([codec.encode(torch.zeros(200), SEED)], SEED), torch.zeros(200))


def test_few_bits_move_a_value_by_half_a_step_at_most():
    codec = TopK(dim=200, size=40, bits=4)
    packet = codec.encode(X, SEED, 3)
    error = codec.decode([packet], SEED) - TopK(dim=200, size=40).decode([TopK(dim=200, size=40).encode(X, SEED)], SEED)
    assert 0 < float(error.abs().max()) <= packet.scalars["step"] / 2 * (1 + 1e-6)


def test_which_coordinates_they_are_costs_less_than_their_plain_numbers():
    dim, size = 100_000, 1_000
    x = torch.randn(dim, generator=torch.Generator().manual_seed(2))
    codec = TopK(dim=dim, size=size)
    assert len(pack(codec.bare(codec.encode(x, SEED)))) < 4 * size + size * 8.7 / 8 + 100


def test_the_sender_need_not_be_known_unless_numbers_are_rounded():
    assert "client" not in TopK(dim=200, size=9).bare(TopK(dim=200, size=9).encode(X, SEED)).scalars
    assert "client" in TopK(dim=200, size=9, bits=8).bare(TopK(dim=200, size=9, bits=8).encode(X, SEED)).scalars


def test_coordinates_that_are_no_set_are_refused():
    codec = TopK(dim=200, size=9)
    packet = codec.encode(X, SEED)
    bad = packet.arrays["rows"].values
    bad[-1] = 1 - bad[-1]
    spoilt = type(packet)(kind="top_k", arrays={**packet.arrays, "rows": Bits(bad, bits=1)}, scalars=packet.scalars)
    with pytest.raises(WireError, match="ones, but 9 coordinates need 9"):
        codec.check(spoilt, 0)
