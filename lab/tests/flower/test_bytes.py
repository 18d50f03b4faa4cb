"""Bytes of a real federation by who counts them: each count holds the one before, and exceeds it by what is known."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("flwr")

from sketchfed import run
from sketchfed.flower import TRAFFIC
from sketchfed.flower.agreement import Agreement
from sketchfed_lab.faults.proxy import CountingProxy, counted

NODES, ROUNDS = 3, 2
HIDDEN = [200, 180]  # 50,990 parameters

RECORD = 520
"""What Flower's three objects of a message hold beside payload and agreement: a record with six named fields, among them 16
bytes of session and a digest of 32; SHA-256 in hexadecimal of the record and of what holds it; metadata. That is 418 to 454
bytes, and the lengths of long payloads take some more."""
REQUESTS, FIRST = 9, 2
"""A node asks for a message, fetches its three objects, confirms them, announces the reply and sends three objects. For the
first one of a run it fetches also what the run is, and its app."""
REQUEST = 1_150
"""HTTP up to 860 bytes, of which 515 are the node's public key, the time and a signature of it; 44 for two records of TLS; the
rest is protobuf, with names of objects of 64 bytes."""
RESPONSE = 320
"""HTTP some 130 bytes and TLS 22 or 44. Two of nine have 350 bytes more: metadata of the message, and what is to be sent."""
HANDSHAKE, STEPS = {"up": 620, "down": 1_320}, 2
"""One certificate of an elliptic curve, and two session tickets; one turn, or two. A node drops connections that it has not
used for 5 s."""
SHORTEST = 800
"""Requests are longer than this, steps of a handshake are not."""
APP = 3_000
"""The app of a run, once for each node."""
LIVES = 20
"""Seconds: nodes say at most so often that they live, by one more request."""
TLS = 1.003
"""Records of TLS have up to 16 KiB, and 22 bytes each; a connection may make them smaller at first."""


class Made:
    """A run on a federation of its own, and what was counted meanwhile."""

    def __init__(self, folder):
        algorithm = {"name": "fedavg", "rounds": ROUNDS, "local_steps": 1}
        tables = {"algorithm": algorithm, "data": {"clients": NODES}, "model": {"name": "mlp", "hidden": HIDDEN}}
        with counted(folder / "federation", nodes=NODES) as (federation, proxy):
            where = {"address": federation.address, "root_certificates": str(federation.root_certificates)}
            known, before, start = set(map(id, proxy.turns())), proxy.snapshot(), time.monotonic()
            self.result = run({**tables, "engine": {"name": "flower", **where}}, folder=folder / "run")
            self.turns = [turn for turn in proxy.turns() if id(turn) not in known]
            self.passed, self.seconds = proxy.snapshot() - before, time.monotonic() - start
        self.traffic = [json.loads(line) for line in (folder / "run" / TRAFFIC).read_text().splitlines()]

    def total(self, name):
        return sum(line[name] for line in self.traffic)

    @property
    def polls(self):
        """Questions that found no message: the shortest turns of all, and alike but for the length of a signature."""
        down, up = min((turn.down, turn.up) for turn in self.turns if turn.down and turn.up > SHORTEST)
        return [turn for turn in self.turns if turn.down == down and up <= turn.up <= up + 16]

    def on_the_socket(self, way):
        """Bytes without polls."""
        return getattr(self.passed, way) - sum(getattr(turn, way) for turn in self.polls)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("bytes"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["up", "down"])
def test_flower_carries_what_was_packed_and_the_socket_what_flower_carries(made, way):
    assert 0 < made.total(f"payload_{way}") < made.total(f"content_{way}") < made.on_the_socket(way) < getattr(made.passed, way)


@pytest.mark.slow
def test_the_metrics_count_what_was_packed(made):
    assert made.result.metrics[-1]["uplink_bytes"] == made.total("payload_up")
    assert made.result.metrics[-1]["downlink_bytes"] == made.total("payload_down")


@pytest.mark.slow
def test_flower_adds_the_fields_of_a_record_to_each_message_and_the_agreement_to_the_first(made):
    sizes = (100,) * NODES
    agreement = len(Agreement(config=made.result.config, sizes=sizes, shape=(64,), outputs=10).packed)
    for number, line in enumerate(made.traffic):
        assert line["asked"] == line["answered"] == NODES
        told = NODES * agreement if number == 0 else 0
        assert 0 < line["content_up"] - line["payload_up"] <= NODES * RECORD
        assert 0 < line["content_down"] - line["payload_down"] - told <= NODES * RECORD


@pytest.mark.slow
def test_http_and_tls_add_nine_requests_to_a_message_and_a_handshake_to_a_new_connection(made):
    """Beside the rounds, each node was greeted by a message of the same kind, without payload, and got the app with it."""
    least = (ROUNDS + 1) * NODES * REQUESTS + NODES * FIRST
    most = least + NODES * (1 + made.seconds // LIVES) + least / 2  # an object that is not there yet is asked for again
    turns, connections = len(made.turns) - len(made.polls), made.passed.connections
    assert least <= turns <= most + STEPS * connections
    extra = {way: made.on_the_socket(way) - TLS * made.total(f"content_{way}") for way in ("up", "down")}
    assert 0 < extra["up"] <= NODES * RECORD + turns * REQUEST + connections * HANDSHAKE["up"]
    assert 0 < extra["down"] <= NODES * (RECORD + APP) + turns * RESPONSE + connections * HANDSHAKE["down"]


# The proxy by itself --------------------------------------------------------------------------------------------------


@contextmanager
def echo(port=0, times=1):
    """A server that answers each line by itself, so many times."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve():
            with suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller, caller.makefile("rb") as lines:
                        for line in lines:
                            caller.sendall(line * times)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)  # wakes `accept`


def said(proxy, *lines, times=1):
    """What comes back for some lines through the proxy, on one connection."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as caller, caller.makefile("rwb") as stream:
        answers = []
        for line in lines:
            stream.write(line)
            stream.flush()
            answers.append(stream.read(times * len(line)))
        return answers


def test_the_proxy_counts_both_ways_by_connection_and_by_turn():
    with echo(times=3) as port, CountingProxy(port) as proxy:
        assert said(proxy, b"one\n", b"three\n", times=3) == [b"one\n" * 3, b"three\n" * 3]
        before = proxy.snapshot()
        said(proxy, b"x" * 999_999 + b"\n", times=3)
        passed = proxy.snapshot() - before
    assert (proxy.up, proxy.down) == (1_000_010, 3_000_030)
    assert (passed.up, passed.down, passed.turns, passed.connections) == (1_000_000, 3_000_000, 1, 1)
    first, second = proxy.connections
    assert [(turn.up, turn.down) for turn in first.turns] == [(4, 12), (6, 18)]
    assert (second.up, second.down) == (1_000_000, 3_000_000)


def test_the_proxy_outlives_the_server_and_finds_the_next_one():
    with echo() as port, CountingProxy(port) as proxy:
        assert said(proxy, b"here\n") == [b"here\n"]
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            gone = nobody.getsockname()[1]
        with CountingProxy(gone) as lonely:
            with suppress(ConnectionError):
                assert said(lonely, b"anybody?\n") == [b""]
            with echo(gone):
                assert said(lonely, b"back\n") == [b"back\n"]
        assert (lonely.up, lonely.down) == (5, 5)


def test_leaving_hangs_up_on_everybody():
    with echo() as port, CountingProxy(port) as proxy:
        caller = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        caller.sendall(b"hello\n")
        assert caller.recv(6) == b"hello\n"
    with caller:
        assert caller.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
