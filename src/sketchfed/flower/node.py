"""The client's side of every stage: bytes in, bytes out, with what it remembers in Flower's context."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace

from flwr.app import Context, Message

from sketchfed.algorithms import cohort
from sketchfed.errors import RAISED, SecureSumError, SketchfedError, WireError, reason
from sketchfed.flower.agreement import DIGEST, Agreement
from sketchfed.flower.desk import Desk
from sketchfed.flower.enrolment import greeting
from sketchfed.flower.messages import Reply, Request
from sketchfed.flower.source import Work, WorkSource
from sketchfed.flower.state import ClientState, Kept
from sketchfed.protection import Clear
from sketchfed.rounds.participant import BehindError
from sketchfed.rounds.secure_clients import parted
from sketchfed.version import __version__
from sketchfed.wire import pack, unpack

log = logging.getLogger("sketchfed")


def answered(message: Message, context: Context, source: WorkSource) -> Message:
    """The reply to a message of a sketchfed server; what cannot be done is refused in words, and stops nobody else."""
    request = Request.of(message)
    node = Node(request, context, source)
    try:
        with source.threads():
            reply = node.reply()
    except Exception as error:
        reply = Reply.to(request, _told(error, request, hides=node.hides).encode(), "refused")
    return Message(reply.to_records(), reply_to=message)


def _told(error: Exception, request: Request, *, hides: bool) -> str:
    """What the server is told of an error. The message of an exception of the client's own code may quote its data."""
    raised = error if not isinstance(error, SketchfedError) else error.__cause__
    if raised is None or isinstance(raised, SketchfedError):
        return str(error)
    log.warning("client %d leaves this round out: %s", request.client, reason(error), exc_info=error)
    return f"{RAISED}{type(raised).__name__}; its own log says more." if hides else reason(error)


class Node:
    """One client of one run, for the time of one request."""

    def __init__(self, request: Request, context: Context, source: WorkSource) -> None:
        self._request, self._source, self._context = request, source, context
        self._desk = Desk(context.node_id, context.node_config)
        self._state = ClientState(context.state, request.session)
        self.hides = True
        """Whether nothing but protected updates may leave the client, as far as it knows."""

    def reply(self) -> Reply:
        request = self._request
        if request.stage == "hello":
            return Reply.to(request, self._hello())
        agreement = self._agreement()
        if agreement is None:
            return Reply.to(request, status="unset")
        self.hides = agreement.hides
        if not 0 <= request.client < len(agreement.sizes):
            raise WireError(f"the run has {len(agreement.sizes):,} clients, and this one is asked as client {request.client}.")
        stages: dict[str, Callable[[Agreement], bytes]] = {
            "train": self._train,
            "evaluate": self._evaluate,
            "keys": self._keys,
            "masked": self._masked,
        }
        reply = Reply.to(request, stages.get(request.stage, self._stage)(agreement))
        if agreement.hides or not self._source.metrics:
            return reply
        return replace(reply, metrics=json.dumps(self._source.metrics))

    def _hello(self) -> bytes:
        said = self._source.hello(self._request.payload)
        partition, identity = self._context.node_config.get("partition-id"), self._desk.identity
        about = {
            "examples": said.examples,
            "own": said.own,
            "partition": partition if type(partition) is int else None,
            "identity": identity.public.hex(),
            "signature": identity.sign(greeting(self._request.session, self._context.node_id)).hex(),
            "version": __version__,
        }
        return json.dumps(about).encode()

    def _agreement(self) -> Agreement | None:
        """What this client agreed to, if that is what the server means; None if it has to be told first."""
        named = self._request.agreement
        told = len(named) != DIGEST
        if not told and not self._state.agreement:
            return None
        agreement = Agreement.unpacked(named if told else self._state.agreement)
        if told:
            self._desk.pin(self._request.session, agreement.settings, hides=agreement.hides)
            self._state.agreement = named
        return agreement if told or agreement.digest == named else None

    def _work(self, agreement: Agreement) -> Work:
        work = self._source.work(agreement, self._request.client)
        self._desk.check_terms(work.participant.protection)
        return work

    def _train(self, agreement: Agreement) -> bytes:
        client, work = self._request.client, self._work(agreement)
        kept = self._state.settled(self._request.acknowledged, work.start)
        try:
            replica = work.participant.receive(kept.replica, self._request.payload)
        except BehindError as error:
            return error.reply
        self._check_chosen(work, replica.round)
        self._desk.charge(work.participant.protection, self._request.session, replica.round, client, release=True)
        self._source.round = replica.round
        reply, memory = work.participant.answer(replica, work.examples(), kept.memory, client)
        lasting = replica if work.participant.algorithm.incremental else None
        self._state.keep(Kept(made=replica.round, replica=lasting, memory=memory))
        return reply

    def _evaluate(self, agreement: Agreement) -> bytes:
        if agreement.config.privacy is not None or agreement.config.secure is not None:
            raise WireError(
                "what a client's data says of a model is not noised, so a run that hides updates must not ask for it."
            )
        work = self._work(agreement)
        kept = self._state.settled(self._request.acknowledged, work.start)
        try:
            replica = work.participant.receive(kept.replica, self._request.payload)
        except BehindError as error:
            return error.reply
        self._source.round = replica.round
        self._source.evaluate(agreement, replica.weights)
        return b""

    def _keys(self, agreement: Agreement) -> bytes:
        client, work = self._request.client, self._work(agreement)
        directory = agreement.directory
        self._desk.check_directory(directory)
        if directory.get(client) != (identity := self._desk.identity).public:
            raise SecureSumError("the run's directory has another identity for this client than it has: it changed its key.")
        joined = self._state.joined
        session, reply = work.participant.join(self._request.payload, client, identity, directory, joined)
        index = session.state.terms.round
        self._desk.charge(work.participant.protection, self._request.session, index, client, release=False)
        self._state.join(session.state.terms.digest)
        self._state.sum = session
        return reply

    def _masked(self, agreement: Agreement) -> bytes:
        client, work, session = self._request.client, self._work(agreement), self._state.sum
        kept = self._state.settled(self._request.acknowledged, work.start)
        sealed, task = parted(self._request.payload)
        try:
            replica = work.participant.receive(kept.replica, task)
        except BehindError as error:
            return error.reply
        self._source.round = replica.round
        try:
            reply = work.participant.masked(session, unpack(sealed), replica, work.examples(), client)
        finally:
            self._state.sum = session
        if work.participant.algorithm.incremental:
            self._state.keep(Kept(made=replica.round, replica=replica))
        return reply

    def _stage(self, agreement: Agreement) -> bytes:
        """A stage of a secure sum that needs neither model nor data."""
        session, request = self._state.sum, self._request
        if request.stage == "unmask":  # what is opened now is seen by the server
            terms = session.state.terms
            protection = self._work(agreement).participant.protection
            self._desk.charge(protection, request.session, terms.round, request.client, release=True)
        try:
            return pack(session.answer(unpack(request.payload)))
        finally:
            self._state.sum = session

    def _check_chosen(self, work: Work, index: int) -> None:
        """Refuse a round for which the public seed did not choose this client, where everybody knows whom it chose."""
        participant, client = work.participant, self._request.client
        protection, population = participant.protection, participant.clients
        if isinstance(protection, Clear) or protection.hidden:
            return
        count = participant.algorithm.planned(population)
        if client not in cohort(participant.seed, index, population=population, count=count):
            raise WireError(f"client {client} is not among those whom the public seed chooses for round {index + 1}.")
