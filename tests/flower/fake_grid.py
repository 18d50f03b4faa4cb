"""A grid whose nodes answer in this process: what each keeps is its own, and what it sends can be spoilt on the way."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from runs.tiny import ALGORITHMS
from sketchfed import Run
from sketchfed.config import Config, load_config
from sketchfed.flower.drawing import drawn, must_draw
from sketchfed.flower.enrolment import Member
from sketchfed.flower.federation import Federation
from sketchfed.flower.messages import RECORD, Reply, Request
from sketchfed.flower.node import answered
from sketchfed.flower.source import NodeSource
from sketchfed.runs.starting import prepare

NODES = 101, 102, 103
"""Clients 0, 1 and 2."""

POLICY = Path(__file__).with_name("policy.toml")
"""What the owners of these nodes allow beside built-in parts."""

Tamper = Callable[[Request, Message], Message | None]
"""What becomes of a reply to a request; None if it never arrives."""


class FakeGrid:
    """Does what `exchanged` needs of Flower's Grid. An exception of a node is an error reply, as Flower makes it."""

    def __init__(
        self, tamper: Tamper = lambda _, reply: reply, *, settings: Mapping[int, dict[str, Any]] | None = None
    ) -> None:
        """`settings` are the nodes', by their ids; if absent each of `NODES` has a partition."""
        chosen = {node: {"partition-id": index} for index, node in enumerate(NODES)} if settings is None else settings
        self.contexts = {node: fresh_context(node, {"policy": str(POLICY), **own}) for node, own in chosen.items()}
        self.tamper = tamper
        self.requests: list[tuple[int, Request]] = []
        self.replies: list[Message] = []
        self._waiting: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._pushed(message) for message in messages]

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self._waiting.pop(number) for number in numbers if number in self._waiting]

    def forget(self, node: int) -> None:
        """Lose all that a node kept, as a restart of its SuperNode does."""
        self.contexts[node] = fresh_context(node, self.contexts[node].node_config)

    def move(self, node: int, *, to: int) -> None:
        """Have a SuperNode come back under another number."""
        self.contexts[to] = fresh_context(to, self.contexts.pop(node).node_config)

    def statuses(self) -> list[str]:
        return [Reply.of(message).status for message in self.replies if message.has_content()]

    def _pushed(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        if node not in self.contexts:
            return ""
        number = f"message {len(self.requests)}"
        message.metadata.__dict__["_message_id"] = number
        request = Request.of(message)
        self.requests.append((node, request))
        self.replies.append(self._served(message, self.contexts[node]))
        arrived = self.tamper(request, self.replies[-1])
        if arrived is not None:
            self._waiting[number] = arrived
        return number

    def _served(self, message: Message, context: Context) -> Message:
        try:
            return answered(message, context, NodeSource(context.node_config))
        except Exception as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


def fresh_context(node: int, settings: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=node, node_config=settings, state=RecordDict(), run_config={})


def failed(reply: Message, code: int) -> Message:
    """An error in place of a reply."""
    return Message(Error(code, "for some reason"), metadata=reply.metadata)


def changed(reply: Message, **fields: Any) -> Message:
    """A reply with other values in its record."""
    record = ConfigRecord({**reply.content.config_records[RECORD], **fields})
    return Message(RecordDict({RECORD: record}), metadata=reply.metadata)


def tables(algorithm: str | dict[str, Any] = "fedavg", *, rounds: int = 3, **others: Any) -> dict[str, Any]:
    """A small run of three clients; `algorithm` is one of `tiny.ALGORITHMS`, or a table of its own."""
    own = ALGORITHMS[algorithm] if isinstance(algorithm, str) else {"algorithm": algorithm}
    work = {"rounds": rounds, "local_steps": 2, "batch": 5, "local_rate": 0.2, **own["algorithm"]}
    data = {"name": "own_data:data", "partition": "natural", "clients": len(NODES)}
    return {**own, "data": data, "model": {"name": "mlp", "hidden": [5]}, "algorithm": work, **others}


def together(grid: Any, config: Config, members: list[Member], session: bytes) -> tuple[Config, tuple[bytes, ...]]:
    """The configuration with what server and clients drew together, and what they revealed. Nothing if nothing is hidden."""
    if not must_draw(config):
        return config, ()
    both = drawn(grid, members, config, session=session)
    return replace(config, joint=both.joint(session)), both.nonces


def run_on(
    grid: Any, tables: dict[str, Any], folder: Any = None, *, engine: Mapping[str, Any] | None = None, **given: Any
) -> Run:
    """The run that a ServerApp with this grid makes of a configuration."""
    chosen = {"name": "flower", "deadline": 1.0, "wait": 1.0, **(engine or {})}
    return prepare(load_config({**tables, "engine": chosen}), folder=folder, host=partial(Federation, grid=grid)).finish(
        **given
    )


def same(one: Run, other: Run) -> bool:
    """Whether two runs came to the same bits by the same steps; they may take their time."""
    timeless = [[{**line, "seconds": 0} for line in run.metrics] for run in (one, other)]
    return one.weights.equal(other.weights) and timeless[0] == timeless[1]
