"""What an adversary knows: the messages that its role sees, public facts, and its own data. Nobody else's data is in it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from sketchfed.algorithms import Replica, RoundContext
from sketchfed.attacks.knowledge import Heard, knowledge_of, spread
from sketchfed.attacks.neighbours import NeighbourChange, Scene, told_by_neighbours
from sketchfed.attacks.observation import Observation
from sketchfed.attacks.opened import Members, OpenedSum, members_in, opened_sums, task_in
from sketchfed.attacks.public import Public
from sketchfed.codecs.linear import RoundTrip
from sketchfed.errors import InputError, SketchfedError
from sketchfed.protection import ClientWork, SecureSums
from sketchfed.protection.batches import batch_of
from sketchfed.rounds import Exchange
from sketchfed.rounds.participant import MOST_UPDATES
from sketchfed.training import Examples
from sketchfed.training.base import ClientData
from sketchfed.training.objective import Objective, objective_of
from sketchfed.wire import Packet, number_named, split, unpack

ROLES = {
    "server": "the server, honest but curious: every reply as it came, and the weights",
    "secure server": "the server under secure sums: masked replies, and the sums that were opened",
    "network": "whoever reads the wire, where no TLS or its end: every request and reply, no secrets",
    "client": "a client: what it is sent, its own replies and data",
    "colluders": "two clients that share what they are sent, and take their own part off what they see",
    "neighbour": "a node of a graph: what its neighbours say to it, what it says, its own data",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """What is known about the work of one client in a round, or about the mean of several clients."""

    round: int
    clients: tuple[int, ...]
    """The clients whose work it is. Empty if cohorts are hidden."""
    observation: Observation
    count: int
    """The number of examples behind it."""
    used: tuple[int, ...] | None = None
    """Which of its examples one client used, if that is public. Later updates may then be about the same examples."""
    noise: float = 0.0
    """The standard deviation of the noise in each of the values, which is public."""
    clip: float | None = None
    """The largest norm of the values without noise, if there is a bound."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The knowledge of one role. An attack asks for `updates` or `replicas`, whatever the algorithm, codec or mechanism is."""

    role: str
    public: Public
    exchanges: Sequence[Exchange]
    """The messages that the role saw, in order."""
    members: tuple[int, ...] = ()
    """The clients that the role consists of, if any."""
    own: Mapping[int, Examples] = field(default_factory=dict)
    """The data of these clients."""
    released: Tensor | None = None
    """The final weights, if this role gets them."""

    @property
    def is_client(self) -> bool:
        return bool(self.members)

    def replicas(self) -> dict[int, Replica]:
        """The replicas of clients in each round that this role saw. For a neighbour, the estimated model of its first one."""
        if self.public.topology is not None:
            return {told.round: self._started(told) for told in reversed(self.told)}
        return {replica.round: replica for replica, _, _ in self._rounds()}

    def updates(self) -> Sequence[Update]:
        """Everything that is known about clients' work, in the order of rounds. Rounds that do not train are left out."""
        return self._updates

    @cached_property
    def _updates(self) -> Sequence[Update]:
        if self.public.topology is not None:
            return [self._from_neighbours(told) for told in self.told]
        knowledge_of(self.public.algorithm)  # refuses an algorithm of which nobody has said what it reveals
        found = self._told() if self.is_client else self._heard()
        return [update for update in found if self.public.trains(update.round)]

    # What a neighbour sees ------------------------------------------------------------------------------------------

    @cached_property
    def told(self) -> Sequence[NeighbourChange]:
        """What a node of a graph learned of the changes of others, in the order of rounds."""
        public, start = self.public, self.public.start
        if public.topology is None or start is None or len(self.members) != 1:
            raise InputError("only one node of a graph learns from its neighbours. Audit a run with [graph].")
        return told_by_neighbours(
            Scene(
                protection=public.protection,
                topology=public.topology,
                layout=public.layout,
                seed=public.seed,
                start=start,
                node=self.members[0],
                exchanges=self.exchanges,
            )
        )

    def _from_neighbours(self, told: NeighbourChange) -> Update:
        noise = self.public.protection.variance(len(told.nodes)) ** 0.5
        update = self._update(self._started(told), told.nodes, told.heard, noise)
        return update if told.direct else replace(update, clip=None)

    def _started(self, told: NeighbourChange) -> Replica:
        """The model from which a change was made, as far as it is known."""
        return Replica(round=told.round, weights=told.weights)

    # What the server sees, or whoever reads the wire ----------------------------------------------------------------

    def _heard(self) -> Iterator[Update]:
        for replica, exchanges, _ in self._rounds():
            if any(each.stage != "train" for each in exchanges):
                yield from self._opened(replica)
                continue
            protection = self.public.protection
            noise = 0.0 if protection.central else protection.variance(1) ** 0.5
            for exchange in exchanges:
                heard = None if exchange.reply is None else self._reply(exchange.reply, replica, exchange.client)
                if heard is not None:
                    yield self._update(replica, (exchange.client,), heard, noise)

    @cached_property
    def _sums(self) -> list[OpenedSum]:
        return opened_sums(self.exchanges)

    def _opened(self, replica: Replica) -> Iterator[Update]:
        protection = self.public.protection
        if not isinstance(protection, SecureSums):
            return
        for total, clients in ((each.total, each.clients) for each in self._sums if each.round == replica.round):
            packet = protection.opened(total, len(clients), self._context(replica))
            heard = self.public.knowledge.heard(packet, self.public.dim, self._context(replica))
            if heard is not None:
                yield self._update(replica, clients, heard, protection.variance(len(clients)) ** 0.5)

    def _reply(self, reply: bytes, replica: Replica, client: int) -> Heard | None:
        """What a reply reveals. None if the server refuses the reply, whatever the others sent."""
        try:
            packet = unpack(reply)
            if packet.scalars.get("round") != replica.round or packet.clients != 1:
                return None
            norm = self.public.algorithm.check(packet, self.public.dim, self._context(replica, client))
            if norm is not None and not math.isfinite(norm):
                return None
            heard = self.public.knowledge.heard(packet, self.public.dim, self._context(replica, client))
        except SketchfedError:
            return None
        return heard if heard is not None and bool(heard.values.isfinite().all()) else None

    def _rounds(self) -> Iterator[tuple[Replica, list[Exchange], list[Packet]]]:
        """Yield the replica of each round, the exchanges of the round, and the packets that led to the replica."""
        replica, receive = self.public.start, self.public.participant.receive
        for _, group in groupby(self.exchanges, key=lambda each: each.round):
            exchanges = list(group)
            tasks = dict.fromkeys(task for each in exchanges if (task := task_in(each)) is not None)
            for task in sorted(tasks, key=len):
                try:
                    replica = receive(replica, task)
                except SketchfedError:  # meant for somebody who holds more, or less
                    continue
                yield replica, exchanges, [unpack(part) for part in split(task, most=MOST_UPDATES)]
                break

    # What clients see -----------------------------------------------------------------------------------------------

    def _told(self) -> Iterator[Update]:
        """What broadcasts reveal about the mean of each round, without the members' own part."""
        algorithm, knowledge, seed = self.public.algorithm, self.public.knowledge, self.public.seed
        held, sent = self.public.start, dict[int, list[Exchange]]()
        for replica, exchanges, packets in self._rounds():
            if packets[-1].kind == "snapshot" and held is not None:
                yield from self._of_mean(held, knowledge.between(held, replica, seed), sent)
            elif packets[-1].kind != "begin" and held is not None:
                for packet in packets:
                    if number_named(packet, "round") == held.round < replica.round:
                        yield from self._of_mean(held, knowledge.told(packet, held, seed), sent)
                        held = algorithm.follow(held, packet, seed)
            held, sent[replica.round] = replica, exchanges

    @cached_property
    def _members(self) -> dict[int, Members]:
        return members_in(self.exchanges)

    def _took_part(self, index: int) -> tuple[int, ...]:
        """The clients whose work is in a round, as far as members know. They know nothing about groups other than their own."""
        cohort, known = self.public.cohort(index), self._members.get(index)
        if known is None:
            return cohort
        return tuple(client for client in cohort if client in known.survivors or client not in known.invited)

    def _of_mean(self, replica: Replica, heard: Heard | None, sent: Mapping[int, list[Exchange]]) -> Iterator[Update]:
        if heard is None:
            return
        protection, passed = self.public.protection, sent.get(replica.round, [])
        everybody = self._took_part(replica.round)
        planned = len(everybody) or protection.cohort_size
        noise = protection.variance(planned) ** 0.5
        own = {client: part for client, part in self._own(replica, heard, passed).items() if client in everybody}
        others = tuple(client for client in everybody if client not in own)
        if everybody and not others:
            return
        if own:
            total = heard.values * len(everybody) - torch.stack(list(own.values())).sum(0)
            heard, noise = Heard(total / len(others), heard.map), noise * len(everybody) / len(others)
            if not protection.central and not isinstance(protection, SecureSums):
                noise = protection.variance(len(others)) ** 0.5  # their own noise went with their own part
        yield self._update(replica, others, heard, noise, planned=planned)

    def _own(self, replica: Replica, told: Heard, exchanges: Sequence[Exchange]) -> dict[int, Tensor]:
        """What the members contributed themselves, in the form in which the mean is known.

        Under masks it is computed again, without the noise that the members added: they know their noise, but the messages do
        not show it. If batches are hidden, the messages do not show the examples either, and the members' part is not removed.
        """
        found = {}
        for exchange in exchanges:
            heard = None
            if exchange.stage == "train" and exchange.reply is not None:
                heard = self._reply(exchange.reply, replica, exchange.client)
            elif exchange.stage == "masked" and exchange.client in self.own and not self.public.of_examples:
                heard = self._worked(replica, exchange.client)
            if heard is not None:
                found[exchange.client] = _in_form_of(told, heard)
        return found

    def _worked(self, replica: Replica, client: int) -> Heard | None:
        algorithm, protection, context = self.public.algorithm, self.public.protection, self._context(replica, client)
        if not isinstance(protection, SecureSums):
            return None
        trainer = algorithm.given(self.public.seed, replica.round).trainer(self.public.participant.trainer)
        work = ClientWork(trainer=trainer, replica=replica, examples=self.own[client], memory=None, context=context)
        packet, _ = algorithm.client(work.trained(algorithm.work), None, context)
        code = protection.code(context)
        clipped = torch.renorm(code.values(packet)[None], p=2, dim=0, maxnorm=protection.mechanism.clip)[0]
        return self.public.knowledge.heard(code.packet(clipped), self.public.dim, context)

    # ----------------------------------------------------------------------------------------------------------------

    def _update(
        self, replica: Replica, clients: tuple[int, ...], heard: Heard, noise: float, *, planned: int | None = None
    ) -> Update:
        public, work = self.public, self.public.algorithm.work
        known = clients or tuple(range(planned or 1))
        counts = tuple(public.count(replica.round, client) for client in known)
        sizes = () if public.of_examples else tuple(public.sizes[client] for client in known)
        seeds = tuple(self._context(replica, client).own for client in known)
        module, form = public.given(replica.round)
        loss: Objective = objective_of(public.loss)
        if public.of_examples:
            summed = len(known) if work.steps == 1 else 1  # one step adds up examples, however many they are, and whoever's
            loss = Planned(loss, batch_of(work) * summed)
            if work.steps == 1:
                work, seeds = replace(work, batch=None), seeds[:1]
        if public.protection.noise_before_code:
            noise *= spread(heard.map, len(replica.weights)) ** 0.5
        observation = Observation(
            values=heard.values,
            module=module,
            loss=loss,
            weights=replica.weights,
            work=work,
            seed=seeds[0] if len(seeds) == 1 else seeds,
            counts=() if len(seeds) == 1 else counts,
            sizes=sizes,
            map=heard.map,
            gram=None if form is None else form.gram,
        )
        used = self.public.used(replica.round, clients[0]) if len(clients) == 1 else None
        return Update(
            round=replica.round,
            clients=clients,
            observation=observation,
            count=sum(counts),
            used=used,
            noise=noise,
            clip=self.public.clip,
        )

    def _context(self, replica: Replica, client: int = 0) -> RoundContext:
        return RoundContext(
            round=replica.round, seed=self.public.seed, client=client, replica=replica, population=len(self.public.sizes)
        )


@dataclass(frozen=True)
class Planned(Objective):
    """The loss of a batch whose sum is divided by the planned number of examples, not by the actual number."""

    objective: Objective
    examples: int

    def __call__(self, module: nn.Module, batch: ClientData) -> Tensor:
        return self.objective(module, batch) * (batch.size / self.examples)


def _in_form_of(told: Heard, own: Heard) -> Tensor:
    """What a member sent, through the map by which the mean is known."""
    if own.map is None:
        return own.values if told.map is None else told.map.apply(own.values)
    decoded = told.map is None or isinstance(told.map, RoundTrip)
    return own.map.adjoint(own.values) if decoded and not isinstance(own.map, RoundTrip) else own.values
