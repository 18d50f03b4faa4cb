"""Altered messages at every stage of a secure sum, for clients and for the server: our errors only, and nothing is given away.

A few hundred messages a stage in the quick suite, 100,000 a stage among the slow tests.
"""

import random
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
import torch
from altered_packets import altered
from cohorts import SECRET
from recorded_sums import ORDER, SPARE, Recorded, recorded
from told_secrets import allowed, told

from damage import EDGES, changed, spoiled
from sketchfed.errors import SecureSumError, SketchfedError, WireError
from sketchfed.secure import Done, SecureClient, SecureServer, Terms, advertise, consent, mask, recover, share, unmask
from sketchfed.secure.kept import sealed
from sketchfed.secure.transcript import HASH
from sketchfed.wire import Packet, pack, unpack

QUICK, TRACED, FULL = 300, 30, 100_000
SECONDS, BYTES = 2.0, 64 * 2**20  # of CPU for one message, and of memory for all of them together
SLACK = 2**18  # for one message: states, keys and tracebacks
KEPT_EDGES = [
    *(edge for edge in EDGES if edge not in (10**400, 2**64, "\ud800")),
    b"",
    b"a" * 31,
    b"a" * 32,
    bytes(33),
    bytes(64),
]
Call = tuple[int, Callable[[], object]]
"""The number of altered messages, and what is done with them."""
TO_CLIENTS = ("honest", "wrong seed", "wrong key")
TO_SERVERS = ("wrong key", *["many honest", "many and a wrong seed"] * 4)
RAW = 0.1
"""The share of messages whose bytes are damaged under a checksum that tells."""

STEPS: dict[str, Callable[..., tuple[object, Packet]]] = {
    "shares": lambda cohort, state, request: share(state, request, cohort.directory),
    "masked": lambda cohort, state, request: mask(state, request, cohort.values[state.client]),
    "consent": lambda cohort, state, request: consent(state, request),
    "unmask": lambda cohort, state, request: unmask(state, request, cohort.directory),
    "recover": lambda cohort, state, request: recover(state, request),
}


class Source:
    """Altered messages of recorded sums in one direction."""

    def __init__(self, name: str, kinds: Sequence[str], *, requests: bool) -> None:
        self.chance = random.Random(name)
        self._sums = [recorded(kind) for kind in kinds]
        self._others: dict[str, list[Packet]] = {}
        for own in self._sums:
            earlier = recorded(own.kind, round=2)
            self._others[own.kind] = [*own.asked(), *earlier.asked()] if requests else [*own.answered(), *earlier.answered()]

    def at(self, stage: str) -> Recorded:
        """One of the sums that come to this stage."""
        return self.chance.choice([own for own in self._sums if stage in own.stages])

    def altered(self, own: Recorded, client: int, packet: Packet) -> bytes | Packet:
        """Bytes for the wire to read, or a packet that it has read."""
        if self.chance.random() < RAW:
            return spoiled(self.chance, pack(packet))
        return altered(self.chance, packet, self._others[own.kind], own.cohort.terms.neighbours_of(client))


def packet_of(message: bytes | Packet) -> Packet:
    return unpack(message) if isinstance(message, bytes) else message


@pytest.fixture(autouse=True)
def _honest_replies_are_read_once(monkeypatch):
    """The server reads each reply anew, and nearly all of them are the same each time."""
    known = {
        reply: moment.read[client]
        for kind in {*TO_SERVERS}
        for moment in recorded(kind).moments.values()
        for client, reply in moment.replies.items()
    }
    monkeypatch.setattr("sketchfed.secure.server.unpack", lambda data: known.get(data) or unpack(data))


def outcome(call: Callable[[], object]) -> str:
    """What came of a message: "taken", or the class of our error."""
    start = time.process_time()
    try:
        call()
        found = "taken"
    except SketchfedError as error:
        found = type(error).__name__
    assert time.process_time() - start < SECONDS
    return found


def to_client(stage: str, count: int) -> Iterator[Call]:
    """Calls of a stage function with altered requests. Each checks that the reply tells nothing but what the stage is for."""
    source = Source(f"{stage} to clients {count}", TO_CLIENTS, requests=True)
    for _ in range(count):
        own = source.at(stage)
        moment = own.moments[stage]
        client = source.chance.choice(list(moment.requests))
        request = source.altered(own, client, moment.requests[client])

        def call(own=own, state=moment.states[client], request=request) -> None:
            packet = packet_of(request)
            _, reply = STEPS[stage](own.cohort, state, packet)
            assert told(state, reply) <= allowed(state, own.wrong)

        yield 1, call


def to_joining_client(count: int) -> Iterator[Call]:
    """Altered terms, and the keys of a client that would take any terms."""
    source = Source(f"terms {count}", TO_CLIENTS, requests=True)
    for _ in range(count):
        own = source.at("keys")
        client = source.chance.choice(own.cohort.terms.clients)
        request = source.altered(own, client, own.moments["keys"].requests[client])

        def call(own=own, client=client, request=request) -> None:
            terms = Terms.from_packet(packet_of(request))
            state, reply = advertise(terms, client, own.cohort.identities[client], SECRET)
            assert not told(state, reply)

        yield 1, call


def to_session(count: int) -> Iterator[Call]:
    """Altered requests to clients at any stage, which answer, refuse for ever, or stay as they are."""
    source = Source(f"sessions {count}", TO_CLIENTS, requests=True)
    for _ in range(count):
        stage = source.chance.choice(ORDER[1:])
        own = source.at(stage)
        client = source.chance.choice(list(own.moments[stage].requests))
        asked = own.moments[source.chance.choice([stage, stage, source.chance.choice(own.stages)])].requests
        request = source.altered(own, client, asked.get(client) or own.moments[stage].requests[client])

        def call(own=own, stage=stage, client=client, request=request) -> None:
            session = own.client(stage, client)
            before = session.state
            try:
                packet = packet_of(request)
                reply = session.answer(packet, own.cohort.values[client])
            except WireError:
                assert session.state is before, "what cannot be read changes nothing"
                raise
            except SecureSumError:
                assert type(session.state) is Done, "a refusal is the last word"
                raise
            assert type(session.state) is not type(before)
            assert told(before, reply) <= allowed(before, own.wrong)

        yield 1, call


def to_kept(count: int) -> Iterator[Call]:
    """Kept clients, damaged: in their bytes, or in what these say. What can be read still answers with our errors only."""
    source = Source(f"kept {count}", TO_CLIENTS, requests=True)
    for _ in range(count):
        stage = source.chance.choice(ORDER[1:])
        own = source.at(stage)
        client = source.chance.choice(list(own.moments[stage].requests))
        data = own.client(stage, client).to_bytes()
        if source.chance.random() < 0.4:
            data = spoiled(source.chance, data)
        else:
            tree = msgspec.msgpack.decode(data[HASH:], strict=False)
            data = sealed(msgspec.msgpack.encode(changed(source.chance, tree, KEPT_EDGES)))

        def call(own=own, stage=stage, client=client, data=data) -> None:
            session = SecureClient.from_bytes(data)
            assert SecureClient.from_bytes(session.to_bytes()).state == session.state
            session.answer(own.moments[stage].requests[client], own.cohort.values[client])

        yield 1, call


def to_server(stage: str, count: int) -> Iterator[Call]:
    """Replies of all clients, some of them altered. The server leaves out nobody else."""
    source = Source(f"{stage} to the server {count}", TO_SERVERS, requests=False)
    left = count
    while left:
        own = source.at(stage)
        moment = own.moments[stage]
        bad = {
            client: source.altered(own, client, moment.read[client])
            for client in source.chance.sample(list(moment.replies), min(1 if stage == "recover" else SPARE[own.kind], left))
        }

        def call(own=own, moment=moment, bad=bad) -> None:
            server, usual = moment.arrived(), own.after(stage)
            sent = {client: reply if isinstance(reply, bytes) else pack(reply) for client, reply in bad.items()}
            try:
                server.receive(moment.replies | sent)
            except SecureSumError:
                if stage != "recover":
                    raise AssertionError("altered replies of few clients end the sum") from None
                raise
            assert server.reasons.keys() - usual.reasons.keys() <= bad.keys()
            assert usual.requests.keys() - server.requests.keys() <= bad.keys()
            if stage in ORDER[:4]:
                assert server.requests.keys().isdisjoint(server.reasons), "who is left out is asked nothing more"
            check_result(own, stage, server)

        yield len(bad), call
        left -= len(bad)


def check_result(own: Recorded, stage: str, server: SecureServer) -> None:
    """An altered reply to "unmask" cannot change the sum: each secret in it is held against what its owner showed before."""
    if stage == "unmask" and server.result is not None:
        assert torch.equal(server.result.total, own.cohort.expected(server.result.survivors))


CALLS: dict[str, Callable[[int], Iterator[Call]]] = {
    "client: terms": to_joining_client,
    **{f"client: {stage}": lambda count, stage=stage: to_client(stage, count) for stage in STEPS},
    "client: any request": to_session,
    "client: kept state": to_kept,
    **{f"server: {stage}": lambda count, stage=stage: to_server(stage, count) for stage in ORDER},
}


def fuzz(name: str, count: int) -> Counter[str]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: Counter[str] = Counter()
    for messages, call in CALLS[name](count):
        try:
            outcomes[outcome(call)] += messages
        except BaseException as error:
            error.add_note(f"{name}, after {outcomes.total()} messages of {count}")
            raise
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < BYTES, f"{grown / 2**20:.0f} MB"
    return outcomes


@pytest.mark.parametrize("name", CALLS)
def test_altered_messages_raise_our_errors_only_and_open_nothing(name):
    outcomes = fuzz(name, QUICK)
    assert outcomes.total() == QUICK
    assert outcomes["taken"] > QUICK / 50, "all alterations stop at the first check"
    if name.startswith("client"):
        assert outcomes["SecureSumError"] > QUICK / 50
        assert outcomes["WireError"] > QUICK / 50 or name == "client: kept state"


@pytest.mark.parametrize("name", CALLS)
def test_altered_messages_take_little_memory(name):
    calls = [call for _, call in CALLS[name](TRACED)]
    for call in calls[:10]:
        outcome(call)
    tracemalloc.start()
    try:
        for call in calls:
            tracemalloc.reset_peak()
            held, _ = tracemalloc.get_traced_memory()
            outcome(call)
            assert tracemalloc.get_traced_memory()[1] - held < SLACK
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CALLS)
def test_a_hundred_thousand_altered_messages_raise_our_errors_only(name):
    assert fuzz(name, FULL).total() == FULL
