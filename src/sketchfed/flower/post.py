"""Sends requests to nodes over Flower's grid and collects the replies. Nothing that a node sends can stop the others."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from sketchfed.errors import WireError
from sketchfed.flower.arrivals import Arrivals
from sketchfed.flower.messages import Reply, Request

T = TypeVar("T")

_AT_ONCE = 100
"""The number of messages that are handed over in one call."""
_OUTAGE = 5.0
"""Seconds. A call that takes longer had to wait for the SuperLink, and clients are not blamed for that."""
_GRACE = 30.0
"""The seconds that a message stays valid after its deadline, so that an outage does not void it."""
_SLOWEST = 10
"""If no reply has come for long, the server asks this many times less often. Each question costs the SuperLink 10 ms."""
_NOTHING_LEFT = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MOD_FAILED_PRECONDITION)
"""Errors of clients that certainly sent nothing else."""


@dataclass(kw_only=True)
class Mail:
    """The result of some requests, by node."""

    replies: dict[int, Reply] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    unheard: set[int] = field(default_factory=set)
    """Nodes that may have sent something that was not received or not understood."""
    content_up: int = 0
    content_down: int = 0
    """The bytes that Flower makes of the messages."""


def exchanged(
    grid: Grid, requests: Mapping[int, Request], *, seconds: float, poll: float = 0.1, group: str = "", kind: str = "train"
) -> Mail:
    """Send each node its request. Wait for the replies, at most `seconds` seconds."""
    mail, asked = Mail(), dict(requests)
    waiting: dict[str, int] = {}
    messages = [
        Message(request.to_records(), dst_node_id=node, message_type=kind, ttl=seconds + _GRACE, group_id=group)
        for node, request in asked.items()
    ]
    mail.content_down = sum(_content(message) for message in messages)
    for some in _some(messages):
        try:
            numbers = list(grid.push_messages(some))
        except ObjectPushError as error:  # the SuperLink was away for too long; what was complete by then is delivered
            nodes = [message.metadata.dst_node_id for message in some]
            mail.failures |= dict.fromkeys(nodes, f"it could not be asked: {error}")
            mail.unheard.update(nodes)
            continue
        waiting |= {number: message.metadata.dst_node_id for message, number in zip(some, numbers, strict=False) if number}
    for node in asked.keys() - set(waiting.values()) - mail.failures.keys():
        mail.failures[node] = "its node is not connected to the SuperLink."
    arrivals, asked_at = Arrivals(grid), time.monotonic()
    end = asked_at + seconds
    while waiting:
        start = time.monotonic()
        for message in [message for some in _some(list(waiting)) for message in arrivals.pulled(some)]:
            number = message.metadata.reply_to_message_id
            if number in waiting:
                _open(mail, message, node := waiting.pop(number), asked[node])
        now = time.monotonic()
        if now - start > _OUTAGE:
            end += now - start
        if now >= end:
            break
        if waiting:
            time.sleep(min(max(poll, (now - asked_at) / 4), _SLOWEST * poll))
    for node in waiting.values():
        mail.failures[node] = f"no reply came within {max(1, round(seconds))} s."
        mail.unheard.add(node)
    return mail


def _some(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def _open(mail: Mail, message: Message, node: int, request: Request) -> None:
    """Sort a reply: an answer, a refusal, or something that cannot be used."""
    if message.has_error():
        mail.failures[node] = _told(message.error)
        if message.error.code not in _NOTHING_LEFT:
            mail.unheard.add(node)
        return
    mail.content_up += _content(message)
    try:
        if message.metadata.src_node_id != node:
            raise WireError(f"it came from node {message.metadata.src_node_id}, which was not asked.")
        mail.replies[node] = Reply.of(message).check(request)
    except WireError as error:
        mail.failures[node] = f"its reply cannot be used: {error}"
        mail.unheard.add(node)


def _told(error: Error) -> str:
    reasons: dict[int, str] = {
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its ClientApp raised",
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its ClientApp could not be loaded",
        ErrorCode.CLIENT_APP_CRASHED: "its ClientApp died",
        ErrorCode.NODE_UNAVAILABLE: "its node is away",
        ErrorCode.MESSAGE_UNAVAILABLE: "its reply was lost",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its reply was lost",
    }
    return f"{reasons.get(error.code, 'Flower reports an error')}: {(error.reason or 'no reason given')[:500]}"


def _content(message: Message) -> int:
    """The bytes of the objects that Flower moves for a message: the message, its records, and their contents."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
