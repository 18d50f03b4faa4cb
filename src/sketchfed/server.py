"""The server's side of a run: whom to ask, what to send, what to accept, and how many bytes that took."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from statistics import median
from typing import NamedTuple

from sketchfed.algorithms import Algorithm, RoundContext, State
from sketchfed.algorithms.base import cohort
from sketchfed.engines.base import Engine
from sketchfed.engines.participant import MOST_UPDATES, behind
from sketchfed.errors import DivergedError, NoReplyError, SecureSumError, SketchfedError, WireError
from sketchfed.kernels.finite import all_finite
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.privacy.sampling import poisson_sample
from sketchfed.protection import Protection
from sketchfed.protection.sums import noised_sum, recovered_sum
from sketchfed.protection.terms import terms_of
from sketchfed.secure import SecureServer, run_stages
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, pack, packed_size, split, unpack

log = logging.getLogger("sketchfed")


@dataclass
class Ledger:
    """What a run has cost since its start, counted on the bytes themselves, and what the server knows of its clients."""

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    broadcast_bytes: int = 0
    """What a client that never misses a round receives: each update, or each model, once."""
    replies: int = 0
    refused: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """The round of each client's replica, as of its last reply."""
    updates: list[bytes] = field(default_factory=list)
    """The latest updates, as broadcast, for those who missed them: about as many bytes as a whole model has."""


class Answers(NamedTuple):
    """What came of a call: replies, why others did not come, and of whom something may be under way that never arrived."""

    replies: dict[int, bytes]
    complaints: dict[int, str]
    unheard: set[int]


class Server:
    """Drives rounds over an engine. Everything it holds between rounds is `state`, `ledger` and `privacy`."""

    def __init__(
        self,
        algorithm: Algorithm,
        engine: Engine,
        state: State,
        seed: PublicSeed,
        *,
        shared_start: bool,
        protection: Protection | None = None,
    ) -> None:
        """`shared_start`: whether clients can rebuild the first weights themselves, so that nobody has to send them."""
        self.algorithm, self.engine, self.state, self.seed, self.protection = algorithm, engine, state, seed, protection
        self.ledger = Ledger()
        self.privacy = PrivacyLedger(protection.claim) if protection is not None and protection.privacy is not None else None
        self.patience = 1
        """How often a round is asked for before it counts as one without a reply."""
        self._shared_start = shared_start
        self._packed = (-1, b"")

    @property
    def round(self) -> int:
        """How many rounds are behind us."""
        return self.state.replica.round

    def cohort(self) -> list[int]:
        """The clients of the next round: so many of all, or, where cohorts are hidden, each by its own chance."""
        population = self.engine.clients
        if self.protection is not None and self.protection.hidden:
            secret = self.protection.secret(self.round, "cohort")
            return [int(client) for client in poisson_sample(secret, population, chance=self.algorithm.participation)]
        return cohort(self.seed, self.round, population=population, count=self.algorithm.planned(population))

    @property
    def epsilon(self) -> float | None:
        """What has been spent so far; None for a run without calibrated noise."""
        return None if self.privacy is None else self.privacy.epsilon()

    def affordable(self, attempt: int = 0) -> bool:
        """Whether the budget lasts for one more round, or for another attempt at it."""
        if self.privacy is None or self.protection is None or self.protection.privacy is None:
            return True
        budget = self.protection.privacy.epsilon
        if budget is None:
            return True
        suffix = "" if self.protection.secure is None else f" {attempt}"
        owing, _ = ([], []) if self._drawn(suffix) else self._owing(None if self.protection.hidden else self.cohort())
        return self.privacy.epsilon(also=(owing, self.protection.charge())) <= budget

    def advance(self) -> None:
        """One round. What it may cost in privacy is written down before anything leaves, and what it did cost afterwards."""
        chosen, whole = self.cohort(), 0 if self.algorithm.incremental else len(self._whole())
        if self.protection is not None and self.protection.secure is not None:
            packets = [self._summed_securely(self.protection, chosen)]
        else:
            packets = self._gathered(chosen)
        self.state, update = self._stepped(packets)
        packed = None if update is None else pack(update.stamped(round=self.round - 1))
        self.ledger.broadcast_bytes += whole if packed is None else len(packed)
        if packed is not None:
            self._remember(packed)

    def survey(self, clients: Sequence[int]) -> set[int]:
        """Let clients have the model as it is now and evaluate it; who answered. What they said is the engine's to tell."""
        return set(self._asked(self._tasks(list(clients)), "evaluate").replies)

    def _gathered(self, chosen: list[int]) -> list[Packet]:
        """What the round's clients sent, as packets that can be decoded; one for all if the server adds the noise.

        A round in which nobody answers is asked for again, where clients are elsewhere and may come back: each time with new
        noise, and its own charge.
        """
        hidden = self.protection is not None and self.protection.hidden
        for attempt in range(self.patience):
            draw = self._intended("", None if hidden else chosen)
            answers = self._asked(self._tasks(chosen), "train")
            packets, reasons = self._accepted(chosen, answers)
            seen = [client for client in chosen if client in answers.replies or client in answers.unheard]
            if packets or hidden:
                return self._released(draw, packets, seen)
            self._settled(draw, seen)
            if attempt + 1 < self.patience and not self.affordable():
                break
        reason = next(iter(reasons.values())).rstrip(".")
        if self.patience > 1 and not answers.replies:
            raise NoReplyError(
                f"round {self.round + 1} was asked for {attempt + 1} times, and nobody answered: {reason}. What was reached "
                "before is kept; go on with --resume when clients are there."
            )
        raise DivergedError(f"round {self.round + 1} got no usable reply: {reason}")

    def _released(self, draw: str, packets: Mapping[int, Packet], seen: list[int]) -> list[Packet]:
        """The packets of a round, noised where the server does that, and what they cost those of whom something was seen."""
        protection = self.protection
        if protection is None or not protection.central:
            self._settled(draw, seen)  # what was refused was seen all the same
            return list(packets.values())
        noised = noised_sum(protection, list(packets.values()), self._context())
        self._settled(draw, None if protection.hidden else list(packets))
        return [noised]

    def _summed_securely(self, protection: Protection, chosen: list[int]) -> Packet:
        """One packet for all survivors, of whom no single reply was seen. An abandoned sum is tried again with other keys.

        Each attempt has its own noise and its own charge: once clients were asked to open a sum, it counts as opened.
        """
        assert protection.secure is not None
        tasks = self._tasks(chosen)
        reason = ""
        for attempt in range(protection.secure.attempts):
            if attempt and not self.affordable(attempt):
                reason += " And the privacy budget does not last for another attempt."
                break
            draw = self._intended(f" {attempt}", chosen)
            aggregation = SecureServer(
                terms_of(protection, self.seed, self.round, tuple(chosen), attempt), self.engine.directory
            )
            silent: dict[int, str] = {}
            try:
                summed = run_stages(aggregation, partial(self._ask, silent), tasks=tasks, complaints=silent.copy)
            except SecureSumError as error:
                log.warning("round %d: attempt %d at a secure sum failed: %s", self.round + 1, attempt + 1, error)
                reason = str(error)
                self._settled(draw, list(aggregation.survivors) if aggregation.asked_to_open else [])
                continue
            finally:
                self._tell(aggregation.reasons)
                self.ledger.refused += len(aggregation.reasons.keys() - silent.keys())
            survivors = list(summed.survivors)
            self._settled(draw, survivors)
            self.ledger.replies += len(survivors)
            self._used(survivors)
            return recovered_sum(protection, summed.total, len(survivors), self._context())
        raise SecureSumError(
            f"round {self.round + 1} was abandoned {attempt + 1} times, the last time because {reason} What was "
            "reached before is kept; go on with --resume when more clients are there, or lower secure.survivors in a new run."
        )

    def _ask(self, silent: dict[int, str], stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """One stage of a secure sum; who does not answer is added to `silent`, with what the engine knows of it."""
        answers = self._asked(requests, stage)
        silent |= {
            client: answers.complaints.get(client, "no reply came") for client in requests.keys() - answers.replies.keys()
        }
        return answers.replies

    def _asked(self, requests: Mapping[int, bytes], stage: str) -> Answers:
        """What clients answer, all bytes counted. One that lacks what its task builds on is sent more, and asked once more."""
        answers = self._moved(requests, stage)
        lost = {client: held[0] for client, reply in answers.replies.items() if (held := behind(reply)) is not None}
        if not lost or stage not in ("train", "masked", "evaluate"):
            return answers
        log.warning("round %d: %s lost what it held, and is sent what it needs", self.round + 1, _named(list(lost)))
        sent = {at: self._task(at) for at in set(lost.values())}
        rest = {client: reply for client, reply in answers.replies.items() if client not in lost}
        again = self._moved({client: _retasked(requests[client], stage, sent[at]) for client, at in lost.items()}, stage)
        return Answers(rest | again.replies, answers.complaints | again.complaints, answers.unheard | again.unheard)

    def _moved(self, requests: Mapping[int, bytes], stage: str) -> Answers:
        self.ledger.downlink_bytes += sum(map(len, requests.values()))
        came = self.engine.ask(requests, stage)
        replies = {client: reply for client, reply in came.items() if client in requests}
        self.ledger.uplink_bytes += sum(map(len, replies.values()))
        return Answers(replies, dict(self.engine.complaints), set(self.engine.unheard))

    def _used(self, clients: Collection[int]) -> None:
        """Remember whose replies of this round count, and let them know."""
        rounds = dict.fromkeys(clients, self.round)
        self.ledger.known |= rounds
        self.engine.acknowledge(rounds)

    def _intended(self, suffix: str, clients: list[int] | None) -> str:
        """Write down what noise will cost at worst, before it is drawn; its name."""
        if self.privacy is None or self.protection is None:
            return ""
        draw = f"fixed{suffix}" if self.privacy.claim.insecure else token_hex(8)
        if not self._drawn(suffix):
            owing, covered = self._owing(clients)
            charge = self.protection.charge()
            self.privacy.intend(round=self.round, draw=draw, clients=owing, covered=covered, charge=charge)
        return draw

    def _drawn(self, suffix: str) -> bool:
        """Whether this is noise from a fixed seed that was drawn before: the same whenever the round is run, charged once."""
        if self.privacy is None or not self.privacy.claim.insecure:
            return False
        return any(entry.draw == f"fixed{suffix}" for entry in self.privacy.of_round(self.round))

    def _owing(self, clients: list[int] | None) -> tuple[list[int] | None, list[int]]:
        """Of those whom a draw touches, None being everybody, who has to pay for it, and who has paid for it before."""
        if self.privacy is None or self.protection is None or self.protection.passes is None or clients is None:
            return clients, []
        return self.protection.passes.owing(self.privacy, self.seed, self.round, clients)

    def _settled(self, draw: str, touched: list[int] | None) -> None:
        """Write down what the noise did cost, and whom; None is everybody."""
        if self.privacy is None or self.protection is None:
            return
        charge = self.protection.charge(len(touched) if touched else None)
        self.privacy.settle(round=self.round, draw=draw, clients=touched, charge=charge)

    def _stepped(self, packets: list[Packet]) -> tuple[State, Packet | None]:
        """The state after this round and its update, all of it finite."""
        try:
            noise = 0.0
            if self.protection is not None:
                noise = self.protection.variance(sum(packet.clients for packet in packets))
            state, update = self.algorithm.server(self.state, packets, self.seed, noise=noise)
        except SketchfedError as error:
            raise DivergedError(f"the replies of round {self.round + 1} add up to no step: {str(error).rstrip('.')}") from error
        if not all_finite(state.replica.weights):
            raise DivergedError(f"the weights after round {self.round + 1} are no longer finite")
        return state, update

    def _tasks(self, cohort: list[int]) -> dict[int, bytes]:
        """What each client needs to be at this round, in the fewest bytes. Clients with equal needs share one object."""
        held = {client: self.ledger.known.get(client, 0 if self._shared_start else None) for client in cohort}
        made = {at: self._task(at) for at in set(held.values())}
        return {client: made[at] for client, at in held.items()}

    def _task(self, at: int | None) -> bytes:
        """Nothing new, the missed updates, or the whole model, for a client whose replica is at round `at`."""
        if at == self.round:
            return pack(Packet(kind="begin", arrays={}, scalars={"round": self.round}))
        missed = self.round - at if at is not None else len(self.ledger.updates) + 1
        if missed < 0 or missed > len(self.ledger.updates):
            return self._whole()
        replay = b"".join(self.ledger.updates[-missed:])
        return replay if len(replay) < self._whole_size() else self._whole()

    def _remember(self, update: bytes) -> None:
        """Keep an update for those who missed it, and forget those that a whole model is cheaper than.

        Snapshots of adaptive algorithms shrink and grow again, by less than half.
        """
        updates, most = self.ledger.updates, self._whole_size() * (2 if self.algorithm.adaptive else 1)
        updates.append(update)
        while sum(map(len, updates)) > most:
            updates.pop(0)

    def _whole_size(self) -> int:
        """The bytes of a whole model, without packing it."""
        return packed_size(self.algorithm.snapshot(self.state.replica, self.seed))

    def _whole(self) -> bytes:
        if self._packed[0] != self.round:
            self._packed = self.round, pack(self.algorithm.snapshot(self.state.replica, self.seed))
        return self._packed[1]

    def _accepted(self, chosen: Sequence[int], answers: Answers) -> tuple[dict[int, Packet], dict[int, str]]:
        """The packets that can be used, in the order of clients, and why others cannot: they are dropped, not fatal."""
        packets: dict[int, Packet] = {}
        norms: dict[int, float] = {}
        reasons: dict[int, str] = {}
        for client in chosen:
            if client not in answers.replies:
                reasons[client] = answers.complaints.get(client, "no reply came")
                continue
            try:
                packets[client], norm = self._read(answers.replies[client], client)
                if norm is not None:
                    norms[client] = norm
            except SketchfedError as error:
                self.ledger.refused += 1
                reasons[client] = str(error)
        # Where the server adds the noise, replies are clipped; to leave one out for the others' sake would tell of it.
        central = self.protection is not None and self.protection.central
        for client, reason in wild(norms, 0.0 if central else self.algorithm.screening).items():
            del packets[client]
            self.ledger.refused += 1
            reasons[client] = reason
        self.ledger.replies += len(packets)
        self._used(packets)
        self._tell(reasons)
        return packets, reasons

    def _read(self, reply: bytes, client: int) -> tuple[Packet, float | None]:
        """The packet of a reply, if it is one that this round can use, and its norm."""
        packet = unpack(reply)
        if packet.scalars.get("round") != self.round:
            raise WireError(f"it is for round {packet.scalars.get('round')!r}, not {self.round}.")
        if packet.clients != 1:  # who claims to speak for many would outweigh all others in the mean
            raise WireError(f"it claims to stand for {packet.clients:,} clients; a client speaks for itself.")
        return packet, self.algorithm.check(packet, len(self.state.replica.weights), self._context(client))

    def _context(self, client: int = 0) -> RoundContext:
        return RoundContext(round=self.round, seed=self.seed, client=client, replica=self.state.replica)

    def _tell(self, reasons: Mapping[int, str]) -> None:
        """Log who is left out of this round, a line a reason."""
        for reason in dict.fromkeys(reasons.values()):
            named = _named([client for client, own in reasons.items() if own == reason])
            log.warning("round %d goes on without %s: %s", self.round + 1, named, reason)


def _named(clients: list[int]) -> str:
    return "client " + ", ".join(map(str, clients[:5])) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")


def _retasked(request: bytes, stage: str, task: bytes) -> bytes:
    """The same request with another task: in a secure sum, tasks follow sealed shares."""
    return bytes(split(request, most=MOST_UPDATES)[0]) + task if stage == "masked" else task


def wild(norms: Mapping[int, float], ratio: float) -> dict[int, str]:
    """Clients whose norm is not finite, or more than `ratio` times the median of three or more, and what is said of them.

    One reply of 1e30 makes the mean worthless, and a bound for all runs does not exist: how long updates are depends on the
    model and shrinks as it learns. The others of the round tell, as long as most of them are honest. Where the median is zero
    nothing can be told.
    """
    reasons = {client: "the norm of what it sent is not finite." for client, norm in norms.items() if not math.isfinite(norm)}
    finite = {client: norm for client, norm in norms.items() if client not in reasons}
    middle = median([*finite.values(), *(math.inf for _ in reasons)]) if len(norms) >= 3 else 0.0
    if ratio and 0 < middle < math.inf:
        reasons |= {
            client: f"what it sent has norm {norm:.3g}, more than {ratio:g} times the median {middle:.3g} of this round."
            for client, norm in finite.items()
            if norm > ratio * middle
        }
    return reasons
