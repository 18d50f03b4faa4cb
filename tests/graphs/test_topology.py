"""What works in a round: failures come as often as they should, and everybody draws the same."""

import numpy as np
import pytest

from odds import binomial
from sketchfed import PublicSeed
from sketchfed.errors import InputError, WireError
from sketchfed.graphs import GraphSettings
from sketchfed.wire import Packet, pack, unpack

ALL = {"node_failures": 0.2, "link_failures": 0.1, "stragglers": 0.3, "losses": 0.15, "spoiled": 0.25}
ROUNDS = 200


def topology(nodes=20, seed=7, **settings):
    return GraphSettings(**settings).topology(nodes, PublicSeed(seed))


def directed(links):
    return [pair for a, b in links.graph.edges for pair in ((a, b), (b, a))]


def test_without_failures_everything_works_in_every_round():
    found = topology()
    for round in range(3):
        links = found.at(round)
        assert links.graph == found.graph(0)
        assert (links.away, links.late) == (frozenset(), frozenset())
        assert {links.fate(*pair) for pair in directed(links)} == {"arrives"}


def test_everybody_who_has_the_seed_draws_the_same():
    one, other = (topology(name="erdos_renyi", redraw=2, outage=3, **ALL) for _ in range(2))
    for round in (5, 0, 17):  # in any order
        first, second = one.at(round), other.at(round)
        assert first == second
        assert [first.fate(*pair) for pair in directed(first)] == [second.fate(*pair) for pair in directed(second)]
        assert all(first.spoil(b"message", *pair) == second.spoil(b"message", *pair) for pair in directed(first))
    assert one.at(0) != topology(name="erdos_renyi", redraw=2, outage=3, seed=8, **ALL).at(0)


def test_failures_come_as_often_as_they_should():
    """Exact binomial tests over 200 rounds, each with a false alarm below 1e-6."""
    found = topology(name="complete", **ALL)
    links = [found.at(round) for round in range(ROUNDS)]
    away = sum(len(each.away) for each in links)
    assert binomial(away, 20 * ROUNDS, 0.2) > 1e-6
    present = 20 * ROUNDS - away
    assert binomial(sum(len(each.late) for each in links), present, 0.3) > 1e-6
    possible = sum((20 - len(each.away)) * (19 - len(each.away)) // 2 for each in links)
    assert binomial(possible - sum(len(each.graph.edges) for each in links), possible, 0.1) > 1e-6
    fates = [each.fate(*pair) for each in links for pair in directed(each) if pair[0] not in each.late]
    assert binomial(fates.count("lost"), len(fates), 0.15) > 1e-6
    assert binomial(fates.count("spoiled"), len(fates) - fates.count("lost"), 0.25) > 1e-6
    assert fates.count("late") == 0


def test_nodes_that_are_away_have_no_links_and_are_not_late():
    for round in range(50):
        links = (found := topology(name="complete", **ALL)).at(round)
        assert not links.away & links.late
        assert not any(links.graph.neighbours(node) for node in links.away)
        assert set(links.graph.edges) <= set(found.graph(round).edges)


def test_messages_of_late_nodes_are_late_and_they_hear_the_others():
    links = topology(name="complete", stragglers=0.5).at(0)
    for sender, receiver in directed(links):
        assert links.fate(sender, receiver) == ("late" if sender in links.late else "arrives")


def test_each_message_of_a_link_has_a_fate_of_its_own():
    links = topology(name="complete", nodes=8, losses=0.5).at(0)
    fates = {tuple(links.fate(*pair, number=number) for pair in directed(links)) for number in range(5)}
    assert len(fates) == 5


def test_an_outage_lasts_as_long_as_it_should():
    found = topology(name="complete", outage=4, node_failures=0.3, link_failures=0.3)
    for round in range(20):
        first = found.at(round // 4 * 4)
        assert found.at(round).away == first.away
        assert found.at(round).graph == first.graph
    assert len({found.at(round).away for round in range(0, 80, 4)}) > 10


def test_stragglers_and_losses_are_drawn_in_each_round_of_an_outage():
    found = topology(name="complete", outage=100, stragglers=0.5, losses=0.5)
    assert len({found.at(round).late for round in range(10)}) == 10
    assert len({found.at(round).fate(0, 1) for round in range(30)} - {"late"}) == 2


def test_weights_of_a_round_are_symmetric_and_doubly_stochastic():
    """Whatever fails: what a link had goes to its two nodes themselves."""
    found = topology(name="small_world", **ALL)
    for round in range(20):
        links = found.at(round)
        matrix = np.array([[links.weight(a, b) for b in range(20)] for a in range(20)])
        assert (matrix == matrix.T).all()
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
        for a, b in links.graph.edges:
            assert links.weight(a, b) == found.weights(round)[a, b]
        for node in links.away:
            assert links.weight(node, node) == 1


def test_weights_of_your_own_are_those_of_each_round():
    links = topology(nodes=3, name="path", weights=[[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]).at(4)
    assert [links.weight(1, each) for each in range(3)] == [0.5, 0.0, 0.5]


def test_random_graphs_are_drawn_anew_as_often_as_asked():
    found = topology(name="random_regular", redraw=3)
    drawn = [found.graph(round) for round in range(12)]
    assert all(drawn[round] == drawn[round // 3 * 3] for round in range(12))
    assert len(set(drawn)) == 4
    fixed = topology(name="random_regular")
    assert len({fixed.graph(round) for round in range(12)}) == 1


def test_a_spoiled_message_is_never_the_one_that_was_sent():
    links = topology(name="complete", nodes=30).at(0)
    for message in (b"", b"\0", b"\0" * 3, b"message" * 100):
        spoiled = [links.spoil(message, *pair) for pair in directed(links)]
        assert message not in spoiled
    lengths = {(len(each) > 700) - (len(each) < 700) for each in spoiled}
    assert lengths == {-1, 0, 1}, "some are longer, some are shorter and some have changed bytes"
    assert len({links.spoil(message, 0, 1, number=number) for number in range(10)}) == 10


def test_a_spoiled_packet_is_noticed():
    """By the checksum of its header: one in 2^32 spoiled packets would pass."""
    import torch

    links = topology(name="complete", nodes=20).at(0)
    packet = pack(Packet(kind="dense", arrays={"values": torch.arange(50.0)}))
    for pair in directed(links):
        with pytest.raises(WireError):
            unpack(links.spoil(packet, *pair))


def test_a_message_over_a_link_that_does_not_work_is_refused():
    links = topology(nodes=4, name="path").at(0)
    with pytest.raises(InputError, match="no link from node 0 to node 2 works in this round"):
        links.fate(0, 2)
