"""A client's part in secure sums. Each stage is claimed in the node's store, computed, and committed before the answer."""

import logging
from collections.abc import Callable
from hashlib import sha256

from sketchfed.errors import SecureSumError, SketchfedError, WireError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.desk import Desk
from sketchfed.flower.messages import Request
from sketchfed.flower.refusals import data_at_work
from sketchfed.flower.source import Work, WorkSource
from sketchfed.flower.state import ClientState, Kept
from sketchfed.nodes.spending import Release
from sketchfed.nodes.store import Key
from sketchfed.rounds.participant import BehindError, parted
from sketchfed.secure import SecureClient, Terms, request_kind, sum_of
from sketchfed.wire import Packet, pack, unpack

log = logging.getLogger("sketchfed")

_CARRIED = (request_kind("keys"), request_kind("shares"))
"""What may follow the packet of a stage: the first stages of the next round's sum."""
_MOST_CARRIED = 1
"""A client is in one sum of the next round, and one stage of it follows one of this round's."""


class SumDesk:
    """Answers the stages of secure sums for one request."""

    def __init__(self, request: Request, desk: Desk, source: WorkSource, state: ClientState) -> None:
        self._request, self._desk, self._source, self._state = request, desk, source, state

    def answer(self, agreement: Agreement, work: Callable[[], Work]) -> bytes:
        """The reply to a stage, and to a stage of the next round's sum if the request carries one. `work` builds the model."""
        (first, *carried), task = parted(self._request.payload)
        if unpack(first).kind != f"secure.{self._request.stage}":
            raise WireError(
                f"a request of stage '{self._request.stage[:20]}' carries a packet '{unpack(first).kind}' of another stage."
            )
        if len(carried) > _MOST_CARRIED:
            raise WireError(f"{len(carried):,} packets follow that of stage '{self._request.stage}', and only one may.")
        try:
            reply = self._stage(first, task, agreement, work)
        except BehindError as error:
            return error.reply
        for packet in carried:
            if unpack(packet).kind not in _CARRIED:
                raise WireError(f"a packet '{unpack(packet).kind}' cannot follow another one in a request.")
            try:
                reply += self._stage(packet, b"", agreement, work)
            except SketchfedError as error:  # the next round then begins with fresh keys; this one is not touched by it
                log.warning("client %d does not prepare the next secure sum: %s", self._request.client, error)
        return reply

    def _stage(self, data: bytes, task: bytes, agreement: Agreement, work: Callable[[], Work]) -> bytes:
        packet = unpack(data)
        if packet.kind == request_kind("keys"):
            return self._joined(data, packet, agreement, work())
        if packet.kind == request_kind("masked"):
            return self._masked(data, packet, task, work())
        return self._answered(data, packet, lambda session: (pack(session.answer(packet)), None))

    def _joined(self, data: bytes, packet: Packet, agreement: Agreement, work: Work) -> bytes:
        """Join a sum, if this client's budget allows it."""
        request, desk, directory = self._request, self._desk, agreement.directory
        work.check_round(Terms.from_packet(packet).round)
        if directory.get(request.client) != desk.who:
            raise SecureSumError("the run's directory has another identity for this client than it has: it changed its key.")
        desk.check_directory(directory, request.session)
        scope = sha256(request.session + data).digest()
        claim = desk.store.claim(self._key(scope, packet.kind), data)
        if isinstance(claim, bytes):
            return claim
        try:
            joined = desk.store.joined(desk.who, request.session)
            session, reply = work.participant.join(packet, request.client, desk.identity, directory, joined)
            terms = session.state.terms
            if release := self._release(work, terms.round):
                with desk.store.transaction() as rows:
                    release.check(rows)
            return desk.store.settle(claim, reply, joins=terms.digest, sum=(terms.digest, session.to_bytes()))
        except Exception:
            desk.store.release(claim)  # nothing left: the keys of this attempt are forgotten
            raise

    def _masked(self, data: bytes, packet: Packet, task: bytes, work: Work) -> bytes:
        """Train and send masked values. From here on the sum may be opened without this client, so this is charged."""
        lasting: list[Kept] = []

        def answer(session: SecureClient) -> tuple[bytes, Release | None]:
            kept = self._state.settled(self._request.acknowledged, work.start)
            replica = work.participant.receive(kept.replica, task)
            release = self._release(work, replica.round)
            if release is not None:
                with self._desk.store.transaction() as rows:
                    release.check(rows)
            self._source.round = replica.round
            with data_at_work():
                reply, memory = work.participant.masked(
                    session, packet, replica, work.examples(), kept.memory, self._request.client
                )
            held = replica if work.participant.algorithm.incremental else None
            if held is not None or memory or kept.memory:
                lasting.append(Kept(made=replica.round, replica=held, memory=memory))
            return reply, release

        reply = self._answered(data + task, packet, answer)
        for kept in lasting:
            self._state.keep(kept)
        return reply

    def _answered(self, asked: bytes, packet: Packet, answer: Callable[[SecureClient], tuple[bytes, Release | None]]) -> bytes:
        """The reply to a packet: the stored one, or one that `answer` makes. A refusal ends this client's part in the sum."""
        desk, request = self._desk, self._request
        digest = desk.store.sum_of(desk.who, request.session, sum_of(packet))
        claim = desk.store.claim(self._key(digest, packet.kind), asked)
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
