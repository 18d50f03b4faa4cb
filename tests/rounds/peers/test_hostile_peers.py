"""One node of a graph says anything. The others go on, and believe no more than one neighbour can know."""

from dataclasses import replace

import pytest
import torch
from graphs_of_tiny import network

from sketchfed.errors import InputError, StorageError
from sketchfed.nodes.policy import Policy
from sketchfed.nodes.rules import Offer, check
from sketchfed.rounds.peers import ExactPeer, GossipPeer
from sketchfed.wire import Bits, Packet, pack, split, unpack

FAR = [2**40, 2**62, 2.0**63]
GOSSIPS = ["dense", "sketched", "tracking"]


def lies(server, node, lie):
    """Let a node pass everything that it says through `lie(message, receiver, step)`."""
    peer = server.group.peers[node]
    tell = peer.tell
    peer.tell = lambda receiver, step: lie(tell(receiver, step), receiver, step)
    return peer


def honest(server, node):
    """Let a node that lied speak the truth again."""
    del server.group.peers[node].tell


def stamped(message, **scalars):
    return b"".join(pack(unpack(bytes(part)).stamped(**scalars)) for part in split(message, most=100))


def whole(peer, *, round, times=1.0, tracked=1.0):
    """A packet with the whole estimate of a node, some of it multiplied."""
    packet = unpack(peer.voice.since(-1))
    factors = {"weights": times, "moments.tracked": tracked}
    return pack(
        Packet(
            kind="snapshot",
            arrays={name: torch.full_like(array, factors[name]) for name, array in packet.arrays.items()},
            scalars={"round": round},
        )
    )


# gossip --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("kind", GOSSIPS)
def test_a_whole_estimate_of_a_round_to_come_is_refused(kind, far):
    """Otherwise what its node says later is older than that, and the round may not even fit into a checkpoint."""
    server = network(kind)
    server.advance()
    liar = server.group.peers[0]
    lies(server, 0, lambda message, receiver, step: whole(liar, round=far))
    server.advance()
    assert server.tally.refused == 2
    honest(server, 0)
    for _ in range(2):
        server.advance()
        assert server.under_way()
    for node in (1, 5):
        peer = server.group.peers[node]
        assert isinstance(peer, GossipPeer)
        assert peer.copies[0].digest == liar.voice.estimate.digest


@pytest.mark.parametrize("scalars", [{"round": 2**62}, {"round": 5}, {"round": 0, "after": 1}])
@pytest.mark.parametrize("kind", GOSSIPS)
def test_an_update_is_of_no_round_to_come_and_not_older_than_what_it_builds_on(kind, scalars):
    server = network(kind)
    server.advance()
    lies(server, 0, lambda message, receiver, step: stamped(message, **scalars))
    server.advance()
    assert server.tally.refused == 2
    assert {server.group.peers[node].copies[0].round for node in (1, 5)} == {1}


@pytest.mark.parametrize("kind", GOSSIPS)
def test_a_message_of_many_updates_moves_an_estimate_no_farther_than_one_of_each_round(kind):
    """Each update passes the screening by itself, so their number must be bounded too."""
    server = network(kind)
    server.advance()
    before = server.group.peers[1].copies[0]
    lies(server, 0, lambda message, receiver, step: message + 50 * stamped(message, after=2))
    server.advance()
    assert server.tally.refused == 2
    assert server.group.peers[1].copies[0] is before


def test_a_whole_estimate_is_screened_with_all_that_it_holds():
    """The tracked change too: unscreened, it sends neighbours' models to infinity, and that ends the run."""
    server = network("tracking")
    server.advance()
    liar = server.group.peers[0]
    lies(server, 0, lambda message, receiver, step: whole(liar, round=server.round, tracked=3e38))
    for _ in range(4):
        server.advance()
    assert server.tally.refused == 8


# sums along a tree ---------------------------------------------------------------------------------------------------


def in_sum(message, **changes):
    """A message with another sum, if it is one."""
    packet = None if message is None else unpack(message)
    return message if packet is None or packet.kind != "sum" else pack(replace(packet, **changes))


def exact(graph=None, **changes):
    server = network("exact", graph or {"name": "path"}, **changes)
    assert all(isinstance(peer, ExactPeer) for peer in server.group.peers.values())
    return server


def rounds_of(server):
    return [peer.replica.round for peer in server.group.peers.values()]


def test_a_leaf_does_not_speak_for_more_nodes_than_are_below_it():
    """Otherwise its sum displaces those of honest nodes and outweighs all of them."""
    server = exact()
    lies(server, 0, lambda message, receiver, step: in_sum(message, clients=4))
    found = server.group.round(0)
    assert list(found.refused) == [(0, 1)]
    assert rounds_of(server) == [1] * 6


def test_a_node_speaks_for_those_below_it_that_take_part_in_the_round():
    server = network("exact, some", {"name": "path"})
    lies(server, 0, lambda message, receiver, step: in_sum(message, clients=2))
    for _ in range(6):
        server.advance()
    assert server.tally.refused > 0


@pytest.mark.parametrize("far", [1, 2**40, 2**62])
def test_a_sum_of_a_round_to_come_does_not_displace_those_of_others(far):
    """The step of a round would not be taken, in this round and in all others."""
    server = exact()
    lies(server, 0, lambda message, receiver, step: message and stamped(message, round=server.round + far, held=0))
    for _ in range(3):
        server.advance()
    assert rounds_of(server)[2:] == [3] * 4


@pytest.mark.parametrize("far", [1, 2**40])
def test_the_step_is_taken_although_everybody_missed_an_update_and_a_node_claims_a_later_round(far):
    """After a round without its root, nobody knows whether others are ahead. The root knows that nobody is."""
    server = exact()
    server.advance()
    for peer in server.group.peers.values():
        peer._lacking = True  # as after a round in which the root was away
    lies(server, 0, lambda message, receiver, step: message and stamped(message, round=server.round + far, held=0))
    for _ in range(2):
        server.advance()
    assert rounds_of(server)[2:] == [3] * 4


def snapshot(peer, round, value):
    weights = torch.full_like(peer.replica.weights, value)
    return pack(Packet(kind="snapshot", arrays={"weights": weights}, scalars={"round": round}))


@pytest.mark.parametrize("far", [0, 1, 2**40])
def test_a_model_that_nobody_asked_for_is_refused(far):
    server = exact()
    server.advance()
    liar = server.group.peers[5]
    told = {1: lambda: snapshot(liar, server.round + far, 7.0)}
    lies(server, 5, lambda message, receiver, step: told.get(step, lambda: message)())
    for _ in range(3):
        server.advance()
    assert server.tally.refused == 3
    assert len({peer.replica.digest for peer in server.group.peers.values()}) == 1


@pytest.mark.parametrize("far", [1, 2**40, 2**62])
def test_who_asks_is_not_given_a_model_of_a_round_to_come(far):
    """It would never follow an update again."""
    server = exact()
    server.advance()
    liar = server.group.peers[5]
    server.group.peers[4]._lacking = True
    lies(server, 5, lambda message, receiver, step: snapshot(liar, server.round + far, 7.0) if step == 1 else message)
    server.advance()
    assert server.tally.refused == 1
    assert rounds_of(server) == [2] * 6
    assert len({peer.replica.digest for peer in server.group.peers.values()}) == 1


def test_the_root_follows_nobody():
    """Steps are its own, so it has missed none. If it asked after it was away, a neighbour could replace everybody's model."""
    server = exact()
    root, links = server.group.peers[0].root, server.group.topology.at(0)
    liar = lies(server, root + 1, lambda message, receiver, step: snapshot(liar, server.round, 7.0) if step == 1 else message)
    server.group.topology.at = lambda index: replace(links, away=frozenset({root}), graph=links.graph.without({root}))
    server.advance()
    server.group.topology.at = lambda index: links
    server.advance()
    replica = server.group.peers[root].replica
    assert replica.round == 1
    assert float(replica.weights.abs().max()) < 5


def test_a_node_passes_on_the_update_that_it_followed_itself():
    """Of two updates of one round in a message, it follows the last. Those below it must get the same one."""
    server = exact()
    root = server.group.peers[0].root
    child = root + 1
    liar = server.group.peers[root]

    def twice(message, receiver, step):
        if message is None or receiver != child or unpack(bytes(split(message, most=9)[0])).kind != "mean":
            return message
        packet = unpack(message)
        return pack(replace(packet, arrays={name: -array for name, array in packet.arrays.items()})) + message

    lies(server, root, twice)
    for _ in range(2):
        server.advance()
    assert liar.replica.round == 2
    assert len({peer.replica.digest for peer in server.group.peers.values()}) == 1


def test_integers_beyond_those_of_honest_nodes_are_refused_where_they_are_said():
    """One more bit passes the first node, and the sum of it and others might not pass the next: honest nodes would pay."""
    server = network("exact", {"name": "path"})
    server.group.peers[1].algorithm.__dict__["screening"] = 0.0

    def large(message, receiver, step):
        packet = None if message is None else unpack(message)
        if packet is None or packet.kind != "sum":
            return message
        values = torch.full_like(packet.arrays["values"].values, 2**41 - 1)
        return pack(replace(packet, arrays={"values": Bits(values, bits=42, signed=True)}))

    lies(server, 0, large)
    server.advance()
    assert server.tally.refused == 1


# checkpoints ---------------------------------------------------------------------------------------------------------


def damaged(tensor):
    yield torch.full(tensor.shape, float("nan"))
    yield torch.full(tensor.shape, float("inf"))
    yield tensor.double()
    if tensor.dim() == 1 and tensor.dtype == torch.float32:
        yield tensor[:-1]
        yield tensor[None]
    if tensor.dtype == torch.int64 and tensor.numel():
        yield -tensor - 2


@pytest.mark.parametrize("kind", ["tracking", "exact", "models"])
def test_damaged_tensors_of_a_checkpoint_are_refused(kind):
    """Whatever cannot be what a node held: another shape, another type, NaN, infinity, or negative numbers of things."""
    graph = {"name": "ring", "losses": 0.3}
    server, again = (network(kind, graph, nodes=4) for _ in range(2))
    for _ in range(3):
        server.advance()
    saved, again.state = server.under_way(), server.state
    for name, tensor in saved.items():
        for bad in damaged(tensor) if name in ("traffic", "counts") or name.startswith("node.0.") else ():
            with pytest.raises(StorageError, match="damaged or replaced"):
                again.go_on({**saved, name: bad})
    again.go_on(saved)


@pytest.mark.parametrize("bad", [{"counts": torch.tensor([0, 0, 4])}, {"traffic": torch.tensor([[0, 4, 10]])}])
def test_a_checkpoint_names_no_nodes_that_do_not_exist(bad):
    server = network("dense", nodes=4)
    server.advance()
    with pytest.raises(StorageError, match="4 nodes"):
        server.go_on({**server.under_way(), **bad})


@pytest.mark.parametrize("kind", ["dense", "exact"])
def test_a_checkpoint_holds_no_words_of_rounds_to_come(kind):
    server = network(kind, nodes=4)
    server.advance()
    with pytest.raises(StorageError, match="rounds are over"):
        server.go_on({**server.under_way(), "node.0.spoken": torch.tensor(2**40)})


# numbers that no packet carries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["models", "blind neighbours"])
def test_a_node_whose_model_has_left_the_finite_numbers_falls_silent_and_the_others_go_on(kind):
    server = network(kind)
    server.advance()
    peer = server.group.peers[0]
    peer.tell = lambda receiver, step: pack(peer.sketched(receiver, peer._index, peer.weights * float("inf")))
    server.advance()
    assert server.round == 2


# secure sums ---------------------------------------------------------------------------------------------------------

SECURE = {"secure": {"clip": 30.0}}


def test_a_neighbour_that_masks_garbage_moves_a_node_no_farther_than_honest_neighbours_can():
    """Nobody can look into a sum, so it is clipped to the longest that honest neighbours add up to."""
    server = network("models", {"name": "random_regular", "degree": 4}, nodes=24, **SECURE)
    mechanism = server.protection.mechanism
    server.group.peers[0]._integers = lambda node: torch.full((mechanism.size,), 2 ** (mechanism.bits - 1) - 1)
    server.advance()
    assert max(float(peer.weights.norm()) for peer in server.group.peers.values()) < 40


def test_a_sum_in_which_one_neighbour_has_all_the_weight_hides_nothing():
    pairs = [(0, 1), (2, 3)]
    weights = torch.eye(5)
    for a, b in pairs:
        weights[a, b] = weights[b, a] = weights[a, a] = weights[b, b] = 0.5
    with pytest.raises(InputError, match="weight"):
        network("models", {"name": "complete", "weights": weights.tolist()}, nodes=5, **SECURE)


def test_no_sum_is_opened_over_fewer_neighbours_than_hide_each_other():
    server = network("models", {"name": "complete"}, nodes=4, secure={"clip": 30.0, "survivors": 0.6, "colluders": 0.0})
    peer = server.group.peers[0]
    peer._links = server.group.topology.at(0)
    assert peer._terms(0).least == 3


def test_a_node_that_can_plan_no_sum_has_trained_all_the_same(monkeypatch):
    """Its next sketch holds what it trained, so the round is charged like any other."""
    server = network("models", {"name": "random_regular", "degree": 4}, nodes=8, **SECURE)
    peer = server.group.peers[0]

    def unplanned(node):
        raise InputError("no threshold fits.")

    monkeypatch.setattr(peer, "_terms", unplanned)
    assert 0 in server.group.round(0).worked


# what is charged -----------------------------------------------------------------------------------------------------


def test_passes_are_refused_where_a_lost_update_repeats_a_batch():
    noise = {"unit": "example", "placement": "steps", "batches": "passes", "epsilon": 8.0, "delta": 1e-2}
    with pytest.raises(InputError, match="passes"):
        network("exact", privacy=noise)
    assert network("dense", privacy=noise).epsilon == 0


# settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"path": "secrets.txt"}, {"options": {"path": "secrets.txt"}}])
def test_a_server_has_no_node_read_a_file_as_the_edges_of_a_graph(options):
    """The message about a line that holds no edge quotes it."""
    offer = Offer(tables={"graph": {"name": "edges", **options}}, clients=3)
    with pytest.raises(InputError, match="names no files"):
        check(Policy.load(), offer)
