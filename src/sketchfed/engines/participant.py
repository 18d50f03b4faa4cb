"""The client's side of a round, the same in every engine: bytes in, bytes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.config import Config
from sketchfed.errors import SecureSumError, WireError
from sketchfed.protection import Protection
from sketchfed.protection.client import integers, private_packet
from sketchfed.protection.terms import agreed
from sketchfed.secure import Identity, SecureClient, Terms
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Trainer
from sketchfed.wire import Packet, number_named, pack, split, unpack

MOST_UPDATES = 1_000_000
"""More missed rounds than this are never replayed."""
_BEHIND = 256
"""Bytes that a packet 'behind' never exceeds: longer replies need not be read to tell."""


class BehindError(WireError):
    """A task builds on a replica that this client does not hold; `at` is the round of the one it has, None if it has none."""

    def __init__(self, message: str, at: int | None) -> None:
        super().__init__(message)
        self.at = at

    @property
    def reply(self) -> bytes:
        """What to answer, so that the server sends what is missing."""
        return pack(Packet(kind="behind", arrays={}, scalars={} if self.at is None else {"round": self.at}))


def behind(reply: bytes) -> tuple[int | None] | None:
    """The round that a client says it is at, if its reply says that it needs more than it was sent; else None."""
    if len(reply) > _BEHIND:
        return None
    try:
        packet = unpack(reply)
        if packet.kind != "behind":
            return None
        return (int(number_named(packet, "round", least=0, most=2**62)) if packet.scalars else None,)
    except WireError:
        return None


@dataclass(frozen=True, kw_only=True)
class Participant:
    """Everything a client runs on but its data and its memory."""

    algorithm: Algorithm
    trainer: Trainer
    seed: PublicSeed
    clients: int | None = None
    """How many there are in all, if that is known."""
    protection: Protection | None = None

    @classmethod
    def of(cls, config: Config, module: nn.Module, trainer: Trainer, sizes: Sequence[int]) -> "Participant":
        """What a completed configuration means for clients with so many examples each."""
        return cls(
            algorithm=config.algorithm.fitted(module),
            trainer=trainer,
            seed=PublicSeed(config.seed),
            clients=len(sizes),
            protection=config.protection(dim=trainer.dim, sizes=sizes, module=module),
        )

    def receive(self, replica: Replica | None, task: bytes) -> Replica:
        """The replica of the round that a task is for: a whole model, or the one held, brought up to date.

        A task is one packet 'begin' or 'snapshot', or the updates of consecutive rounds; those that the replica has behind it
        are skipped, so a task that arrives twice does no harm.
        """
        parts = split(task, most=MOST_UPDATES)
        if not parts:
            raise WireError("the task is empty; it should be a whole model, or the updates that were missed.")
        last = unpack(parts[-1])
        target = int(number_named(last, "round", least=0, most=2**62))
        if last.kind == "snapshot":
            return self.algorithm.received(last, self.trainer.dim, self.seed)
        if replica is None:
            raise BehindError(
                "this client holds no replica yet, so updates are of no use to it. Send it the whole model.", None
            )
        if last.kind != "begin":
            target += 1
            for part in parts[len(parts) - max(0, target - replica.round) :] if target > replica.round else ():
                update = last if part is parts[-1] else unpack(part)
                if number_named(update, "round") != replica.round:
                    break
                replica = self.algorithm.follow(replica, update, self.seed)
        if replica.round < target:
            raise BehindError(
                f"the task is for round {target}, this client's replica is at round {replica.round}, and the updates between "
                "are not all there. Send it the whole model.",
                replica.round,
            )
        return replica

    def answer(self, replica: Replica, examples: Examples, memory: Tensor | None, client: int) -> tuple[bytes, Tensor | None]:
        """The reply after local training, and what the client keeps until it takes part again."""
        context = RoundContext(round=replica.round, seed=self.seed, client=client, replica=replica, population=self.clients)
        trainer = self.algorithm.local(self.trainer, context)
        if self.protection is None:
            trained = trainer.train(replica.weights, examples, self.algorithm.work, context.own)
            packet, memory = self.algorithm.client(trained.sub_(replica.weights), memory, context)
        else:
            packet, memory = private_packet(self.protection, trainer, replica, examples, memory, context)
        return pack(packet.stamped(round=replica.round)), memory

    def join(
        self, request: bytes, client: int, identity: Identity, directory: Mapping[int, bytes], joined: set[bytes]
    ) -> tuple[SecureClient, bytes]:
        """The client's part in a secure sum on terms that it knows itself, and its keys; `joined` are sums of before."""
        assert self.protection is not None
        terms = agreed(self.protection, Terms.from_packet(unpack(request)), self.seed)
        secret = self.protection.secret(terms.round, "masks", client).child(
            "session", int.from_bytes(terms.session[:8], "little")
        )
        session, packet = SecureClient.join(terms, client, identity, directory, secret, joined=joined)
        joined.add(terms.digest)
        return session, pack(packet)

    def masked(self, session: SecureClient, request: Packet, replica: Replica, examples: Examples, client: int) -> bytes:
        """The masked reply after local training."""
        assert self.protection is not None
        if replica.round != session.state.terms.round:
            raise SecureSumError(
                f"the task is for round {replica.round}, the secure sum for round {session.state.terms.round}."
            )
        context = RoundContext(round=replica.round, seed=self.seed, client=client, replica=replica, population=self.clients)
        trainer = self.algorithm.local(self.trainer, context)
        return pack(session.answer(request, integers(self.protection, trainer, replica, examples, context)))
