"""The server: whom it asks, what it sends, what it accepts, and what it counts."""

import math
import random
import struct
import zlib
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import SEED, Tamper, advanced, data_of, federation, weights_of
from odds import uniformity
from problems import dense_model
from sketchfed.algorithms import FedAvg, FetchSgd, Iterative
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.errors import DivergedError
from sketchfed.rounds.screening import wild as wild_norms
from sketchfed.rounds.server import Server
from sketchfed.wire import Bits, Packet, pack, unpack

COUNT = SketchSettings(name="count", size=15)
ALGORITHMS = {
    "fedavg": FedAvg(),
    "iterative": Iterative(sketch=SketchSettings(size=6)),
    "few bits": Iterative(sketch=SketchSettings(size=6, bits=4)),
    "fetchsgd": FetchSgd(sketch=COUNT, rows=3),
}

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def at_round(server: Server, index: int) -> Server:
    """As if so many rounds were behind it."""
    server.state = replace(server.state, replica=replace(server.state.replica, round=index))
    return server


# Whom it asks


@pytest.mark.parametrize(
    ("clients", "participation", "size"), [(10, 1.0, 10), (10, 0.3, 3), (10, 0.01, 1), (7, 0.5, 4), (3, 0.34, 1), (1, 0.1, 1)]
)
def test_a_cohort_is_the_share_asked_for_and_never_empty(clients, participation, size):
    server = federation(FedAvg(participation=participation), data_of(clients))
    for index in range(20):
        cohort = at_round(server, index).cohort()
        assert len(set(cohort)) == len(cohort) == size
        assert set(cohort) <= set(range(clients))


def test_every_cohort_is_as_likely_as_any_other():
    """χ² over the 120 ways to draw 3 of 10, 6,000 rounds. False alarm below 1e-6."""
    server = federation(FedAvg(participation=0.3), data_of(10))
    seen = Counter(tuple(sorted(at_round(server, index).cohort())) for index in range(6_000))
    assert len(seen) == math.comb(10, 3)
    assert uniformity(list(seen.values())) > 1e-6


def test_cohorts_follow_from_the_seed_and_the_round():
    one, other = (federation(FedAvg(participation=0.3), data_of(10)) for _ in range(2))
    assert [at_round(one, index).cohort() for index in range(9)] == [at_round(other, index).cohort() for index in range(9)]


# What it sends


@every_algorithm
@pytest.mark.parametrize("shared_start", [True, False])
def test_bytes_are_those_of_the_messages(name, shared_start):
    algorithm = replace(ALGORITHMS[name], participation=0.5)
    server = advanced(federation(algorithm, data_of(6), shared_start=shared_start), 8)
    assert server.tally.downlink_bytes == sum(len(task) for tasks in server.engine.tasks for task in tasks.values())
    assert server.tally.uplink_bytes == sum(len(reply) for replies in server.engine.replies for reply in replies.values())
    assert server.tally.replies == 8 * 3
    assert server.tally.refused == 0


@every_algorithm
def test_a_broadcast_is_what_a_client_gets_that_misses_no_round(name):
    server = advanced(federation(ALGORITHMS[name], data_of(3)), 5)
    counted = server.tally.broadcast_bytes
    server.advance()
    assert counted == sum(len(tasks[0]) for tasks in server.engine.tasks[1:])


@every_algorithm
def test_the_first_round_sends_weights_only_if_clients_cannot_make_them(name):
    dim = 28
    for shared_start in (True, False):
        server = advanced(federation(ALGORITHMS[name], data_of(3), shared_start=shared_start), 1)
        kinds = {unpack(task).kind for task in server.engine.tasks[0].values()}
        assert kinds == ({"begin"} if shared_start else {"snapshot"})
        assert all((len(task) > 4 * dim) != shared_start for task in server.engine.tasks[0].values())


def test_clients_with_equal_needs_share_one_object():
    server = advanced(federation(ALGORITHMS["iterative"], data_of(5)), 3)
    assert all(len({id(task) for task in tasks.values()}) == 1 for tasks in server.engine.tasks)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_absent_clients_get_missed_updates_or_the_whole_model_whichever_is_smaller(momentum):
    algorithm = Iterative(sketch=SketchSettings(size=30), global_momentum=momentum)
    server = federation(algorithm, data_of(3), module=dense_model("mlp", hidden=[12]))
    whole = len(server._whole())
    advanced(server, 12)
    update = len(server.tally.updates[-1])
    enough = (whole - 1) // update  # so many updates are still smaller than a model
    assert 1 < enough < 10, "the threshold lies inside what is tried"
    for missed in range(1, 12):
        server.tally.known[1] = server.round - missed
        server.advance()
        task = server.engine.tasks[-1][1]
        assert len(task) == (missed * update if missed <= enough else whole) == min(missed * update, whole)
        if missed <= enough:
            assert task == b"".join(tasks[0] for tasks in server.engine.tasks[-missed:]), (
                "what client 0 got, who missed nothing"
            )


@every_algorithm
def test_what_is_kept_for_absent_clients_is_never_larger_than_a_model(name):
    server = federation(replace(ALGORITHMS[name], participation=0.3), data_of(6))
    for _ in range(15):
        server.advance()
        assert sum(map(len, server.tally.updates)) <= server._whole_size()
    assert bool(server.tally.updates) == server.algorithm.incremental


# What it accepts


def spoilt(name: str) -> dict[str, Tamper]:
    """Ways to answer wrongly, each for client 1 of 4."""

    def changed(edit) -> Tamper:
        def tamper(replies):
            packet = unpack(replies[1])
            return replies | {1: pack(edit(packet))}

        return tamper

    def with_bytes(edit) -> Tamper:
        return lambda replies: replies | {1: edit(replies[1])}

    def with_arrays(edit) -> Tamper:
        return changed(lambda packet: replace(packet, arrays={name: edit(array) for name, array in packet.arrays.items()}))

    def longer(array):
        return Bits(torch.zeros(array.shape[0] + 1).long(), bits=array.bits) if isinstance(array, Bits) else torch.zeros(29, 3)

    ways = {
        "truncated": with_bytes(lambda reply: reply[:-1]),
        "empty": with_bytes(lambda _: b""),
        "trailing": with_bytes(lambda reply: reply + b"\0"),
        "twice": with_bytes(lambda reply: reply + reply),
        "flipped": with_bytes(lambda reply: reply[:-3] + bytes([reply[-3] ^ 4]) + reply[-2:]),
        "noise": with_bytes(lambda reply: random.Random(1).randbytes(len(reply))),
        "not bytes": with_bytes(lambda _: "reply"),
        "last round": changed(lambda packet: replace(packet, scalars=dict(packet.scalars) | {"round": 0})),
        "next round": changed(lambda packet: replace(packet, scalars=dict(packet.scalars) | {"round": 2})),
        "no round": changed(lambda packet: replace(packet, scalars={})),
        "kind": changed(lambda packet: replace(packet, kind="other")),
        "nothing": changed(lambda packet: replace(packet, arrays={})),
        "shape": with_arrays(longer),
        "type": with_arrays(lambda array: torch.zeros(array.shape).double()),
        "many clients": changed(lambda packet: replace(packet, clients=1_000_000)),
    }
    if name != "few bits":
        ways["not a number"] = with_bytes(not_finite)
    else:
        ways["of another client"] = lambda replies: replies | {1: replies[2]}
        ways["huge step"] = changed(lambda packet: replace(packet, scalars=dict(packet.scalars) | {"step": 1e300}))
    return ways


def not_finite(reply: bytes) -> bytes:
    """The reply with NaN as its last number, under a checksum that holds."""
    body = reply[:-4] + struct.pack("<f", math.nan)
    return body[:16] + struct.pack("<I", zlib.crc32(body[20:], zlib.crc32(body[:16]))) + body[20:]


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in ALGORITHMS for way in spoilt(name)])
def test_wrong_replies_are_refused_and_the_round_is_that_of_the_others(name, way):
    """The round ends as if the client had not answered, to the bit, and it is counted."""
    honest = federation(ALGORITHMS[name], data_of(4))
    attacked = federation(ALGORITHMS[name], data_of(4))
    for server in (honest, attacked):
        server.advance()
    honest.engine.tamper = lambda replies: {client: reply for client, reply in replies.items() if client != 1}
    attacked.engine.tamper = spoilt(name)[way]
    for server in (honest, attacked):
        server.advance()
        server.engine.tamper = dict
    assert torch.equal(weights_of(attacked), weights_of(honest))
    assert (attacked.tally.refused, honest.tally.refused) == (1, 0)
    assert attacked.tally.known == honest.tally.known == {0: 1, 1: 0, 2: 1, 3: 1}
    for server in (honest, attacked):
        server.advance()
    assert torch.equal(weights_of(attacked), weights_of(honest))
    assert attacked.tally.known[1] == 2


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_whatever_one_client_answers_the_others_finish_the_round(data):
    """Noise, damage, and well-formed packets of any content."""
    name = data.draw(st.sampled_from(list(ALGORITHMS)))
    numbers = st.sampled_from([0.0, 1.0, -1e-3, 1e30])
    arrays = st.one_of(
        st.builds(torch.full, st.sampled_from([(6,), (28,), (3, 5), (0,), (1, 6)]), numbers),
        st.builds(lambda n, bits: Bits(torch.zeros(n).long(), bits=bits), st.sampled_from([6, 28]), st.sampled_from([4, 5])),
    )
    scalars = st.one_of(st.just(0), st.just(1), st.integers(-(2**63), 2**63 - 1), st.floats(-1e300, 1e300), st.text(max_size=3))
    packets = st.builds(
        Packet,
        kind=st.sampled_from(["dense", "sketched", "table", "mean"]),
        arrays=st.dictionaries(st.sampled_from(["values", "indices"]), arrays, max_size=2),
        scalars=st.fixed_dictionaries({"round": st.sampled_from([0, 0, 0, 1])}, optional={"client": scalars, "step": scalars}),
        clients=st.sampled_from([1, 1, 1, 5]),
    )
    answer = data.draw(st.binary(max_size=80) | packets.map(pack))
    server = federation(ALGORITHMS[name], data_of(3), tamper=lambda replies: replies | {1: answer})
    server.advance()
    assert server.round == 1
    assert server.tally.replies + server.tally.refused == 3
    assert torch.isfinite(weights_of(server)).all()


def test_replies_of_clients_that_were_not_asked_are_ignored():
    server = federation(FedAvg(participation=0.5), data_of(4), tamper=lambda replies: replies | dict.fromkeys(range(9), b"?"))
    with pytest.raises(DivergedError):
        server.advance()
    assert server.tally.refused == 2
    assert server.tally.uplink_bytes == 2


def test_refusals_are_logged_with_their_reason(caplog):
    server = federation(FedAvg(), data_of(3), tamper=lambda replies: {0: replies[0], 1: replies[1][:-1]})
    server.advance()
    assert "round 1 goes on without client 1: the packet is truncated" in caplog.text
    assert "round 1 goes on without client 2: no reply came" in caplog.text


@pytest.mark.parametrize(
    ("tamper", "complaint"),
    [
        (lambda _: {}, "round 1 got no usable reply: no reply came$"),
        (
            lambda replies: dict.fromkeys(replies, b""),
            "round 1 got no usable reply: the packet is truncated: .* Receive it again$",
        ),
    ],
)
@every_algorithm
def test_a_round_without_any_usable_reply_ends_training(name, tamper, complaint):
    server = federation(ALGORITHMS[name], data_of(3), tamper=tamper)
    with pytest.raises(DivergedError, match=complaint):
        server.advance()
    assert server.round == 0


@every_algorithm
def test_clients_that_diverge_end_training_with_their_reason(name):
    server = federation(replace(ALGORITHMS[name], local_rate=1e30, local_steps=5), data_of(3))
    with pytest.raises(DivergedError, match=r"round 1 got no usable reply: .*NaN or infini"):
        server.advance()


@pytest.mark.parametrize("name", ["fedavg", "iterative", "fetchsgd"])
def test_finite_replies_that_add_up_to_infinity_end_training_too(name):
    def huge(replies):
        packets = {client: unpack(reply) for client, reply in replies.items()}
        return {
            client: pack(replace(packet, arrays={key: torch.full(array.shape, 3e38) for key, array in packet.arrays.items()}))
            for client, packet in packets.items()
        }

    server = federation(ALGORITHMS[name], data_of(3), tamper=huge)
    before = weights_of(server)
    with pytest.raises(DivergedError, match=r"round 1"):
        server.advance()
    assert server.round == 0
    assert torch.equal(weights_of(server), before)


def wild(value: float) -> Tamper:
    """Client 1 sends the same value everywhere, in a packet that is otherwise as it should be."""

    def tamper(replies):
        packet = unpack(replies[1])
        arrays = {key: torch.full(array.shape, value) for key, array in packet.arrays.items()}
        return replies | {1: pack(replace(packet, arrays=arrays))}

    return tamper


@pytest.mark.parametrize("value", [1e5, 1e15, 1e30, -3e38])
@pytest.mark.parametrize("name", ["fedavg", "iterative", "fetchsgd"])
def test_a_reply_of_wild_values_is_screened_and_training_is_that_of_the_others(name, value, caplog):
    honest, attacked = (federation(ALGORITHMS[name], data_of(4)) for _ in range(2))
    honest.engine.tamper = lambda replies: {client: reply for client, reply in replies.items() if client != 1}
    attacked.engine.tamper = wild(value)
    for server in (honest, attacked):
        advanced(server, 5)
    assert torch.equal(weights_of(attacked), weights_of(honest))
    assert (attacked.tally.refused, honest.tally.refused) == (5, 0)
    assert attacked.tally.known == honest.tally.known
    said = "norm of what it sent is not finite" if abs(value) > 1e18 else "more than 1000 times the median"
    assert f"round 5 goes on without client 1: {'the' if abs(value) > 1e18 else 'what it sent has'}" in caplog.text
    assert said in caplog.text


def test_screening_can_be_turned_off_but_for_what_is_not_finite():
    for value, refused in ((1e5, 0), (1e30, 1)):
        server = federation(replace(ALGORITHMS["fedavg"], screening=0), data_of(4), tamper=wild(value))
        server.advance()
        assert server.tally.refused == refused


def test_norms_are_compared_with_the_median_of_three_or_more():
    assert wild_norms({0: 1.0, 1: 1e9}, 1_000) == {}
    assert list(wild_norms({0: 1.0, 1: 1e9, 2: 2.0}, 1_000)) == [1]
    assert wild_norms({0: 1.0, 1: 1e9, 2: 2.0}, 0) == {}
    assert wild_norms({0: 0.0, 1: 5.0, 2: 0.0}, 1_000) == {}, "where most have nothing to say, nothing can be told"
    assert wild_norms({0: 1.0, 1: 1e9, 2: 1e9}, 1_000) == {}, "most decide"
    for few in (1, 2, 3, 5):
        assert list(wild_norms({0: math.nan} | dict.fromkeys(range(1, few), 1.0), 1_000)) == [0]
    assert set(wild_norms({0: math.inf, 1: 1.0, 2: 5_000.0, 3: 2.0, 4: 1.0}, 1_000)) == {0, 2}


def test_runs_with_equal_seeds_are_equal_and_others_are_not():
    weights = [
        weights_of(advanced(federation(ALGORITHMS["few bits"], data_of(3), seed=seed), 3))
        for seed in (SEED, SEED, SEED.child("other"))
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
