"""What a secure sum costs on the wire, measured on its packets."""

import pytest
from cohorts import Cohort, small_terms

PER_NEIGHBOUR = {
    ("shares", "sent"): 160,  # two public keys, a commitment and a signature
    ("shares", "replied"): 112,  # two shares, sealed, and two commitments
    ("masked", "sent"): 112,  # the same
    ("unmask", "replied"): 32,  # one share
}


def sizes(terms) -> dict[tuple[str, str], int]:
    cohort = Cohort(terms)
    cohort.run()
    return {
        (stage, way): max(map(len, packets[stage].values()))
        for way, packets in (("sent", cohort.sent), ("replied", cohort.replied))
        for stage in packets
    }


@pytest.fixture(scope="module")
def small():
    return sizes(small_terms(40, neighbours=6, threshold=4, least=20))


@pytest.fixture(scope="module")
def large():
    return sizes(small_terms(40, neighbours=22, threshold=14, least=20))


def test_a_neighbour_costs_its_own_bytes_and_a_bit(small, large):
    for key, width in PER_NEIGHBOUR.items():
        assert large[key] - small[key] in range(16 * width, 16 * width + 8), key


def test_signatures_are_sent_to_as_few_as_must_see_them(small, large):
    assert large["unmask", "sent"] - small["unmask", "sent"] in range(10 * 64, 10 * 64 + 8)


def test_everything_else_does_not_grow_with_neighbours(small, large):
    for key in (("keys", "replied"), ("consent", "replied"), ("consent", "sent"), ("keys", "sent")):
        assert small[key] == large[key]
    assert large["masked", "replied"] - small["masked", "replied"] in range(2, 9), "a bit a neighbour"


def test_packets_cost_less_than_110_bytes_beside_what_they_carry(small):
    carried = {
        ("keys", "sent"): 50 + 5,
        ("keys", "replied"): 160,
        ("shares", "sent"): 8 + 6 * 32 + 6 * 160 + 1,  # a place, six hashes beside the path, and the keys
        ("shares", "replied"): 64 + 6 * 112 + 1,
        ("masked", "sent"): 6 * 112 + 1,
        ("masked", "replied"): 4 * 2 + 32 + 1,
        ("consent", "sent"): 5,
        ("consent", "replied"): 64,
        ("unmask", "sent"): 4 * 64 + 1,
        ("unmask", "replied"): 32 + 6 * 32 + 1,
    }
    assert all(small[key] - size <= 110 for key, size in carried.items())


def test_masked_values_take_their_bits_and_no_more():
    for bits in (8, 13, 32):
        narrow, wide = (sizes(small_terms(3, size=size, bits=bits))["masked", "replied"] for size in (800, 1_600))
        assert wide - narrow == 800 * bits // 8
