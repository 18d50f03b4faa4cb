"""What nodes send may be late, lost, forged or nonsense; requests are those of the enrolment, which every node can answer."""

import copy

import pytest
from fake_grid import NODES, FakeGrid, changed, failed, tables
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from sketchfed.config import load_config
from sketchfed.flower.enrolment import offered
from sketchfed.flower.messages import NEVER, Request
from sketchfed.flower.post import exchanged

pytestmark = pytest.mark.usefixtures("in_a_run")
HELLO = Request(
    session=b"s" * 16, agreement=b"", client=NEVER, stage="hello", acknowledged=NEVER, payload=offered(load_config(tables()))
)
ASKED = dict.fromkeys(NODES, HELLO)


def mail(spoil=lambda reply: reply, **given):
    """What comes back when the reply of the second node is spoilt."""
    grid = FakeGrid(lambda _, reply: spoil(reply) if reply.metadata.src_node_id == NODES[1] else reply)
    return exchanged(grid, ASKED, seconds=0.2, **given)


def from_node(reply, node):
    metadata = copy.copy(reply.metadata)
    metadata.__dict__["_src_node_id"] = node
    return Message(reply.content, metadata=metadata)


def with_content(reply, records):
    return Message(RecordDict(records), metadata=reply.metadata)


def test_replies_are_sorted_by_node_and_counted_as_flower_moves_them():
    came = mail()
    assert set(came.replies) == set(NODES)
    assert (came.failures, came.unheard) == ({}, set())
    assert came.content_up > sum(len(reply.payload) for reply in came.replies.values())
    assert came.content_down > 3 * len(HELLO.payload)


@pytest.mark.parametrize(
    ("spoil", "why"),
    {
        "late": (lambda reply: None, r"no reply came within 1 s"),
        "crashed": (lambda reply: failed(reply, ErrorCode.CLIENT_APP_CRASHED), "its ClientApp died: for some reason"),
        "away": (lambda reply: failed(reply, ErrorCode.NODE_UNAVAILABLE), "its node is away"),
        "lost": (lambda reply: failed(reply, ErrorCode.REPLY_MESSAGE_UNAVAILABLE), "its reply was lost"),
        "unknown": (lambda reply: failed(reply, 12345), "Flower reports an error"),
        "foreign": (lambda reply: from_node(reply, NODES[0]), "came from node 101, which was not asked"),
        "session": (lambda reply: changed(reply, session=b"t" * 16), "answers for session 74747474, not 73737373"),
        "client": (lambda reply: changed(reply, client=1), "answers for client 1, not -1"),
        "stage": (lambda reply: changed(reply, stage="train"), "answers for stage 'train', not 'hello'"),
        "status": (lambda reply: changed(reply, status="perhaps"), "the status of a reply"),
        "type": (lambda reply: changed(reply, payload="text"), "field 'payload' of a reply is bytes"),
        "more": (lambda reply: changed(reply, more=1), "has the fields"),
        "nothing": (lambda reply: with_content(reply, {}), "holds none"),
        "garbage": (lambda reply: with_content(reply, {"garbage": ConfigRecord({"a": 1})}), "holds .*garbage"),
    }.values(),
)
def test_a_node_whose_reply_cannot_be_used_may_have_sent_something_and_stops_nobody(spoil, why):
    came = mail(spoil)
    assert set(came.replies) == {NODES[0], NODES[2]}
    assert came.unheard == came.failures.keys() == {NODES[1]}
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(came.failures[NODES[1]])


@pytest.mark.parametrize("code", [ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.LOAD_CLIENT_APP_EXCEPTION])
def test_a_node_whose_app_raised_has_sent_nothing(code):
    came = mail(lambda reply: failed(reply, code))
    assert "for some reason" in came.failures[NODES[1]]
    assert came.unheard == set()


def test_a_node_that_is_not_there_has_sent_nothing():
    came = exchanged(FakeGrid(), {**ASKED, 999: HELLO}, seconds=0.2)
    assert came.failures == {999: "its node is not connected to the SuperLink."}
    assert (set(came.replies), came.unheard) == (set(NODES), set())


def test_nodes_that_could_not_all_be_asked_may_have_sent_something(monkeypatch):
    """Flower announces all messages of a call at once: some may be complete when the SuperLink goes away."""

    def away(self, messages):
        raise ObjectPushError("object", 1, "session")

    monkeypatch.setattr(FakeGrid, "push_messages", away)
    came = mail()
    assert came.unheard == came.failures.keys() == set(NODES)
    assert all("could not be asked" in reason for reason in came.failures.values())


def test_replies_to_messages_of_before_and_replies_that_come_twice_are_left_alone(monkeypatch):
    grid, pull, came = FakeGrid(), FakeGrid.pull_messages, []

    def again(self, numbers):
        came.extend(pull(self, numbers))
        return [*came, *came]

    monkeypatch.setattr(FakeGrid, "pull_messages", again)
    assert exchanged(grid, ASKED, seconds=0.2).replies.keys() == set(NODES)
    grid.tamper = lambda _, reply: None
    late = exchanged(grid, ASKED, seconds=0.2)
    assert (late.replies, late.unheard) == ({}, set(NODES))
