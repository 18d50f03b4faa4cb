"""Decides who takes part: nodes say hello before round 1, and keep their number for the whole run."""

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from flwr.serverapp import Grid

from sketchfed.config import Config
from sketchfed.errors import InputError
from sketchfed.flower.messages import NEVER, Reply, Request
from sketchfed.flower.post import exchanged
from sketchfed.secure.keys import KEY, is_signed
from sketchfed.version import __version__

log = logging.getLogger("sketchfed")

_DIGEST = 64
"""The hexadecimal digits of a digest."""
_HELLO = 60.0
"""The seconds that a node has to say hello. It may have to load its data first."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A node that takes part as a client."""

    node: int
    examples: int
    identity: bytes
    own: bool
    """Whether the node has its own data."""
    run: str = ""
    """The digest of the run configuration that the node's app was started with."""
    partition: int | None = None
    """The number that the node asks for."""


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    examples: int
    own: bool
    run: str
    partition: int | None
    identity: str
    signature: str
    version: str


def enrolled(grid: Grid, config: Config, *, session: bytes, clients: int, wait: float) -> list[Member]:
    """Return the first `clients` nodes that say hello, in the order of their client numbers.

    Raise `InputError` if fewer nodes come in time.

    Nodes may ask for a number by `partition-id`; the others get those that are left, in the order of their ids.
    """
    offer = offered(config)
    found: dict[int, Member] = {}
    refused: dict[int, str] = {}
    end = time.monotonic() + wait
    while True:
        fresh = set(grid.get_node_ids()) - found.keys() - refused.keys()
        heard, failed = _greeted(grid, fresh, session=session, offer=offer, seconds=min(_HELLO, wait))
        found, refused = found | heard, refused | failed
        placed = _placed(found, clients)
        if len(placed) == clients:
            return [placed[client] for client in range(clients)]
        if time.monotonic() >= end:
            break
        time.sleep(0.5)
    said = "".join(f" Node {node} does not take part: {reason}" for node, reason in list(refused.items())[:3])
    raise InputError(
        f"{len(placed)} of data.clients = {clients} nodes joined within {wait:g} s.{said} Start more SuperNodes, or lower "
        "data.clients; nodes that name the same partition-id count once."
    )


def offered(config: Config) -> bytes:
    """What nodes are told about a run before they join."""
    return json.dumps({key: table for key, table in config.to_tables().items() if key != "engine"}).encode()


def returned(
    grid: Grid, nodes: Collection[int], members: Sequence[Member], *, session: bytes, config: Config
) -> dict[int, Member]:
    """Find clients that are back on other nodes: nodes that know the private half of an identity that a client began with."""
    heard, _ = _greeted(grid, nodes, session=session, offer=offered(config), seconds=_HELLO)
    known = {member.identity: client for client, member in enumerate(members)}
    back = {known[member.identity]: member for member in heard.values() if member.identity in known}
    return {client: replace(members[client], node=member.node) for client, member in back.items()}


def _greeted(
    grid: Grid, nodes: Collection[int], *, session: bytes, offer: bytes, seconds: float
) -> tuple[dict[int, Member], dict[int, str]]:
    """What nodes say about themselves, and why others cannot take part."""
    asked = Request(session=session, agreement=b"", client=NEVER, stage="hello", acknowledged=NEVER, payload=offer)
    mail = exchanged(grid, dict.fromkeys(sorted(nodes), asked), seconds=seconds)
    heard: dict[int, Member] = {}
    failed = dict(mail.failures)
    for node, reply in mail.replies.items():
        try:
            heard[node] = _member(node, reply)
        except InputError as error:
            failed[node] = str(error)
    for node, reason in failed.items():
        log.warning("node %d does not take part: %s", node, reason)
    return heard, {node: failed[node] for node in mail.replies if node in failed}  # others may answer when they are asked again


def _member(node: int, reply: Reply) -> Member:
    if reply.status != "done":
        raise InputError(reply.reason)
    try:
        said = msgspec.json.decode(reply.payload, type=_Said)
        identity, signature = bytes.fromhex(said.identity), bytes.fromhex(said.signature)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it says hello in words that nobody understands: {error}") from None
    if said.version != __version__:
        raise InputError(f"it has sketchfed {said.version[:20]}, the server {__version__}. Install the same version on both.")
    if said.examples < 1 or len(identity) != KEY:
        raise InputError(f"it says that it has {said.examples} examples and an identity of {len(identity)} bytes.")
    if not is_signed(greeting(reply.session, node), signature, identity):
        raise InputError("it shows an identity whose private half it does not know.")
    return Member(
        node=node, examples=said.examples, identity=identity, own=said.own, run=said.run[:_DIGEST], partition=said.partition
    )


def greeting(session: bytes, node: int) -> bytes:
    """The text that a node signs to prove that an identity is its own."""
    return b"sketchfed hello" + session + node.to_bytes(8, "little")


def _placed(found: Mapping[int, Member], clients: int) -> dict[int, Member]:
    """The members by number. A node gets the number that it asks for, unless another node has it."""
    placed: dict[int, Member] = {}
    rest: list[Member] = []
    for node in sorted(found):
        member = found[node]
        if member.partition is None:
            rest.append(member)
        elif 0 <= member.partition < clients:
            placed.setdefault(member.partition, member)
    free = (number for number in range(clients) if number not in placed)
    return placed | dict(zip(free, rest, strict=False))
