"""The client's side of a round. It takes bytes and returns bytes, and is the same in every engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.errors import SecureSumError, WireError
from sketchfed.protection import ClientWork, Protection, SecureSums
from sketchfed.rounds.survey import packed_metrics
from sketchfed.secure import SECURE, Identity, SecureClient, Terms
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.training import ClientMemory, Examples, Judge, Judged, Pull, Trainer, Turn
from sketchfed.wire import Packet, kind_of, number_named, pack, split, unpack

MOST_UPDATES = 1_000_000
"""The largest number of missed rounds that are ever replayed."""
_BEHIND = 256
"""The largest size of a 'behind' packet in bytes. A longer reply is another kind of packet, so `behind` does not read it."""


class BehindError(WireError):
    """A task builds on a replica that this client does not hold.

    `at` is the round of the replica that the client holds, or None if it holds none.
    """

    def __init__(self, message: str, at: int | None) -> None:
        super().__init__(message)
        self.at = at

    @property
    def reply(self) -> bytes:
        """The reply that asks the server to send what is missing."""
        return pack(Packet(kind="behind", arrays={}, scalars={} if self.at is None else {"round": self.at}))


def behind(reply: bytes) -> tuple[int | None] | None:
    """Return the round of the client's replica if the reply says that the client is behind, else None.

    The round is wrapped in a tuple. It is None for a client that holds no replica.
    """
    if len(reply) > _BEHIND:
        return None
    try:
        packet = unpack(reply)
        if packet.kind != "behind":
            return None
        return (int(number_named(packet, "round", least=0, most=2**62)) if packet.scalars else None,)
    except WireError:
        return None


def parted(request: bytes) -> tuple[list[bytes], bytes]:
    """Split a request into the packets of secure sums and the task that follows them."""
    parts = [bytes(part) for part in split(request, most=MOST_UPDATES)]
    count = next((place for place, part in enumerate(parts) if not kind_of(part).startswith(SECURE)), len(parts))
    if not count:
        raise WireError("the request holds no packet of a secure sum; it must hold one, and a task at stage 'masked'.")
    return parts[:count], b"".join(parts[count:])


def retasked(request: bytes, stage: str, task: bytes) -> bytes:
    """The same request with another task. In a secure sum, the task follows the sum's own packets."""
    return b"".join(parted(request)[0]) + task if stage == "masked" else task


def premise_of(replica: Replica, agreed: bytes) -> bytes:
    """The digest of everything that a client's values in a secure sum follow from, besides its data and its noise."""
    return sha256(replica.digest + agreed).digest()


@dataclass(frozen=True, kw_only=True)
class Participant:
    """Everything that a client needs to take part, except its data and its memory."""

    trainer: Trainer
    seed: PublicSeed
    protection: Protection
    agreed: bytes = b""
    """A digest of everything that the clients of the run agreed on. Empty where all of them are in one process."""
    proximal: float = 0.0
    """The factor of the term that keeps local steps near the round's weights, `training.proximal`."""
    judge: Judge | None = None
    """What is measured on the client's own data. None if the run does not ask for it."""

    @property
    def algorithm(self) -> Algorithm:
        return self.protection.algorithm

    @property
    def clients(self) -> int:
        """The number of clients in the run."""
        return self.protection.population

    def receive(self, replica: Replica | None, task: bytes) -> Replica:
        """Return the replica for the task's round: a whole model from the task, or the given replica after updates.

        A task is one packet 'begin' or 'snapshot', or the updates of consecutive rounds. Updates that the replica already
        contains are skipped, so a task that arrives twice does no harm.
        """
        parts = split(task, most=MOST_UPDATES)
        if not parts:
            raise WireError("the task is empty; it must hold a whole model, or the updates that the client missed.")
        last = unpack(parts[-1])
        target = int(number_named(last, "round", least=0, most=2**62))
        if last.kind == "snapshot":
            return self.algorithm.given(self.seed, target).replica(last, self.trainer.dim)
        if replica is None:
            raise BehindError("this client holds no replica yet, so it cannot use updates. Send it the whole model.", None)
        if last.kind != "begin":
            target += 1
            for part in parts[len(parts) - max(0, target - replica.round) :] if target > replica.round else ():
                update = last if part is parts[-1] else unpack(part)
                if number_named(update, "round") != replica.round:
                    break
                replica = self.algorithm.follow(replica, update, self.seed)
        if replica.round < target:
            raise BehindError(
                f"the task is for round {target}, but this client's replica is at round {replica.round}, and some updates in "
                "between are missing. Send it the whole model.",
                replica.round,
            )
        return replica

    def answer(
        self, replica: Replica, examples: Examples, memory: ClientMemory | None, client: int
    ) -> tuple[bytes, ClientMemory]:
        """Train locally. Return the reply, and the memory that the client keeps until it takes part again."""
        if isinstance(self.protection, SecureSums):
            raise SecureSumError("this run sends masked integers only, so a client does not answer in the clear.")
        work = self._work(replica, examples, memory, client)
        packet, owed = self.protection.reply(work)
        return pack(packet.stamped(round=replica.round)), ClientMemory(owed=owed, kept=work.kept).copy()

    def judged(self, replica: Replica, data: Judged, memory: ClientMemory | None, client: int) -> bytes:
        """Evaluate the model on the client's own data, with the parts of the model that it keeps. Return the metrics."""
        if self.judge is None:
            raise WireError("the run does not evaluate on clients, and this client was asked to evaluate.")
        kept = {} if memory is None else dict(memory.copy().kept)
        seed = self.seed.child("evaluation", replica.round).child("client", client)
        turn = Turn(seed=seed, round=replica.round, client=client, kept=kept)
        return packed_metrics(self.judge(replica.weights, data, turn), replica.round)

    def join(
        self, request: Packet, client: int, identity: Identity, directory: Mapping[int, bytes], joined: set[bytes]
    ) -> tuple[SecureClient, bytes]:
        """Join a secure sum. Return the client's session and the packet with its keys.

        The client computes the terms itself and compares them with the proposed ones. `joined` holds the digests of the
        secure sums that it joined before. Masks come from the operating system, even where the settings fix a seed of the
        noise: the server names that seed, and sums do not depend on the masks.
        """
        protection = self._secure_sums()
        terms = protection.agreed(Terms.from_packet(request), self.seed)
        session, packet = SecureClient.join(terms, client, identity, directory, SecretSeed(), joined=joined)
        joined.add(terms.digest)
        return session, pack(packet)

    def masked(
        self,
        session: SecureClient,
        request: Packet,
        replica: Replica,
        examples: Examples,
        memory: ClientMemory | None,
        client: int,
    ) -> tuple[bytes, ClientMemory]:
        """Train locally. Return the masked reply, and the memory that the client keeps until it takes part again.

        The masks cancel only between clients that hold the same replica and agreed on the same settings.
        """
        if replica.round != session.state.terms.round:
            raise SecureSumError(
                f"the task is for round {replica.round}, but the secure sum is for round {session.state.terms.round}."
            )
        work = self._work(replica, examples, memory, client)
        reply = session.answer(request, self._secure_sums().integers(work), premise_of(replica, self.agreed))
        return pack(reply), ClientMemory(kept=work.kept).copy()

    def _work(self, replica: Replica, examples: Examples, memory: ClientMemory | None, client: int) -> ClientWork:
        context = RoundContext(round=replica.round, seed=self.seed, client=client, replica=replica, population=self.clients)
        trainer = self.algorithm.given(self.seed, replica.round).trainer(self.trainer)
        before = ClientMemory() if memory is None else memory.copy()  # training may change it, and the round may fail
        return ClientWork(
            trainer=trainer,
            replica=replica,
            examples=examples,
            memory=before.owed,
            context=context,
            kept=dict(before.kept),
            pull=Pull(self.proximal),
        )

    def _secure_sums(self) -> SecureSums:
        if not isinstance(self.protection, SecureSums):
            raise SecureSumError("the run's settings have no secure sums, so this client does not join one.")
        return self.protection
