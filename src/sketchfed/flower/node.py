"""The client's side of every stage: bytes in, bytes out.

Checks come in this order: the message is well formed; the policy allows the names and numbers in the settings; they are those
that the run began with; parts are built, and the policy allows what they turned out to be; the work is done; its cost is
written down together with the answer; the answer leaves.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from flwr.app import Context, Message

from sketchfed.algorithms import cohort
from sketchfed.errors import WireError
from sketchfed.flower.agreement import DIGEST, Agreement, Draft
from sketchfed.flower.desk import Desk
from sketchfed.flower.enrolment import greeting
from sketchfed.flower.messages import Reply, Request
from sketchfed.flower.refusals import data_at_work, told
from sketchfed.flower.source import Work, WorkSource
from sketchfed.flower.state import ClientState, Kept
from sketchfed.flower.sums import SumDesk
from sketchfed.nodes.drawing import COMMITMENT, Opening, settled
from sketchfed.nodes.policy import tables_of
from sketchfed.nodes.rules import Offer, check, check_built
from sketchfed.nodes.store import TRAIN, Key
from sketchfed.protection import Clear
from sketchfed.rounds.participant import BehindError
from sketchfed.version import __version__


def answered(message: Message, context: Context, source: WorkSource) -> Message:
    """The reply to a message of a sketchfed server; what cannot be done is refused in words, and stops nobody else."""
    request = Request.of(message)
    node = Node(request, context, source)
    try:
        with source.threads():
            reply = node.reply()
    except Exception as error:
        reply = Reply.to(request, told(error, client=request.client, hides=node.hides).encode(), "refused")
    finally:
        node.close()
    return Message(reply.to_records(), reply_to=message)


class Node:
    """One client of one run, for the time of one request."""

    def __init__(self, request: Request, context: Context, source: WorkSource) -> None:
        self._request, self._source, self._context = request, source, context
        self._desk = Desk(context.node_id, context.node_config)
        self._state = ClientState(context.state, request.session)
        self.hides = True
        """Whether nothing but protected updates may leave the client, as far as it knows."""

    def close(self) -> None:
        self._desk.close()

    def reply(self) -> Reply:
        request = self._request
        if request.stage == "hello":
            return Reply.to(request, self._hello())
        if request.stage == "commit":
            return Reply.to(request, self._commit())
        if request.stage == "reveal":
            return Reply.to(request, self._desk.revealed(request))
        agreement = self._agreement()
        if agreement is None:
            return Reply.to(request, status="unset")
        self.hides = agreement.hides or self._desk.policy.protects
        sums = SumDesk(request, self._desk, self._source, self._state)
        stages: dict[str, Callable[[], bytes]] = {
            "train": lambda: self._train(agreement),
            "evaluate": lambda: self._evaluate(agreement),
        }
        summed = partial(sums.answer, agreement, lambda: self._work(agreement))
        reply = Reply.to(request, stages.get(request.stage, summed)())
        if agreement.hides or not self._source.metrics:
            return reply
        return replace(reply, metrics=json.dumps(self._source.metrics))

    def _hello(self) -> bytes:
        self._check_offer(self._request.payload)
        with data_at_work():
            said = self._source.hello(self._request.payload)
        partition, identity = self._context.node_config.get("partition-id"), self._desk.identity
        about = {
            "examples": said.examples,
            "own": said.own,
            "run": said.run,
            "partition": partition if type(partition) is int else None,
            "identity": identity.public.hex(),
            "signature": identity.sign(greeting(self._request.session, self._context.node_id)).hex(),
            "version": __version__,
        }
        return json.dumps(about).encode()

    def _commit(self) -> bytes:
        """Commit to a part of the run's randomness. The offer comes again: who draws is checked and counted like who joins."""
        server, offer = self._request.payload[:COMMITMENT], self._request.payload[COMMITMENT:]
        return self._desk.committed(self._request, Opening(server, settled(self._check_offer(offer))))

    def _check_offer(self, offer: bytes) -> dict[str, Any]:
        """The tables of an offer. Refuse what the policy refuses before anything of it is looked up, and count who asks."""
        try:
            tables = tables_of(json.loads(offer))
        except (ValueError, RecursionError) as error:
            raise WireError(f"an offer is tables in JSON, this one is not: {error}.") from None
        clients = tables["data"].get("clients") if isinstance(tables.get("data"), dict) else None
        if not self._source.names_data:
            tables = {key: table for key, table in tables.items() if key != "data"}
        counted = clients if type(clients) is int else None
        check(self._desk.policy, Offer(tables=tables, data=self._desk.data, clients=counted))
        hidden = tables.get("privacy") is not None or tables.get("secure") is not None
        self.hides = hidden or self._desk.policy.protects
        self._enrol()
        return tables

    def _enrol(self) -> None:
        rule = self._desk.policy.rules["limits.enrolments"]
        self._desk.store.enrol(self._request.session, rule.value, rule.text, rule.told)

    def _agreement(self) -> Agreement | None:
        """What this client agreed to, if that is what the server means; None if it has to be told first."""
        named = self._request.agreement
        told = len(named) != DIGEST
        if not told and not self._state.agreement:
            return None
        agreement = Agreement.unpacked(named if told else self._state.agreement, self._check_draft)
        if not told and agreement.digest != named:
            return None
        client = self._request.client
        if not 0 <= client < len(agreement.sizes):
            raise WireError(f"the run has {len(agreement.sizes):,} clients, and this one is asked as client {client}.")
        if agreement.hides:
            self._desk.check_draw(self._request, agreement)
        self._desk.store.pin(self._desk.who, self._request.session, agreement.digest, client, hides=agreement.hides)
        if told:
            self._enrol()
            self._state.agreement = named
        return agreement

    def _check_draft(self, draft: Draft) -> None:
        offer = Offer(
            tables=draft.tables,
            data=self._desk.data,
            clients=draft.clients,
            shape=draft.shape,
            outputs=draft.outputs,
            parameters=self._source.parameters(draft.layout),
        )
        check(self._desk.policy, offer)

    def _work(self, agreement: Agreement) -> Work:
        work = self._source.work(agreement, self._request.client)
        check_built(self._desk.policy, work.participant.protection, self._desk.data)
        return work._replace(participant=replace(work.participant, agreed=agreement.digest))

    def _train(self, agreement: Agreement) -> bytes:
        work = self._work(agreement)
        if not agreement.hides:
            return self._trained(work)[0]
        store, payload = self._desk.store, self._request.payload
        key = Key(
            who=self._desk.who,
            session=self._request.session,
            scope=sha256(self._request.session + payload).digest(),
            stage=TRAIN,
        )
        claim = store.claim(key, payload)
        if isinstance(claim, bytes):
            return claim
        try:
            reply, index = self._trained(work)
            if index is None:  # nothing of the data is in it
                store.release(claim)
                return reply
            release = self._desk.release(work.participant.protection, self._request, index, work.participant.seed)
            return store.settle(claim, reply, spend=None if release is None else release.spend)
        except Exception:
            store.release(claim)
            raise

    def _trained(self, work: Work) -> tuple[bytes, int | None]:
        """The reply to a task and its round; no round if this client must be caught up first."""
        client, participant = self._request.client, work.participant
        kept = self._state.settled(self._request.acknowledged, work.start)
        try:
            replica = participant.receive(kept.replica, self._request.payload)
        except BehindError as error:
            return error.reply, None
        work.check_round(replica.round)
        self._check_chosen(work, replica.round)
        if release := self._desk.release(participant.protection, self._request, replica.round, participant.seed):
            with self._desk.store.transaction() as rows:
                release.check(rows)
        self._source.round = replica.round
        with data_at_work():
            reply, memory = participant.answer(replica, work.examples(), kept.memory, client)
        lasting = replica if participant.algorithm.incremental else None
        self._state.keep(Kept(made=replica.round, replica=lasting, memory=memory))
        return reply, replica.round

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
        with data_at_work():
            return self._source.evaluate(agreement, self._request.client, work, replica, kept.memory)

    def _check_chosen(self, work: Work, index: int) -> None:
        """Refuse a round for which the public seed did not choose this client, where everybody knows whom it chose."""
        participant, client = work.participant, self._request.client
        protection, population = participant.protection, participant.clients
        if isinstance(protection, Clear) or protection.hidden:
            return
        count = participant.algorithm.planned(population)
        if client not in cohort(participant.seed, index, population=population, count=count):
            raise WireError(f"client {client} is not among those whom the public seed chooses for round {index + 1}.")
