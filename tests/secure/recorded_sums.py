"""Sums that were recorded stage by stage: the server, the clients' states, and all messages, ready to be altered."""

import copy
from dataclasses import dataclass
from functools import cache

from cohorts import Cohort, small_terms
from test_wrong_dealers import LIAR, another_secret

from sketchfed.secure import STAGES, SecureClient, SecureServer, SumState
from sketchfed.wire import Packet, pack, unpack

LEFT = 6
"""The client that leaves after it dealt its shares."""
ORDER = (*STAGES, "recover")
SMALL = {"count": 8, "neighbours": 7, "threshold": 5, "least": 5}
LARGE = {"count": 16, "neighbours": 15, "threshold": 9, "least": 9}
RING = {"count": 10, "neighbours": 6, "threshold": 4, "least": 6}
SUMS = {"honest": SMALL, "wrong seed": SMALL, "wrong key": RING, "many honest": LARGE, "many and a wrong seed": LARGE}
SPARE = {"honest": 1, "wrong seed": 1, "wrong key": 1, "many honest": 5, "many and a wrong seed": 5}
"""Clients that a sum can do without, beside those that leave it anyway."""


def twin(server: SecureServer) -> SecureServer:
    """A server that goes on by itself from where this one is."""
    made = copy.copy(server)
    vars(made).update({name: dict(value) for name, value in vars(server).items() if isinstance(value, dict)})
    return made


@dataclass(frozen=True)
class Moment:
    """A stage of a sum: all that there is before replies arrive, and the replies."""

    server: SecureServer
    states: dict[int, SumState]
    requests: dict[int, Packet]
    replies: dict[int, bytes]
    read: dict[int, Packet]
    """The replies as packets."""

    def arrived(self) -> SecureServer:
        """A server of its own that waits for these replies."""
        return twin(self.server)


@dataclass(frozen=True)
class Recorded:
    """A sum, its stages, and the messages of both directions that can stand in for each other."""

    kind: str
    cohort: Cohort
    moments: dict[str, Moment]
    wrong: frozenset[int]
    """The clients that dealt wrongly."""
    last: SecureServer

    @property
    def stages(self) -> list[str]:
        return list(self.moments)

    def asked(self) -> list[Packet]:
        return [packet for moment in self.moments.values() for packet in moment.requests.values()]

    def answered(self) -> list[Packet]:
        return [packet for moment in self.moments.values() for packet in moment.read.values()]

    def after(self, stage: str) -> SecureServer:
        """The server once all honest replies of a stage have come."""
        following = self.stages.index(stage) + 1
        return self.moments[self.stages[following]].server if following < len(self.stages) else self.last

    def client(self, stage: str, client: int) -> SecureClient:
        """A client of its own before a stage."""
        return SecureClient(self.moments[stage].states[client], self.cohort.directory)


@cache
def recorded(kind: str, round: int = 3) -> Recorded:
    """A sum that one client leaves. In two of three, some client deals wrongly and leaves too, so that all stages happen."""
    terms = small_terms(**SUMS[kind], round=round)
    cohort = Cohort(terms)
    leaves = {LEFT: "masked"}
    if "wrong seed" in kind:
        leaves |= {LIAR: "unmask"}
    if "wrong key" in kind:
        leaves = {LIAR: "masked"}
    server, moments = cohort.server(), {}
    while server.stage is not None:
        stage, before = server.stage, twin(server)
        states = {client: member.state for client, member in cohort.clients.items()}
        lies = stage == "shares" and "wrong" in kind
        gone = {client for client, last in leaves.items() if ORDER.index(stage) >= ORDER.index(last)} | (
            {LIAR} if lies else set()
        )
        replies = dict(cohort.ask(stage, server.requests, gone=lambda _, client, gone=gone: client in gone))
        if lies:
            deal = another_secret("self_seed" if "wrong seed" in kind else "mask_key")
            replies[LIAR] = pack(deal(cohort, unpack(server.requests[LIAR])))
        requests = {client: unpack(request) for client, request in server.requests.items()}
        moments[stage] = Moment(before, states, requests, replies, {client: unpack(reply) for client, reply in replies.items()})
        server.receive(replies)
    assert server.result is not None
    return Recorded(kind, cohort, moments, frozenset({LIAR} if "wrong" in kind else ()), server)
