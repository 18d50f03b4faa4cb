"""The recorder tells of all that passes, and changes nothing of it."""

from collections.abc import Mapping

import pytest
import torch

import sketchfed
from federation import Tap, advanced, data_of, federation, weights_of
from sketchfed.algorithms import FedAvg, Iterative
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.protection import SecureSettings
from sketchfed.rounds import Engine, Exchange, Recorder
from sketchfed.rounds.server import Server
from sketchfed.secure import STAGES

NOISE = {"noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 5}
TABLES = {
    "whole models": {"algorithm": {"name": "fedavg"}},
    "updates that were missed": {"algorithm": {"name": "iterative", "participation": 0.6, "global_momentum": 0.5}},
    "memories of clients": {"algorithm": {"name": "iterative", "form": "projection"}},
    "noise": {"algorithm": {"name": "fedavg"}, "privacy": NOISE},
    "secure sums": {"algorithm": {"name": "fedavg"}, "privacy": NOISE | {"name": "discrete_gaussian"}, "secure": {}},
}
"""All that is drawn follows from seeds: two runs are one."""
SECURE = SecureSettings(clip=100.0, survivors=0.6)


def tables(kind: str) -> dict:
    common = {"rounds": 3, "local_steps": 2, "batch": 5, "local_rate": 0.2}
    own = TABLES[kind]
    return {**own, "data": {"clients": 5}, "model": {"hidden": [6]}, "algorithm": common | own["algorithm"]}


def recorded(server: Server, engine: Engine | None = None) -> list[Exchange]:
    """What passes from now on; a server's engine is a `Tap`, around which the recorder goes."""
    passed: list[Exchange] = []
    server.engine = Recorder(engine or server.engine, round=lambda: server.round, tell=passed.extend)
    return passed


def calls(tap: Tap) -> list[tuple[str, int, bytes, bytes | None]]:
    """Stage, client, request and reply of everything that a tap saw, in order."""
    return [
        (stage, client, request, replies.get(client))
        for stage, requests, replies in zip(tap.stages, tap.tasks, tap.replies, strict=True)
        for client, request in requests.items()
    ]


def plain(exchange: Exchange) -> tuple[str, int, bytes, bytes | None]:
    return exchange.stage, exchange.client, exchange.request, exchange.reply


@pytest.mark.parametrize("kind", TABLES)
def test_a_run_with_it_is_the_same_bit_for_bit(kind):
    passed: list[Exchange] = []
    without = sketchfed.run(tables(kind))
    with_it = sketchfed.run(tables(kind), on_exchange=passed.extend)
    assert torch.equal(with_it.weights, without.weights)
    for line, expected in zip(with_it.metrics, without.metrics, strict=True):
        assert {**line, "seconds": 0} == {**expected, "seconds": 0}
    assert {each.round for each in passed} == {0, 1, 2}


@pytest.mark.parametrize("kind", TABLES)
def test_the_bytes_that_it_tells_of_are_those_that_are_counted(kind):
    passed: list[Exchange] = []
    last = sketchfed.run(tables(kind), on_exchange=passed.extend).metrics[-1]
    assert sum(len(each.reply) for each in passed if each.reply is not None) == last["uplink_bytes"]
    assert sum(len(each.request) for each in passed) == last["downlink_bytes"]


def test_it_tells_of_every_request_and_reply_in_order():
    server = federation(Iterative(sketch=SketchSettings(ratio=0.5), participation=0.5), data_of(6))
    tap = server.engine
    passed = recorded(server)
    advanced(server, 4)
    assert [plain(each) for each in passed] == calls(tap)
    assert [each.round for each in passed] == [index for index in range(4) for _ in range(3)]


def test_it_tells_of_every_stage_of_a_secure_sum():
    server = federation(FedAvg(local_rate=0.1), data_of(5), secure=SECURE)
    tap = server.engine
    passed = recorded(server)
    advanced(server, 2)
    assert [plain(each) for each in passed] == calls(tap)
    stages = [list(dict.fromkeys(each.stage for each in passed if each.round == index)) for index in (0, 1)]
    assert stages == [list(STAGES), ["masked", "consent", "unmask"]], "keys and shares came with the messages of round 0"


def test_identities_are_told_where_keys_may_be_shown_and_nowhere_else():
    server = federation(FedAvg(local_rate=0.1), data_of(5), secure=SECURE)
    passed = recorded(server)
    server.advance()
    for each in passed:
        assert each.identity == (server.engine.directory[each.client] if each.stage in ("keys", "masked") else b"")
        assert len(each.identity) in (0, 32)


def test_a_reply_that_did_not_come_is_none_and_one_of_nothing_is_not():
    server = federation(FedAvg(local_rate=0.1), data_of(5), tamper=lambda got: {0: got[0], 3: b"", 2: got[2]})
    passed = recorded(server)
    server.advance()
    assert [(each.client, each.reply is None) for each in passed] == [(0, False), (1, True), (2, False), (3, False), (4, True)]
    assert passed[3].reply == b""


def test_one_who_was_not_asked_is_not_told_of():
    server = federation(FedAvg(local_rate=0.1, participation=0.4), data_of(5), tamper=lambda got: {**got, 99: b"me too"})
    passed, chosen = recorded(server), server.cohort()
    server.advance()
    assert [each.client for each in passed] == chosen


@pytest.mark.parametrize("apart", [False, True], ids=["one process", "clients that share nothing"])
def test_it_goes_around_any_engine(apart):
    algorithm = Iterative(sketch=SketchSettings(ratio=0.5), participation=0.5)
    bare, server = (federation(algorithm, data_of(6), apart=apart) for _ in range(2))
    passed = recorded(server)
    assert torch.equal(weights_of(advanced(server, 4)), weights_of(advanced(bare, 4)))
    assert [plain(each) for each in passed] == calls(bare.engine)


class Foreign:
    """The least that an engine is."""

    clients = 3
    complaints: Mapping[int, str] = {2: "is on holiday"}
    directory: Mapping[int, bytes] = {0: b"0" * 32}
    agreed = b"a" * 32
    unheard = (2,)
    used: Mapping[int, int] = {}

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        self.used = rounds

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        return {client: request[::-1] for client, request in requests.items() if client != 2}


def test_it_is_the_engine_inside_in_all_that_can_be_asked_of_one():
    passed: list[Exchange] = []
    recorder = Recorder(foreign := Foreign(), round=lambda: 7, tell=passed.extend)
    assert recorder.ask({0: b"abc", 2: b"de"}) == {0: b"cba"}
    assert (recorder.clients, recorder.complaints, recorder.directory) == (3, Foreign.complaints, Foreign.directory)
    assert recorder.agreed == Foreign.agreed
    recorder.acknowledge({0: 7})
    assert (recorder.unheard, foreign.used) == ((2,), {0: 7})
    assert recorder.ask({0: b"x", 1: b"y"}, "keys") == {0: b"x", 1: b"y"}
    assert [(each.round, each.stage, each.client, each.reply, each.identity) for each in passed] == [
        (7, "train", 0, b"cba", b""),
        (7, "train", 2, None, b""),
        (7, "keys", 0, b"x", b"0" * 32),
        (7, "keys", 1, b"y", b""),
    ]


def test_evaluation_is_passed_on_and_not_recorded():
    class Answering:
        def ask(self, requests, stage="train"):
            return dict.fromkeys(requests, stage.encode())

    told = []
    recorder = Recorder(Answering(), round=lambda: 3, tell=told.extend)
    assert recorder.ask({1: b"model"}, "evaluate") == {1: b"evaluate"}
    assert told == []
