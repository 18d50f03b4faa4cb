"""A client's part in secure sums: each stage is claimed in the node's store, computed, and committed before it is answered."""

from collections.abc import Callable
from hashlib import sha256

import torch
from torch import Tensor

from sketchfed.errors import SecureSumError, WireError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.desk import Desk
from sketchfed.flower.messages import Request
from sketchfed.flower.source import Source, Work
from sketchfed.flower.state import ClientState, Kept
from sketchfed.nodes.spending import Release
from sketchfed.nodes.store import Key
from sketchfed.rounds.participant import BehindError
from sketchfed.rounds.secure_clients import parted
from sketchfed.secure import SecureClient
from sketchfed.wire import Packet, pack, unpack

_BOUND = 16
"""Bytes of a sum's digest that packets of it carry."""


class SumDesk:
    """Answers the stages of secure sums for one request."""

    def __init__(self, request: Request, desk: Desk, source: Source, state: ClientState) -> None:
        self._request, self._desk, self._source, self._state = request, desk, source, state

    def keys(self, agreement: Agreement, work: Work) -> bytes:
        """Join a sum, if this client's budget lasts for it."""
        request, desk, directory = self._request, self._desk, agreement.directory
        if directory.get(request.client) != desk.who:
            raise SecureSumError("the run's directory has another identity for this client than it has: it changed its key.")
        desk.check_directory(directory, request.session)
        scope = sha256(request.session + request.payload).digest()
        claim = desk.store.claim(self._key(scope, "secure.keys"), request.payload)
        if isinstance(claim, bytes):
            return claim
        try:
            joined = desk.store.joined(desk.who, request.session)
            session, reply = work.participant.join(request.payload, request.client, desk.identity, directory, joined)
            terms = session.state.terms
            if release := self._release(work, terms.round):
                with desk.store.transaction() as rows:
                    release.check(rows)
            return desk.store.settle(claim, reply, joins=terms.digest, sum=(terms.digest, session.to_bytes()))
        except Exception:
            desk.store.release(claim)  # nothing left: the keys of this attempt are forgotten
            raise

    def masked(self, work: Work) -> bytes:
        """Train and send masked values. From here on the sum may be opened without this client, so this is what is charged."""
        sealed, task = parted(self._request.payload)
        packet = unpack(sealed)
        lasting: list[Kept] = []

        def answer(session: SecureClient) -> tuple[bytes, Release | None]:
            kept = self._state.settled(self._request.acknowledged, work.start)
            replica = work.participant.receive(kept.replica, task)
            release = self._release(work, replica.round)
            if release is not None:
                with self._desk.store.transaction() as rows:
                    release.check(rows)
            self._source.round = replica.round
            reply = work.participant.masked(session, packet, replica, work.examples(), self._request.client)
            if work.participant.algorithm.incremental:
                lasting.append(Kept(made=replica.round, replica=replica))
            return reply, release

        try:
            reply = self._answered(packet, answer)
        except BehindError as error:
            return error.reply
        for kept in lasting:
            self._state.keep(kept)
        return reply

    def stage(self) -> bytes:
        """A stage that needs neither model nor data."""
        packet = unpack(self._request.payload)
        return self._answered(packet, lambda session: (pack(session.answer(packet)), None))

    def _answered(self, packet: Packet, answer: Callable[[SecureClient], tuple[bytes, Release | None]]) -> bytes:
        """The reply to a packet: the stored one, or one that `answer` makes. A refusal ends this client's part in the sum."""
        desk, request = self._desk, self._request
        digest = desk.store.sum_of(desk.who, request.session, _bound(packet))
        if packet.kind != f"secure.{request.stage}":
            raise WireError(f"a request of stage '{request.stage[:20]}' carries a packet '{packet.kind}' of another stage.")
        claim = desk.store.claim(self._key(digest, packet.kind), request.payload)
        if isinstance(claim, bytes):
            return claim
        try:
            session = SecureClient.from_bytes(self._secret(digest))
            reply, release = answer(session)
            secret = None if session.stage is None else session.to_bytes()
            spend = None if release is None else release.spend
            return desk.store.settle(claim, reply, sum=(digest, secret), spend=spend)
        except WireError:  # the request cannot be read, or this client must be caught up first: nothing happened
            desk.store.release(claim)
            raise
        except Exception:
            desk.store.abandon(desk.who, digest)
            raise

    def _secret(self, digest: bytes) -> bytes:
        secret = self._desk.store.secret(self._desk.who, digest)
        if not secret:
            raise SecureSumError(
                "this client's part in the sum is over: it finished, or refused something. It joins the next one."
            )
        return secret

    def _release(self, work: Work, index: int) -> Release | None:
        return self._desk.release(work.participant.protection, self._request, index, work.participant.seed)

    def _key(self, scope: bytes, stage: str) -> Key:
        return Key(who=self._desk.who, session=self._request.session, scope=scope, stage=stage)


def _bound(packet: Packet) -> bytes:
    """The beginning of the digest of the sum that a packet says it belongs to. Empty if it says nothing."""
    named = packet.arrays.get("terms")
    if not isinstance(named, Tensor) or named.dtype != torch.uint8 or named.ndim != 1:
        return b""
    return named.numpy().tobytes()[:_BOUND]
