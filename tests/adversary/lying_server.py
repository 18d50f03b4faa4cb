"""A server that lies, over a grid whose nodes answer in this process, and what it can send."""

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from fake_grid import NODES, FakeGrid, tables, together
from flwr.app import Message

from sketchfed.config import load_config
from sketchfed.errors import InputError, SecureSumError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.engine import FlowerEngine
from sketchfed.flower.enrolment import enrolled
from sketchfed.flower.messages import NEVER, Reply, Request
from sketchfed.flower.node import answered
from sketchfed.flower.source import NodeSource
from sketchfed.rounds.participant import parted
from sketchfed.secure import run_stages
from sketchfed.secure.server import SecureServer
from sketchfed.wire import Packet, pack, unpack

SESSION = b"s" * 16
BEGIN = pack(Packet(kind="begin", arrays={}, scalars={"round": 0}))
ALL = dict.fromkeys(range(3), BEGIN)
NOISE = {"noise_multiplier": 2.0, "epsilon": 3.0, "delta": 1e-5}
SUMS = {"privacy": {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-5}, "secure": {}}


def grid(**demands: Any) -> FakeGrid:
    """Three nodes with data of their own whose owners said these things with --node-config."""
    own = {"policy": "", "data": "own_data:load", **demands}
    return FakeGrid(settings={node: {"partition-id": client, **own} for client, node in enumerate(NODES)})


def agreed(nodes: FakeGrid, *, session: bytes = SESSION, **others: Any) -> FlowerEngine:
    """An engine over those nodes, with settings that the server chose. Nodes may refuse them, or refuse to join."""
    config = load_config(tables(**{"algorithm": {"name": "iterative"}, **others, "data": {"name": "given", "clients": 3}}))
    members = enrolled(nodes, config, session=session, clients=3, wait=0.01)
    config, nonces = together(nodes, config, members, session)
    made = FlowerEngine(nodes, session=session, members=members, deadline=1)
    keys = tuple(member.identity for member in members) if config.secure else ()
    made.agree(
        Agreement(
            config=config.completed(dim=43, sizes=made.sizes),
            sizes=made.sizes,
            identities=keys,
            shape=(4,),
            outputs=3,
            nonces=nonces,
        )
    )
    return made


def answers(nodes: FakeGrid, **others: Any) -> dict[int, bytes]:
    """What the nodes answer to a task of round 1 under these settings; nothing if they do not join."""
    try:
        return agreed(nodes, **others).ask(ALL)
    except InputError:
        return {}


def asked(nodes: FakeGrid, node: int, stage: str, *, session: bytes = SESSION, **fields: Any) -> Reply:
    """One raw request to one node."""
    request = Request(
        **{
            "session": session,
            "agreement": b"",
            "client": NEVER,
            "stage": stage,
            "acknowledged": NEVER,
            "payload": b"",
            **fields,
        }
    )
    context = nodes.contexts[node]
    message = Message(request.to_records(), dst_node_id=node, message_type="train")
    return Reply.of(answered(message, context, NodeSource(context.node_config)))


def hello(nodes: FakeGrid, offer: Mapping[str, Any], node: int = NODES[0], session: bytes = SESSION) -> Reply:
    return asked(nodes, node, "hello", session=session, payload=json.dumps(offer).encode())


def told(config: Mapping[str, Any], **others: Any) -> bytes:
    """An agreement with these tables, which need not make sense."""
    packet = unpack(Agreement(config=load_config(tables()), sizes=(10, 10, 10), shape=(4,), outputs=3).packed)
    text = torch.tensor(list(json.dumps(config).encode()), dtype=torch.uint8)
    arrays = {**packet.arrays, "config": text, **others}
    return pack(Packet(kind="agreement", arrays=arrays, scalars=packet.scalars))


def snapshot(value: float, index: int = 0, dim: int = 43) -> bytes:
    """A whole model in which every weight has one value."""
    return pack(Packet(kind="snapshot", arrays={"weights": torch.full((dim,), value)}, scalars={"round": index}))


class Indifferent(SecureServer):
    """It does not mind that clients computed their values from different models."""

    def _leave_other_premises(self):
        self.premise = next(iter(self._premises.values()), self.premise)


class Sum:
    """A secure sum of round 1 that is asked for stage by stage, as the server likes."""

    def __init__(self, engine: FlowerEngine, *, index: int = 0, attempt: int = 0) -> None:
        self.engine = engine
        config = engine._agreement.config
        protection = config.protection(dim=43, sizes=engine.sizes)
        (self.terms,) = protection.terms(config.shared_seed, index, attempt + 1)
        self.requests: dict[str, dict[int, bytes]] = {}

    def run(
        self,
        ask: Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]] | None = None,
        until: str = "",
        tasks: Mapping[int, bytes] = ALL,
    ) -> Any:
        """All stages, or those before `until`. None if the sum was not opened."""
        send = ask or (lambda stage, requests: self.engine.ask(requests, stage))

        def keep(stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
            self.requests[stage] = dict(requests)
            return {} if stage == until else send(stage, requests)

        with suppress(SecureSumError):
            return run_stages(Indifferent(self.terms, self.engine.directory), keep, tasks=tasks)
        return None


def copied(nodes: FakeGrid) -> dict[int, Any]:
    """Flower's contexts of all nodes, as they are now."""
    return {node: copy.deepcopy(context) for node, context in nodes.contexts.items()}


def retasked(request: bytes, task: bytes) -> bytes:
    """The sealed shares of a request, followed by another task."""
    return b"".join(parted(request)[0]) + task
