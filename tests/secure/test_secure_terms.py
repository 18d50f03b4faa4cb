"""Terms of a secure sum, the graph that follows from them, and how neighbours and thresholds are planned."""

import math
import pickle
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from cohorts import SESSION, small_terms

from sketchfed.errors import InputError, SecureSumError, WireError
from sketchfed.secure import Terms, planned_neighbourhood, planned_terms
from sketchfed.secure.planning import _odds_of_at_least
from sketchfed.secure.terms import VERSION
from sketchfed.wire import Bits, Packet, pack, unpack

GIVEN = {
    "session": SESSION,
    "round": 3,
    "clients": (0, 1, 2, 3, 4),
    "size": 4,
    "bits": 16,
    "neighbours": 4,
    "threshold": 3,
    "least": 3,
}

# Terms ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [(0, 1), tuple(range(1_000)), (5, 9, 2**40, 2**62 - 1), tuple(range(7, 90, 3))])
def test_terms_travel_as_a_packet(clients):
    terms = planned_terms(session=SESSION, round=2**40, clients=clients, size=100_000, bits=32)
    arrived = Terms.from_packet(unpack(pack(terms.packet)))
    assert arrived == terms
    assert arrived.digest == terms.digest
    assert pickle.loads(pickle.dumps(arrived)).digest == terms.digest


def test_every_part_of_the_terms_changes_their_digest():
    changes = [
        {},
        {"session": bytes(16)},
        {"round": 4},
        {"clients": (0, 1, 2, 3, 5)},
        {"size": 5},
        {"bits": 17},
        {"threshold": 4, "least": 4},
        {"least": 4},
    ]
    assert len({Terms(**{**GIVEN, **change}).digest for change in changes}) == len(changes)


@pytest.mark.parametrize(
    ("change", "saying"),
    [
        ({"session": b"short"}, "16 bytes"),
        ({"session": "0123456789abcdef"}, "16 bytes"),
        ({"round": -1}, "round"),
        ({"round": True}, "round"),
        ({"clients": (0,)}, "at least two"),
        ({"clients": [0, 1, 2, 3, 4]}, "tuple"),
        ({"clients": (0, 2, 1, 3, 4)}, "ascending"),
        ({"clients": (0, 1, 1, 3, 4)}, "ascending"),
        ({"clients": (-1, 1, 2, 3, 4)}, "ascending"),
        ({"clients": (0, 1, 2, 3, 2**62)}, "ascending"),
        ({"size": 0}, "size"),
        ({"size": 2**31}, "size of a secure sum is a whole number from 1 to 2,147,483,647, got 2147483648"),
        ({"bits": 7}, "from 8 to 32"),
        ({"bits": 33}, "from 8 to 32"),
        ({"neighbours": 3}, "even number"),
        ({"neighbours": 5}, "4 neighbours each"),
        ({"neighbours": 0}, "neighbours=0"),
        ({"threshold": 2}, "above half"),
        ({"threshold": 6}, "Use 3 to 5"),
        ({"least": 2}, "least"),
        ({"least": 6}, "least"),
    ],
)
def test_terms_that_cannot_work_are_refused(change, saying):
    with pytest.raises(InputError, match=saying):
        Terms(**{**GIVEN, **change})


def test_terms_over_absurdly_many_clients_are_refused_from_their_number():
    """A bit a client is little to send. Client numbers, a ring and lists of neighbours would take a thousand times as much."""
    count = 10**6 + 1
    gaps = Bits.from_packed(bytes(count // 8 + 1), shape=(count,), bits=1)
    arrays = {**small_terms(5).packet.arrays, "clients": gaps}
    tracemalloc.start()
    try:
        with pytest.raises(SecureSumError, match="over at most 1,000,000 clients, the server proposes 1,000,001"):
            Terms.from_packet(Packet(kind="secure.keys", arrays=arrays))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    with pytest.raises(InputError, match="over at most 1,000,000 clients, got 1,000,001"):
        Terms(**{**GIVEN, "clients": tuple(range(count))})


FIXED = torch.zeros(50, dtype=torch.uint8)
FIXED[0] = VERSION


def test_terms_of_another_version_are_refused():
    arrays = small_terms(5).packet.arrays
    first = arrays["terms"].clone()
    first[0] = 1
    with pytest.raises(SecureSumError, match="speaks version 1 of secure sums, this client version 2"):
        Terms.from_packet(Packet(kind="secure.keys", arrays={**arrays, "terms": first}))


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"terms": torch.zeros(49, dtype=torch.uint8), "clients": Bits(torch.zeros(3, dtype=torch.int64), bits=1)},
        {"terms": FIXED},
        {"terms": FIXED, "clients": torch.zeros(3, dtype=torch.int64)},
        {"terms": FIXED, "clients": Bits(torch.zeros((3, 1), dtype=torch.int64), bits=1)},
    ],
)
def test_unreadable_terms_are_a_wire_error(arrays):
    with pytest.raises(WireError):
        Terms.from_packet(Packet(kind="secure.keys", arrays=arrays))


@pytest.mark.parametrize("gaps", [[0], [2**62, 2**62, 2**62], []])
def test_terms_of_absurd_clients_are_refused(gaps):
    arrays = {"terms": FIXED, "clients": Bits(torch.tensor(gaps, dtype=torch.int64), bits=63)}
    with pytest.raises(SecureSumError, match="nobody should accept"):
        Terms.from_packet(Packet(kind="secure.keys", arrays=arrays))


# The graph --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "neighbours"), [(5, 4), (8, 7), (10, 4), (101, 20), (200, 60)])
def test_neighbourhood_is_mutual_and_everybody_has_as_many(count, neighbours):
    terms = small_terms(count, neighbours=neighbours, threshold=neighbours, least=neighbours)
    near = {client: terms.neighbours_of(client) for client in terms.clients}
    for client, own in near.items():
        assert len(set(own)) == neighbours
        assert client not in own
        assert list(own) == sorted(own)
        assert all(client in near[peer] for peer in own)


def test_the_graph_is_connected_and_another_in_every_round():
    graphs = []
    for number in range(3):
        terms = small_terms(60, neighbours=6, threshold=4, least=40, round=number)
        near = {client: terms.neighbours_of(client) for client in terms.clients}
        seen, waiting = {0}, [0]
        while waiting:
            new = set(near[waiting.pop()]) - seen
            seen |= new
            waiting.extend(new)
        assert len(seen) == 60
        graphs.append(near)
    assert graphs[0] != graphs[1] != graphs[2]


def test_who_is_whose_neighbour_is_uniform_over_rounds():
    """Client 0's 4 neighbours among 20 others in 2,000 rounds: χ² with false alarm 1e-6.

    Counts of one round are negatively correlated, which makes the statistic smaller than χ² by (20 − 4)/19, never larger.
    """
    counts = np.zeros(21)
    for number in range(2_000):
        counts[list(small_terms(21, neighbours=4, threshold=3, least=10, round=number).neighbours_of(0))] += 1
    assert counts[0] == 0
    assert scipy.stats.chisquare(counts[1:]).pvalue > 1e-6


def test_a_ring_holds_together_as_long_as_enough_survive_in_every_stretch():
    """Clients that share no mask with anybody on the other side are what a server could sum by themselves."""
    terms = small_terms(60, neighbours=8, threshold=6, least=20)
    ring, width = terms._ring, terms.neighbours // 2
    for gone in (ring[5 : 5 + width - 1], ring[-2:] + ring[: width - 3], ring[::2]):
        stayed = set(terms.clients) - set(gone)
        assert terms.gap(stayed) is None
        assert len(parts(terms, stayed)) == 1
    split = set(terms.clients) - set(ring[5 : 5 + width]) - set(ring[30 : 30 + width])
    assert len(parts(terms, split)) == 2
    assert terms.gap(split) == (width, 0, 1)
    strict = replace(terms, spread=3)
    assert strict.gap(set(terms.clients) - set(strict._ring[7:9])) == (width, 2, 3)
    assert small_terms(9).gap([]) is None, "in a complete graph everybody shares a mask with everybody"


def parts(terms, stayed):
    """The connected parts of the graph over some clients."""
    found, rest = [], set(stayed)
    while rest:
        part, waiting = set(), {rest.pop()}
        while waiting:
            part |= (here := {waiting.pop()})
            waiting |= {peer for client in here for peer in terms.neighbours_of(client) if peer in stayed} - part
        found.append(part)
        rest -= part
    return found


def test_strangers_have_no_neighbours():
    with pytest.raises(InputError, match="not among"):
        small_terms(5).neighbours_of(7)


# Planning ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colluders", [0.0, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("dropouts", [0.0, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("count", [2, 3, 5, 10, 50, 300, 1_000, 20_000])
def test_planned_neighbourhoods_keep_their_promises_by_scipys_tails(count, colluders, dropouts):
    k, threshold, spread = planned_neighbourhood(count, colluders=colluders, dropouts=dropouts)
    bad, gone = math.floor(colluders * count), math.floor(dropouts * count)
    assert 2 * threshold > k + 1
    if k == count - 1:
        assert 2 * threshold > count + bad
        assert count - gone >= threshold
        return
    colluding, leaving = (scipy.stats.hypergeom(count - 1, marked, k) for marked in (bad, gone))
    slack = 1 + 1e-6
    assert count * colluding.sf(2 * threshold - k - 2) <= 2**-40 * slack  # 2t > k + 1 + c fails
    assert count * leaving.sf(k - threshold) <= 2**-30 * slack  # k − d ≥ t fails
    near_colluding, near_leaving = (scipy.stats.hypergeom(count, marked, k // 2) for marked in (bad, gone))
    assert count * near_colluding.sf(spread - 1) <= 2**-40 * slack  # among k/2 in a row, all that stay collude
    assert count * near_leaving.sf(k // 2 - spread) <= 2**-30 * slack  # fewer than must stay do
    least = threshold - k // 2 - 1  # with as many colluders at each of two cuts, an arc of the ring can be cut out
    first = np.arange(least, min(bad, k // 2) + 1)
    second = scipy.stats.hypergeom.sf(least - 1, count - k // 2, np.maximum(bad - first, 0), k // 2)
    assert count**2 / 2 * (near_colluding.pmf(first) * second).sum() <= 2**-40 * slack


@pytest.mark.parametrize(
    ("count", "marked", "k", "least"),
    [(50, 5, 10, 0), (50, 5, 10, 6), (1_000, 100, 60, 30), (1_890, 1_828, 47, 30), (2_000, 1_999, 1_500, 100), (30, 28, 5, 1)],
)
def test_tails_are_those_of_rational_arithmetic(count, marked, k, least):
    """Also where the first terms are too small for a float, or impossible."""
    ways = (math.comb(marked, met) * math.comb(count - marked, k - met) for met in range(least, min(marked, k) + 1))
    exact = float(Fraction(sum(ways), math.comb(count, k)))
    assert math.isclose(_odds_of_at_least(count, marked, k, least), exact, rel_tol=1e-10)


def test_two_fewer_neighbours_would_not_do():
    for count in (100, 300, 1_000):
        k, _, _ = planned_neighbourhood(count)
        with pytest.raises(InputError, match="no threshold"):
            planned_neighbourhood(count, neighbours=k - 2)


def test_small_cohorts_have_complete_graphs_and_large_ones_hardly_grow():
    """Bell et al. 2020: neighbourhoods grow like log n, so that 10,000 clients need not know each other."""
    sizes = {count: planned_neighbourhood(count).neighbours for count in (10, 30, 100, 1_000, 10_000, 100_000)}
    assert sizes[10] == 9
    assert sizes[30] == 29
    assert sizes[100] < 99
    assert sizes[100_000] < 1.5 * sizes[1_000]


def test_assumptions_that_no_threshold_meets_are_refused():
    with pytest.raises(InputError, match="colluders and twice the dropouts"):
        planned_neighbourhood(100, colluders=0.4, dropouts=0.3)


@pytest.mark.parametrize("given", [{"colluders": -0.1}, {"dropouts": 1.0}, {"colluders": math.nan}])
def test_shares_that_are_not_are_refused(given):
    with pytest.raises(InputError, match="from 0 to below 1"):
        planned_neighbourhood(100, **given)


@pytest.mark.parametrize("count", [1, 0, 2.0])
def test_a_sum_of_one_is_refused(count):
    with pytest.raises(InputError, match="at least two"):
        planned_neighbourhood(count)


def test_a_threshold_that_breaks_the_assumptions_is_refused_with_those_that_keep_them():
    with pytest.raises(InputError, match="Use 8 to 9"):
        planned_neighbourhood(10, colluders=0.5, threshold=6)


def test_what_is_given_is_kept_if_it_holds():
    given = {"session": SESSION, "round": 3, "clients": range(1_000), "size": 4, "bits": 16, "neighbours": 200}
    terms = planned_terms(**given, threshold=140, least=700)
    assert (terms.neighbours, terms.threshold, terms.least) == (200, 140, 700)
    assert terms.spread == planned_neighbourhood(1_000, neighbours=200).spread > 1
    with pytest.raises(InputError, match="threshold=101 of 201 clients does not hold"):
        planned_terms(**given, threshold=101)


def test_planned_terms_leave_room_for_the_assumed_dropouts_and_for_one_in_small_cohorts():
    assert small_terms(1_000).least == 900
    assert small_terms(5).least == 4
    assert small_terms(2).least == 2


def test_clients_may_be_given_in_any_order():
    assert small_terms(clients=[4, 2, 9]).clients == (2, 4, 9)
