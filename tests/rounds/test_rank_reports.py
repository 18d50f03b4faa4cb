"""What ranks report of a round comes back as it was, and nothing else is believed."""

import random
from typing import Any

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.errors import WireError
from sketchfed.graphs import GraphSettings, Links
from sketchfed.rounds.peers import PeerRound
from sketchfed.rounds.rank_control import bundled, unbundled
from sketchfed.rounds.rank_hub import Message
from sketchfed.rounds.rank_reports import (
    Report,
    merged,
    packed_answers,
    packed_report,
    packed_tensors,
    read_answers,
    read_report,
    read_tensors,
    read_weights,
)
from sketchfed.wire import Packet

OWN = [2, 3]
STEPS = 2


@pytest.fixture
def links() -> Links:
    """A ring of six nodes, of which 2 and 3 live on the rank that reports."""
    return GraphSettings(name="ring").topology(6, PublicSeed(0)).at(0)


def made(**changes: Any) -> Report:
    found = {
        "sent": {(2, 1): 40, (3, 2): 7},
        "arrived": {(1, 2): 30, (3, 2): 7},
        "lost": 3,
        "refused": {(1, 2): "it holds NaN or infinity."},
        "failed": {3: "it raised ValueError"},
        "worked": {2},
        "spoken": {0, 1},
    }
    if "sent" not in changes:
        found["sent"] = {(2, 1): 40}
    return Report(round=PeerRound(**(found | changes)), seconds=0.25, led=True)


def test_a_report_comes_back_as_it_was(links: Links) -> None:
    report = made()
    assert read_report(unbundled(bundled(packed_report(report))), links, OWN, steps=STEPS) == report


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sent": {(1, 2): 40}}, "live elsewhere"),
        ({"sent": {(2, 4): 40}}, "does not work"),
        ({"sent": {(2, 1): -1}}, "live elsewhere"),
        ({"sent": {(2, 1): 2**60}}, "live elsewhere"),
        ({"sent": {(3, 4): 40}}, "did not take part"),
        ({"arrived": {(2, 1): 40}}, "live elsewhere"),
        ({"refused": {(4, 5): ""}}, "live elsewhere"),
        ({"worked": {2, 4}}, "once of each node"),
        ({"worked": {2, 3}}, "once of each node"),
        ({"spoken": {2}}, "spoken"),
        ({"lost": 10**6}, "lost"),
        ({"lost": -1}, "lost"),
    ],
)
def test_a_report_of_what_cannot_have_happened_is_refused(links: Links, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(WireError, match=why):
        read_report(packed_report(made(**changes)), links, OWN, steps=STEPS)


def test_reports_of_other_forms_are_refused(links: Links) -> None:
    packet, (texts,) = packed_report(made())
    others = [
        Message(Packet(kind="answer", arrays={}), [texts]),
        Message(Packet(kind="report", arrays={}), [texts]),
        Message(packet, []),
        Message(packet, [b"[" * 100_000]),
        Message(packet, [b'["one"]']),
        Message(packet, [b"[1, 2]"]),
        Message(packet.stamped(seconds=-1.0), [texts]),
        Message(packet.stamped(led=1), [texts]),
    ]
    for message in others:
        with pytest.raises(WireError):
            read_report(message, links, OWN, steps=STEPS)


def test_long_reasons_are_cut(links: Links) -> None:
    report = read_report(packed_report(made(failed={3: "x" * 10_000})), links, OWN, steps=STEPS)
    assert 100 < len(report.round.failed[3]) < 1_000


def test_damaged_bytes_are_refused_or_still_make_sense(links: Links) -> None:
    """Bytes are changed, cut and added at 400 places. The checksums of the wire format catch almost all of it."""
    data, draw = bundled(packed_report(made())), random.Random(7)
    for _ in range(400):
        spoiled = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
        cut = (
            bytes(spoiled[: draw.randint(0, len(spoiled))])
            if draw.random() < 0.3
            else bytes(spoiled) + b"!" * draw.randint(0, 2)
        )
        if cut != data:
            with pytest.raises(WireError):
                read_report(unbundled(cut), links, OWN, steps=STEPS)


def test_reports_of_all_ranks_make_the_round_of_one_process() -> None:
    one = PeerRound(sent={(3, 2): 5}, lost=1, worked={3}, spoken={0, 2}, failed={4: "why"})
    other = PeerRound(sent={(0, 1): 4}, lost=2, worked={0, 1}, spoken={0}, unheard={5})
    whole = merged([one, other])
    assert whole == PeerRound(
        sent={(0, 1): 4, (3, 2): 5}, lost=3, worked={0, 1, 3}, spoken={0, 2}, failed={4: "why"}, unheard={5}
    )
    assert list(whole.sent) == [(0, 1), (3, 2)]


def test_models_must_be_those_of_the_nodes_on_the_rank() -> None:
    models = {"2": torch.arange(4.0), "3": torch.ones(4)}
    message = Message(Packet(kind="weights", arrays={}), [packed_tensors(models)])
    found = read_weights(message, OWN, 4)
    assert {node: each.tolist() for node, each in found.items()} == {2: [0, 1, 2, 3], 3: [1, 1, 1, 1]}
    for nodes, dim in (([2], 4), ([2, 3, 4], 4), (OWN, 5)):
        with pytest.raises(WireError, match="must hold the models"):
            read_weights(message, nodes, dim)
    for spoiled in ([], [b"nonsense"], [message.parts[0][:-1]], [*message.parts, b""]):
        with pytest.raises(WireError, match="damaged"):
            read_weights(Message(message.packet, spoiled), OWN, 4)


def test_tensors_that_share_their_memory_travel_once() -> None:
    same = torch.randn(1_000)
    data = packed_tensors({"a": same, "b": same})
    assert len(data) < 5_000
    found = read_tensors(Message(Packet(kind="tensors", arrays={}), [data]))
    assert found.keys() == {"a", "b"}
    assert torch.equal(found["a"], same)
    assert torch.equal(found["b"], same)


def test_answers_of_nodes_come_back_and_those_for_others_are_refused() -> None:
    message = packed_answers({2: b"two", 3: b""}, {})
    assert read_answers(unbundled(bundled(message)), OWN) == ({2: b"two", 3: b""}, {})
    assert read_answers(packed_answers({}, {2: "no data"}), OWN) == ({}, {2: "no data"})
    with pytest.raises(WireError, match="elsewhere"):
        read_answers(packed_answers({1: b"one"}, {}), OWN)
    with pytest.raises(WireError):
        read_answers(Message(message.packet, message.parts[:-1]), OWN)
