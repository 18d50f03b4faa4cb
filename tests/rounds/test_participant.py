"""A client's side: its replica is the server's, bit for bit, however it got there."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import SEED, advanced, data_of, federation, snapshot, unprotected
from problems import dense_model
from sketchfed.algorithms import FedAvg, FetchSgd, Iterative, Replica
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.errors import WireError
from sketchfed.rounds import Participant
from sketchfed.rounds.server import Server
from sketchfed.training import make_trainer
from sketchfed.vectors import flatten
from sketchfed.wire import Packet, pack, unpack

ROUNDS = 7
SMALL = SketchSettings(size=6)
ALGORITHMS = {
    "plain": Iterative(sketch=SMALL),
    "few bits": Iterative(sketch=SketchSettings(size=6, bits=4, bits_down=2)),
    "momentum": Iterative(sketch=SMALL, global_momentum=0.9),
    "momentum, few bits": Iterative(sketch=SketchSettings(size=6, bits=3), global_momentum=0.5, local_momentum=0.5),
    "projection": Iterative(sketch=SMALL, form="projection"),
    "fetchsgd": FetchSgd(sketch=SketchSettings(name="count", size=15), rows=3, fetched=3),
}

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


class History:
    """A run whose server forgot nothing: its replica after each round, and the update of each."""

    def __init__(self, name: str) -> None:
        server = federation(ALGORITHMS[name], data_of(3))
        server._whole_size = lambda: 2**30  # so that no update is forgotten
        self.replicas = [server.state.replica]
        for _ in range(ROUNDS):
            self.replicas.append(advanced(server, 1).state.replica)
        self.updates, self.algorithm = server.tally.updates, server.algorithm
        trainer = make_trainer(dense_model("linear"), "squares")
        self.participant = Participant(trainer=trainer, seed=SEED, protection=server.protection)

    def follows(self, start: int, stop: int) -> Replica:
        """The replica of a client that was at round `start` and got all updates up to `stop`."""
        return self.participant.receive(self.replicas[start], b"".join(self.updates[start:stop]))

    def snapshot(self, at: int) -> bytes:
        return pack(snapshot(self.algorithm, self.replicas[at]))


@cache
def history_of(name: str) -> History:
    return History(name)


def same(one: Replica, other: Replica) -> bool:
    velocities = (one.velocity, other.velocity)
    return (
        one.round == other.round
        and torch.equal(one.weights, other.weights)
        and (velocities == (None, None) or torch.equal(*velocities))
    )


@every_algorithm
def test_missed_updates_lead_to_the_servers_replica_bit_for_bit(name):
    history = history_of(name)
    assert not same(history.replicas[0], history.replicas[ROUNDS])
    for missed in range(1, ROUNDS + 1):
        assert same(history.follows(ROUNDS - missed, ROUNDS), history.replicas[ROUNDS])


@every_algorithm
def test_a_snapshot_leads_there_too_and_updates_follow_on_it(name):
    history = history_of(name)
    for held in (None, history.replicas[1]):
        arrived = history.participant.receive(held, history.snapshot(4))
        assert same(arrived, history.replicas[4])
        later = history.participant.receive(arrived, b"".join(history.updates[4:]))
        assert same(later, history.replicas[ROUNDS])


@every_algorithm
def test_tasks_that_come_twice_or_late_do_no_harm(name):
    history = history_of(name)
    latest, receive = history.replicas[ROUNDS], history.participant.receive
    for start in range(ROUNDS):
        for stop in range(start + 1, ROUNDS + 1):
            assert receive(latest, b"".join(history.updates[start:stop])) is latest
    assert same(receive(latest, history.snapshot(ROUNDS)), latest)
    assert same(receive(history.replicas[3], b"".join(history.updates)), latest), "updates that overlap with what is held"


@every_algorithm
def test_gaps_are_refused(name):
    history = history_of(name)
    for held, parts in ((0, [1, 2]), (2, [4]), (0, [0, 2]), (1, [1, 2, 4, 5]), (3, [6, 5, 4]), (0, [0, 0, 0])):
        task = b"".join(history.updates[index] for index in parts)
        try:
            arrived = history.participant.receive(history.replicas[held], task)
        except WireError as error:
            assert "updates in between are missing. Send it the whole model" in str(error)  # noqa: PT017
        else:
            assert same(arrived, history.replicas[parts[-1] + 1]), "accepted, so it must be right"


def test_a_gap_says_where_it_is():
    history = history_of("plain")
    with pytest.raises(WireError, match="the task is for round 5, but this client's replica is at round 1"):
        history.participant.receive(history.replicas[1], history.updates[4])


def test_nothing_new_leaves_the_replica_as_it_is():
    history = history_of("plain")
    begin = pack(Packet(kind="begin", arrays={}, scalars={"round": 2}))
    assert history.participant.receive(history.replicas[2], begin) is history.replicas[2]
    with pytest.raises(WireError, match="the task is for round 2, but this client's replica is at round 1"):
        history.participant.receive(history.replicas[1], begin)


def test_a_client_without_a_replica_asks_for_the_whole_model():
    with pytest.raises(WireError, match=r"holds no replica yet.*Send it the whole model"):
        history_of("plain").participant.receive(None, history_of("plain").updates[0])


def update_with(packet: Packet, **scalars: object) -> bytes:
    return pack(Packet(kind=packet.kind, arrays=packet.arrays, scalars={**packet.scalars, **scalars}))


def test_tasks_that_are_none_are_refused():
    history = history_of("plain")
    good, update = history.updates[0], unpack(history.updates[0])
    cases = {
        "empty": b"",
        "cut": good[:-1],
        "noise": b"\x00" * 50,
        "damaged": good[:-1] + bytes([good[-1] ^ 1]),
        "no round": pack(Packet(kind="mean", arrays=update.arrays)),
        "text round": update_with(update, round="0"),
        "negative round": update_with(update, round=-1),
        "absurd round": update_with(update, round=2**63 - 1),
        "other kind": pack(Packet(kind="other", arrays=update.arrays, scalars={"round": 0})),
        "other size": pack(Packet(kind="mean", arrays={"values": torch.ones(7)}, scalars={"round": 0})),
        "wrong model": pack(snapshot(FedAvg(), Replica(round=3, weights=torch.ones(27)))),
    }
    for task in cases.values():
        with pytest.raises(WireError):
            history.participant.receive(history.replicas[0], task)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, ROUNDS - 1), max_size=6), st.integers(0, ROUNDS), st.binary(max_size=12), st.integers(0, 600))
def test_any_task_leads_to_a_replica_of_the_server_or_to_a_wire_error(parts, held, noise, cut):
    history = history_of("plain")
    task = (b"".join(history.updates[index] for index in parts) + noise)[:cut]
    try:
        arrived = history.participant.receive(history.replicas[held], task)
    except WireError:
        return
    assert same(arrived, history.replicas[arrived.round])


@pytest.mark.parametrize("algorithm", [FedAvg(), ALGORITHMS["few bits"]])
def test_an_answer_says_its_round_and_depends_on_nothing_but_round_and_client(algorithm):
    server: Server = federation(algorithm, data_of(3))
    participant = server.engine.inner._participant
    replica, data = server.state.replica, data_of(3)[0]
    kept = replica.weights.clone()
    reply, memory = participant.answer(replica, data, None, 1)
    assert not memory
    assert unpack(reply).scalars["round"] == 0
    assert participant.answer(replica, data, None, 1)[0] == reply
    assert torch.equal(replica.weights, kept)
    later = Replica(round=5, weights=replica.weights, velocity=replica.velocity)
    assert unpack(participant.answer(later, data, None, 1)[0]).scalars["round"] == 5
    assert len(kept) == len(flatten(dense_model("linear")))


def test_an_update_is_refused_where_whole_models_are_broadcast():
    module = dense_model("mlp")
    trainer = make_trainer(module, "squares")
    participant = Participant(trainer=trainer, seed=SEED, protection=unprotected(FedAvg(), trainer.dim))
    update = pack(Packet(kind="mean", arrays={"values": torch.zeros(3)}, scalars={"round": 0}))
    with pytest.raises(WireError, match="broadcasts whole models, but a packet of kind 'mean' arrived"):
        participant.receive(Replica(round=0, weights=flatten(module)), update)
