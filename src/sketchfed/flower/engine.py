"""Clients on the SuperNodes of a Flower federation. Needs `pip install sketchfed[flower]`."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.serverapp import Grid

from sketchfed.errors import InputError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.enrolment import Member, returned
from sketchfed.flower.messages import NEVER, Reply, Request
from sketchfed.flower.post import Mail, exchanged

log = logging.getLogger("sketchfed")

OnTraffic = Callable[[dict[str, Any]], None]
"""Called after each call of the engine: stage, messages, bytes of payload and of Flower's records either way, seconds."""


class FlowerEngine:
    """Moves the bytes of a run over Flower's grid. The same functions as in any other engine make and read them.

    A client is a node that said hello before round 1. It keeps its own memory in Flower's context. A node that lost it gets the
    run's agreement again, and the server brings its replica up to date.
    """

    def __init__(
        self, grid: Grid, *, session: bytes, members: Sequence[Member], deadline: float, on_traffic: OnTraffic | None = None
    ) -> None:
        self.complaints: dict[int, str] = {}
        self.unheard: set[int] = set()
        self.metrics: dict[int, str] = {}
        """What clients of the last call reported about their work, as JSON, if the run hides nothing. It is not verified."""
        self._grid, self._session, self._deadline, self._on_traffic = grid, session, deadline, on_traffic
        self._members = list(members)
        self._acknowledged: dict[int, int] = {}
        self._agreement: Agreement | None = None
        self._told: set[int] = set()

    @property
    def clients(self) -> int:
        return len(self._members)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of examples of each client."""
        return tuple(member.examples for member in self._members)

    @property
    def simulated(self) -> bool:
        """Whether nodes play clients of the data set that the configuration names. Then the server has all data too."""
        return not any(member.own for member in self._members)

    @property
    def directory(self) -> Mapping[int, bytes]:
        return {client: member.identity for client, member in enumerate(self._members)}

    @property
    def agreed(self) -> bytes:
        return self._agreed.digest

    @property
    def members(self) -> Sequence[Member]:
        return tuple(self._members)

    def agree(self, agreement: Agreement) -> None:
        """Fix what every client will be told before its first task."""
        self._agreement, self._told = agreement, set()

    @property
    def _agreed(self) -> Agreement:
        if self._agreement is None:
            raise InputError("clients must know what they agree to: call `agree` before the first round.")
        return self._agreement

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        self._acknowledged |= rounds

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> dict[int, bytes]:
        self.complaints, self.unheard, self.metrics = {}, set(), {}
        agreement = self._agreed  # raises an error before anything is sent
        start = time.monotonic()
        self._find(requests, agreement)
        replies = self._posted(requests, stage, start, agreement)
        unset = {client: requests[client] for client, reply in replies.items() if reply.status == "unset"}
        if unset:  # nodes that were started anew; they have all of the time again, for others may have used it up
            self._told -= unset.keys()
            answered = {client: reply for client, reply in replies.items() if client not in unset}
            replies = answered | self._posted(unset, stage, time.monotonic(), agreement)
        answers: dict[int, bytes] = {}
        for client, reply in replies.items():
            if reply.status == "done":
                self._told.add(client)
                answers[client] = reply.payload
                if reply.metrics:
                    self.metrics[client] = reply.metrics
            else:
                self.complaints[client] = reply.reason or "it does not know what it should agree to."
        return {client: answers[client] for client in requests if client in answers}

    def _posted(self, requests: Mapping[int, bytes], stage: str, start: float, agreement: Agreement) -> dict[int, Reply]:
        clients = {self._members[client].node: client for client in requests}
        envelopes = {node: self._envelope(client, stage, requests[client], agreement) for node, client in clients.items()}
        kind = "evaluate" if stage == "evaluate" and agreement.layout else "train"  # apps have a function for each
        mail = exchanged(self._grid, envelopes, seconds=max(1.0, self._deadline - (time.monotonic() - start)), kind=kind)
        self.complaints |= {clients[node]: reason for node, reason in mail.failures.items()}
        self.unheard |= {clients[node] for node in mail.unheard}
        self._tell(stage, requests, mail, time.monotonic() - start)
        return {clients[node]: reply for node, reply in mail.replies.items()}

    def _envelope(self, client: int, stage: str, payload: bytes, agreement: Agreement) -> Request:
        return Request(
            session=self._session,
            agreement=agreement.digest if client in self._told else agreement.packed,
            client=client,
            stage=stage,
            acknowledged=self._acknowledged.get(client, NEVER),
            payload=payload,
        )

    def _find(self, requests: Mapping[int, bytes], agreement: Agreement) -> None:
        """Search among new nodes for clients whose node is gone. A restarted SuperNode may have another number."""
        online = set(self._grid.get_node_ids())
        lost = {client for client in requests if self._members[client].node not in online}
        strangers = online - {member.node for member in self._members}
        if not lost or not strangers:
            return
        found = returned(self._grid, strangers, self._members, session=self._session, config=agreement.config)
        for client, member in found.items():
            if client in lost:
                log.warning("client %d is back on another node", client)
                self._members[client] = member
                self._told.discard(client)

    def _tell(self, stage: str, requests: Mapping[int, bytes], mail: Mail, seconds: float) -> None:
        if self._on_traffic is None:
            return
        self._on_traffic(
            {
                "stage": stage,
                "asked": len(requests),
                "answered": len(mail.replies),
                "payload_down": sum(map(len, requests.values())),
                "payload_up": sum(len(reply.payload) for reply in mail.replies.values()),
                "content_down": mail.content_down,
                "content_up": mail.content_up,
                "seconds": round(seconds, 3),
            }
        )
