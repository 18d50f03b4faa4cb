"""Messages between nodes on several ranks: who is gone or late does not stop the others."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from certified import tls_files

from ranks import free_port
from sketchfed.errors import InputError, RankError
from sketchfed.rounds.launch import Launch
from sketchfed.rounds.rank_links import RankLinks

SCRIPT = Path(__file__).with_name("linked.py")


def launches(size: int) -> list[Launch]:
    port = free_port()
    return [Launch(rank=rank, size=size, address="127.0.0.1", port=port) for rank in range(size)]


@pytest.fixture
def connected():
    """Makes the links of several ranks in this process."""
    made: list[RankLinks] = []

    def make(size: int, homes: list[int] | None = None, **options) -> list[RankLinks]:
        options = {"deadline": 5.0, "wait": 10.0} | options
        with ThreadPoolExecutor(size) as pool:
            links = list(pool.map(lambda each: RankLinks(each, homes or list(range(size)), **options), launches(size)))
        made.extend(links)
        return links

    yield make
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(RankLinks.close, made))


def exchanged(links: list[RankLinks], index: int, edges: list[tuple[int, int]], stage: str = "mix") -> list[dict]:
    """What each of these ranks gets if all edges carry their own name."""

    def one(each: RankLinks) -> dict:
        outgoing = {edge: f"{edge} {index}".encode() for edge in edges if each._homes[edge[0]] == each.rank}
        return each.exchange(outgoing, [edge for edge in edges if each._homes[edge[1]] == each.rank], index, stage)

    with ThreadPoolExecutor(len(links)) as pool:
        return list(pool.map(one, links))


RING = [(a, b) for a in range(3) for b in range(3) if a != b]


def test_messages_arrive_over_their_edges_also_between_nodes_of_one_rank(connected):
    links = connected(2, homes=[0, 0, 1])
    for index in range(3):
        first, second = exchanged(links, index, RING)
        assert first == {edge: f"{edge} {index}".encode() for edge in RING if edge[1] < 2}
        assert second == {edge: f"{edge} {index}".encode() for edge in RING if edge[1] == 2}
    assert dict(links[0].sent) == {(0, 2): 24, (1, 2): 24}
    assert links[0].moved_out > 48
    assert links[0].moved_out == links[1].moved_in


def test_a_killed_process_is_missing_from_then_on_and_nobody_waits_for_it():
    """Rank 2 of four is killed after it sent a half of its messages of round 3."""
    port, rounds = free_port(), 8
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rounds), "10", "2"],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        said = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL, 0]
    zero, one, three = (json.loads(said[rank]) for rank in (0, 1, 3))
    assert zero["arrived"] == [[1, 3]] * rounds
    assert one["arrived"] == [[0, 2]] * 4 + [[0]] * 4
    assert three["arrived"] == [[0, 2]] * 3 + [[0]] * 5
    assert (one["lost"], three["lost"]) == (4, 5)
    assert all(2 in each["gone"] for each in (one, three))  # others may have ended by then
    assert max(each["slowest"] for each in (zero, one, three)) < 5


def test_a_late_rank_is_waited_for_once_and_again_when_it_has_caught_up(connected):
    links = connected(3, deadline=0.5)
    others = [edge for edge in RING if 2 not in edge]
    assert exchanged(links, 0, RING)[0].keys() == {(1, 0), (2, 0)}
    start = time.monotonic()
    assert exchanged(links[:2], 1, RING)[0].keys() == {(1, 0)}
    assert 0.5 <= time.monotonic() - start < 3
    assert links[0].late == {2}
    start = time.monotonic()
    for index in range(2, 6):
        assert exchanged(links[:2], index, RING)[0].keys() == {(1, 0)}
    assert time.monotonic() - start < 0.4
    assert exchanged(links[2:], 1, RING)[0].keys() == {(0, 2), (1, 2)}  # what the others sent is still there
    assert exchanged(links[2:], 5, RING)[0].keys() == {(0, 2), (1, 2)}
    until = time.monotonic() + 5
    while links[0].late and time.monotonic() < until:
        time.sleep(0.01)
    found = exchanged(links, 6, RING)
    assert found[0] == {(1, 0): b"(1, 0) 6", (2, 0): b"(2, 0) 6"}
    assert all(edge in found[1] for edge in others if edge[1] == 1)
    assert links[0].lost == 5


def test_a_rank_that_runs_ahead_finds_its_messages_kept(connected):
    one, two = connected(2)
    one.exchange({(0, 1): b"first"}, [], 0, "a")
    one.exchange({(0, 1): b"second"}, [], 0, "b")
    one.exchange({(0, 1): b"third"}, [], 1, "a")
    assert two.exchange({}, [(0, 1)], 0, "a") == {(0, 1): b"first"}
    assert two.exchange({}, [(0, 1)], 0, "b") == {(0, 1): b"second"}
    assert two.exchange({}, [(0, 1)], 1, "a") == {(0, 1): b"third"}


def test_strangers_and_false_messages_are_refused_and_harm_nobody(connected):
    links = connected(2, most=1_000)
    host, port = links[0]._listener.getsockname()
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n" * 9, b"SKLINKS1" + bytes(16) + bytes([1, 0, 0, 0])):
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(said)
    assert exchanged(links, 0, [(0, 1), (1, 0)])[0] == {(1, 0): b"(1, 0) 0"}
    assert not links[0].gone
    links[1].exchange({(1, 0): bytes(2_000)}, [], 1, "mix")
    assert links[0].exchange({}, [(1, 0)], 1, "mix") == {}
    assert links[0].gone == {1}


def test_a_rank_whose_connection_broke_comes_back(connected):
    links = connected(2, deadline=2.0)
    assert exchanged(links, 0, [(0, 1), (1, 0)])[0]
    links[1]._outgoing[0]._connection.shutdown(socket.SHUT_RDWR)
    until = time.monotonic() + 5
    while not links[0].gone and time.monotonic() < until:
        time.sleep(0.01)
    found = []
    for index in range(1, 40):
        found.append(exchanged(links, index, [(0, 1), (1, 0)])[0])
        if found[-1]:
            break
        time.sleep(0.05)
    assert found[-1], "rank 1 never came back"
    assert not links[0].gone


def test_edges_of_other_ranks_and_exchanges_that_are_over_are_refused(connected):
    one, _ = connected(2)
    with pytest.raises(InputError, match=r"edge \(1, 0\) is not sent by a node on rank 0"):
        one.exchange({(1, 0): b""}, [], 0, "mix")
    with pytest.raises(InputError, match=r"edge \(0, 1\) is not received by a node on rank 0"):
        one.exchange({}, [(0, 1)], 0, "mix")
    one.exchange({}, [], 0, "mix")
    with pytest.raises(InputError, match=r"'mix' of index 0 is over\. Use each pair once"):
        one.exchange({}, [], 0, "mix")


def test_ranks_that_never_come_are_named():
    first, *_ = launches(3)
    start = time.monotonic()
    with pytest.raises(RankError, match=r"1 of 3 ranks joined within 0\.3 seconds; rank 1, 2 did not"):
        RankLinks(first, [0, 1, 2], deadline=1.0, wait=0.3)
    assert time.monotonic() - start < 5
    assert not [thread for thread in threading.enumerate() if thread.name == "links"]


def test_with_tls_only_ranks_with_a_certificate_of_the_authority_are_heard(connected, tmp_path):
    ours, others = tls_files(tmp_path / "ours"), tls_files(tmp_path / "others")
    both = [(0, 1), (1, 0)]
    assert exchanged(connected(2, tls=ours), 0, both) == [{(1, 0): b"(1, 0) 0"}, {(0, 1): b"(0, 1) 0"}]
    one, two = launches(2)
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(RankLinks, launch, [0, 1], deadline=0.7, wait=10.0, tls=tls)
            for launch, tls in ((one, ours), (two, others))
        ]
        links = [each.result() for each in made]
    assert exchanged(links, 0, both) == [{}, {}]
    for each in links:
        each.close()


def test_files_that_hold_no_certificate_are_refused(tmp_path):
    tls = tls_files(tmp_path / "ours")
    tls.key.write_text("nothing")
    with pytest.raises(InputError, match="the files for TLS cannot be used"):
        RankLinks(launches(1)[0], [0], deadline=1.0, tls=tls)


TUNNEL = """
foreground = yes
pid =
syslog = no
debug = err
CAfile = {tls.authority}
cert = {tls.certificate}
key = {tls.key}
verifyChain = yes

[in]
accept = 127.0.0.1:{entrance}
connect = 127.0.0.1:{own}

[out]
client = yes
accept = 127.0.0.1:{exit}
connect = 127.0.0.1:{other}
"""
"""What docs/ranks.md shows: `in` decrypts what others send to this rank, and `out` encrypts what it sends to the other."""


@pytest.mark.skipif(shutil.which("stunnel") is None, reason="stunnel is not installed: apt-get install stunnel4")
def test_messages_go_through_tunnels_of_stunnel_with_mutual_tls(tmp_path):
    """Each rank listens on the loopback only, and reaches the other through its own tunnel."""
    tls = tls_files(tmp_path / "tls")
    own, entrances, exits = ([free_port(), free_port()] for _ in range(3))
    tunnels = []
    try:
        for rank in (0, 1):
            path = tmp_path / f"tunnel-{rank}.conf"
            ports = {"own": own[rank], "entrance": entrances[rank], "exit": exits[rank], "other": entrances[1 - rank]}
            path.write_text(TUNNEL.format(tls=tls, **ports))
            with (tmp_path / f"tunnel-{rank}.log").open("w") as output:
                tunnels.append(subprocess.Popen(["stunnel", str(path)], stdout=output, stderr=subprocess.STDOUT))
        for port in (*entrances, *exits):
            until_open(port)
        with ThreadPoolExecutor(2) as pool:
            links = list(
                pool.map(
                    lambda launch: RankLinks(
                        launch,
                        [0, 1],
                        deadline=5.0,
                        wait=10.0,
                        listen=f"127.0.0.1:{own[launch.rank]}",
                        routes={1 - launch.rank: f"127.0.0.1:{exits[launch.rank]}"},
                    ),
                    launches(2),
                )
            )
        for index in range(3):
            first, second = exchanged(links, index, [(0, 1), (1, 0)])
            assert (first, second) == ({(1, 0): f"(1, 0) {index}".encode()}, {(0, 1): f"(0, 1) {index}".encode()})
        tunnels[1].kill()  # as if the other organisation had closed its tunnel
        tunnels[1].wait()
        assert links[0].exchange({(0, 1): b""}, [(1, 0)], 3, "mix") == {}
        assert links[0].gone == {1}
        for each in links:
            each.close()
        assert is_refused_without_a_certificate(entrances[0])
    finally:
        for tunnel in tunnels:
            tunnel.kill()
            tunnel.wait()


def until_open(port: int) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on port {port}")


def is_refused_without_a_certificate(port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        try:
            with context.wrap_socket(stranger) as secured:
                return not secured.recv(1)
        except (ConnectionError, ssl.SSLError):
            return True
