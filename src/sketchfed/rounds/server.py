"""The server's side of a run: it chooses clients, sends tasks, checks replies, and counts bytes."""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from secrets import token_hex

from torch import Tensor

from sketchfed.algorithms import Algorithm, RoundContext, State, cohort
from sketchfed.algorithms.forms import seen
from sketchfed.errors import (
    FAILED,
    RAISED,
    DivergedError,
    FaultyPartError,
    NoReplyError,
    SecureSumError,
    SketchfedError,
    StorageError,
    WireError,
)
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.privacy.sampling import poisson_sample
from sketchfed.protection import Protection, SecureSums, combined
from sketchfed.rounds.engine import Engine, Requests
from sketchfed.rounds.participant import behind, premise_of, retasked
from sketchfed.rounds.screening import wild
from sketchfed.rounds.secure_rounds import SecureRounds, in_sums
from sketchfed.rounds.stepping import checked_step
from sketchfed.rounds.tally import Answers, Tally
from sketchfed.secure import run_sums
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, pack, packed_size, unpack

log = logging.getLogger("sketchfed")


class Server:
    """Runs rounds over an engine. Between rounds it holds only `state`, `tally` and `privacy_ledger`."""

    def __init__(
        self,
        protection: Protection,
        engine: Engine,
        state: State,
        seed: PublicSeed,
        *,
        shared_start: bool,
    ) -> None:
        """`shared_start` says whether clients can rebuild the first weights themselves, so that nobody has to send them."""
        self.protection, self.engine, self.state, self.seed = protection, engine, state, seed
        self.tally = Tally()
        self.privacy_ledger = None if protection.budget is None else PrivacyLedger(protection.budget.claim)
        self.patience = 1
        """How many times the server asks for a round before it gives up because nobody answers."""
        self._shared_start = shared_start
        self._sums = SecureRounds(seed)
        self._packed, self._sized = (-1, b""), (-1, 0)
        self._largest = 0
        self._strayed: set[int] = set()
        """Clients that came to another replica than the server. They are sent whole models from then on."""

    @property
    def algorithm(self) -> Algorithm:
        return self.protection.algorithm

    @property
    def round(self) -> int:
        """The number of completed rounds."""
        return self.state.replica.round

    def cohort(self) -> list[int]:
        """The clients of the next round. If cohorts are hidden, each client takes part with probability `participation`."""
        population = self.engine.clients
        if self.protection.hidden:
            secret = self.protection.secret(self.round, "cohort")
            return [int(client) for client in poisson_sample(secret, population, chance=self.algorithm.participation)]
        return cohort(self.seed, self.round, population=population, count=self.algorithm.planned(population))

    @property
    def epsilon(self) -> float | None:
        """The ε that has been spent so far. None for a run without calibrated noise."""
        return None if self.privacy_ledger is None else self.privacy_ledger.epsilon()

    def affordable(self, attempt: int = 0) -> bool:
        """Whether the privacy budget allows one more round, or another attempt at it."""
        budget = self.protection.budget
        if self.privacy_ledger is None or budget is None or budget.settings.epsilon is None:
            return True
        suffix = f" {attempt}" if isinstance(self.protection, SecureSums) else ""
        owing, _ = ([], []) if self._drawn(suffix) else self._owing(None if self.protection.hidden else self.cohort())
        return self.privacy_ledger.epsilon(also=(owing, self.protection.charge())) <= budget.settings.epsilon

    def advance(self) -> None:
        """Run one round.

        The largest possible privacy cost is written down before anything is sent, and the actual cost afterwards.
        """
        chosen, whole = self.cohort(), 0 if self.algorithm.incremental else len(self._whole())
        if isinstance(self.protection, SecureSums):
            packets = self._summed_securely(self.protection, chosen)
        else:
            packets = self._gathered(chosen)
        self.state, update = self._stepped(packets)
        packed = None if update is None else pack(update.stamped(round=self.round - 1))
        self.tally.broadcast_bytes += whole if packed is None else len(packed)
        if packed is not None:
            self._remember(packed)

    @property
    def measured(self) -> dict[str, float | None]:
        """What this kind of server measures in a round, besides bytes and replies. Each is a column of the metrics."""
        return {}

    def under_way(self) -> dict[str, Tensor] | None:
        """What is between the server and its clients after a round, as named tensors. Empty if all have answered.

        None if it is not known, so that the run could not continue from here.
        """
        return {}

    def go_on(self, under_way: Mapping[str, Tensor]) -> None:
        """Continue after a checkpoint with what was under way. Raises `StorageError` if it cannot be that of this run."""
        if under_way:
            raise StorageError(
                "the checkpoint holds updates that are under way, and in this run all clients answer before a step. It was "
                "replaced; start the run anew in another folder."
            )

    def survey(self, clients: Sequence[int]) -> Answers:
        """Ask clients to evaluate the current model, and return what they answered. Nothing else of the run depends on it."""
        return self._asked(self._tasks(list(clients)), "evaluate")

    def _gathered(self, chosen: list[int]) -> list[Packet]:
        """Return the packets of the round's clients, ready to decode. If the server adds the noise, it is one packet for all.

        If nobody answers, the server asks again, provided that clients are remote and may come back. Each attempt has new
        noise and its own charge.
        """
        hidden = self.protection.hidden
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
        if self.patience > 1 and not answers.replies:
            raise NoReplyError(
                f"round {self.round + 1} was asked for {attempt + 1} times, and nobody answered: {_first(reasons)[1]}. All "
                "completed rounds are kept. Continue with --resume when clients are available."
            )
        raise self._unusable(reasons)

    def _unusable(self, reasons: Mapping[int, str]) -> SketchfedError:
        """The error of a round in which no client sent anything that the server can use."""
        first, reason = _first(reasons)
        if self.patience == 1 and all(why.startswith((RAISED, FAILED)) for why in reasons.values()):
            return NoReplyError(
                f"all {len(reasons):,} clients of round {self.round + 1} failed, client {first} because {reason}. Correct the "
                "model, the loss or the data. A run with a folder can then be resumed."
            )
        return DivergedError(f"round {self.round + 1} got no usable reply: {reason}")

    def _released(self, draw: str, packets: Mapping[int, Packet], seen: list[int]) -> list[Packet]:
        """Return the round's packets, with noise if the server adds it. Charge the clients whose reply may have been seen."""
        protection = self.protection
        combined = protection.combine(list(packets.values()), self._context())
        if not protection.central:
            self._settled(draw, seen)  # the server has seen refused replies too
        else:
            self._settled(draw, None if protection.hidden else list(packets))
        return combined

    def _summed_securely(self, protection: SecureSums, chosen: list[int]) -> list[Packet]:
        """Return a packet for each group of clients. The server sees no single reply.

        If no sum could be opened, all are tried again with new keys, and without the clients that made a sum fail. Each attempt
        has its own noise and its own charge. Once clients have been asked to open a sum, it counts as opened.
        """
        premise = premise_of(seen(self.algorithm.given(self.seed, self.round), self.state.replica), self.engine.agreed)
        reason, blamed = "", dict[int, str]()
        for attempt in range(protection.settings.attempts):
            if attempt and not self.affordable(attempt):
                reason += " The privacy budget does not allow another attempt."
                break
            draw = self._intended(f" {attempt}", chosen)
            directory, tasks = self.engine.directory, self._tasks(chosen)
            servers = self._sums.begun(protection, self.round, attempt, directory, premise=premise, without=blamed)
            following = self._sums.following(protection, self.round, directory)
            silent: dict[int, str] = {}
            ask = partial(self._ask, silent)
            try:
                opened = run_sums(servers, ask, following=following, tasks=tasks, complaints=silent.copy)
            except SecureSumError as error:
                log.warning("round %d: attempt %d at a secure sum failed: %s", self.round + 1, attempt + 1, error)
                reason = str(error)
                if silent:
                    reason += " The first client that did not answer is client {}: {}.".format(*_first(silent))
                self._settled(draw, in_sums(servers))
                continue
            finally:
                for server in servers:
                    blamed |= server.blamed
                    self._strayed |= set(server.strayed)
                    self.tally.known |= dict.fromkeys(server.strayed, -1)
                    self._tell(server.reasons)
                    self.tally.refused += len(server.reasons.keys() - silent.keys())
            fewest = min(len(summed.survivors) for summed in opened.values())
            whole = len(opened) == len(servers)
            self._settled(draw, in_sums(servers), survivors=fewest if whole else None)
            survivors = [client for summed in opened.values() for client in summed.survivors]
            self.tally.replies += len(survivors)
            self._used(sorted(survivors))
            return [protection.opened(each.total, len(each.survivors), self._context()) for each in opened.values()]
        raise SecureSumError(
            f"round {self.round + 1} was abandoned {attempt + 1} times, the last time because {reason} All completed rounds "
            "are kept. Continue with --resume when more clients are available, or lower secure.survivors in a new run."
        )

    def _ask(self, silent: dict[int, str], stage: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Run one stage of a secure sum. Clients that do not answer are added to `silent`, with the reason if it is known."""
        answers = self._asked(requests, stage)
        silent |= {
            client: answers.complaints.get(client, "no reply came") for client in requests.keys() - answers.replies.keys()
        }
        return answers.replies

    def _asked(self, requests: Mapping[int, bytes], stage: str) -> Answers:
        """Ask clients, count all bytes, and return the answers.

        A client that does not hold the replica on which its task builds is sent what it needs, and asked once more.
        """
        answers = self._moved(requests, stage)
        lost = {client: held[0] for client, reply in answers.replies.items() if (held := behind(reply)) is not None}
        if not lost or stage not in ("train", "masked", "evaluate"):
            return answers
        log.warning("round %d: %s lost what it held, and is sent what it needs", self.round + 1, _named(list(lost)))
        sent = {at: self._task(at) for at in set(lost.values())}
        rest = {client: reply for client, reply in answers.replies.items() if client not in lost}
        again = self._moved({who: retasked(requests.get(who, b""), stage, sent[at]) for who, at in lost.items()}, stage)
        return Answers(rest | again.replies, answers.complaints | again.complaints, answers.unheard | again.unheard)

    def _moved(self, requests: Mapping[int, bytes], stage: str) -> Answers:
        asked, down = set(requests), sum(map(len, requests.values()))
        came = self.engine.ask(requests, stage)
        replies = {client: reply for client, reply in came.items() if client in asked}
        self.tally.count(down, sum(map(len, replies.values())), evaluation=stage == "evaluate")
        return Answers(replies, dict(self.engine.complaints), set(self.engine.unheard))

    def _used(self, clients: Collection[int]) -> None:
        """Remember the clients whose replies this round uses, and acknowledge them."""
        rounds = dict.fromkeys(clients, self.round)
        self.tally.known |= rounds
        self.engine.acknowledge(rounds)

    def _intended(self, suffix: str, clients: list[int] | None) -> str:
        """Write down the worst-case cost of a noise draw before it is drawn, and return the name of the draw."""
        if self.privacy_ledger is None:
            return ""
        draw = f"fixed{suffix}" if self.privacy_ledger.claim.insecure else token_hex(8)
        if not self._drawn(suffix):
            owing, covered = self._owing(clients)
            charge = self.protection.charge()
            self.privacy_ledger.intend(round=self.round, draw=draw, clients=owing, covered=covered, charge=charge)
        return draw

    def _drawn(self, suffix: str) -> bool:
        """Whether this noise comes from a fixed seed and was drawn before. It is the same each time, so it is charged once."""
        if self.privacy_ledger is None or not self.privacy_ledger.claim.insecure:
            return False
        return any(entry.draw == f"fixed{suffix}" for entry in self.privacy_ledger.of_round(self.round))

    def _owing(self, clients: list[int] | None) -> tuple[list[int] | None, list[int]]:
        """Split the clients of a draw (None means all) into those that must pay for it and those that have already paid."""
        passes = None if self.protection.budget is None else self.protection.budget.passes
        if self.privacy_ledger is None or passes is None or clients is None:
            return clients, []
        return passes.owing(self.privacy_ledger, self.seed, self.round, clients)

    def _settled(self, draw: str, touched: list[int] | None, *, survivors: int | None = None) -> None:
        """Write down the actual cost of a noise draw and the clients that it concerns. None stands for all clients.

        `survivors` is the number of clients in the smallest secure sum. If it is not known, the worst case is charged.
        """
        if self.privacy_ledger is None:
            return
        charge = self.protection.charge(survivors)
        self.privacy_ledger.settle(round=self.round, draw=draw, clients=touched, charge=charge)

    def _stepped(self, packets: list[Packet]) -> tuple[State, Packet | None]:
        """Return the state after this round and the update to broadcast. Weights that are not finite raise an error."""
        try:
            packets = combined(self.protection, packets, self._context())
            noise = self.protection.variance(sum(packet.clients for packet in packets))
            return checked_step(self.algorithm, self.state, packets, self.seed, noise=noise)
        except (DivergedError, FaultyPartError):
            raise
        except SketchfedError as error:
            raise DivergedError(
                f"the server cannot make a step from the replies of round {self.round + 1}: {str(error).rstrip('.')}"
            ) from error

    def _tasks(self, cohort: list[int]) -> Requests:
        """The smallest task that brings each client to this round. Clients with equal needs share one object."""
        held = {client: self.tally.known.get(client, 0 if self._shared_start else None) for client in cohort}
        held |= dict.fromkeys(self._strayed & held.keys())
        made = {at: self._task(at) for at in set(held.values())}
        self._packed = (-1, b"")  # from here on, a whole model belongs to the requests
        return Requests({client: made[at] for client, at in held.items()})

    def _task(self, at: int | None) -> bytes:
        """The task for a client whose replica is at round `at`: nothing new, the missed updates, or the whole model."""
        if at == self.round:
            return pack(Packet(kind="begin", arrays={}, scalars={"round": self.round}))
        missed = self.round - at if at is not None else len(self.tally.updates) + 1
        if missed < 0 or missed > len(self.tally.updates):
            return self._whole()
        replay = b"".join(self.tally.updates[-missed:])
        return replay if len(replay) < self._whole_size() else self._whole()

    def _remember(self, update: bytes) -> None:
        """Keep an update for clients that missed it. Drop the oldest ones when all together exceed a whole model.

        With some algorithms, whole models shrink and grow again, so the largest one so far is the limit.
        """
        updates, self._largest = self.tally.updates, max(self._largest, self._whole_size())
        updates.append(update)
        while sum(map(len, updates)) > self._largest:
            updates.pop(0)

    def _whole_size(self) -> int:
        """The size of a whole model in bytes, computed without packing it."""
        if self._sized[0] != self.round:
            self._sized = self.round, packed_size(self._snapshot())
        return self._sized[1]

    def _snapshot(self) -> Packet:
        return self.algorithm.given(self.seed, self.round).packet(self.state.replica)

    def _whole(self) -> bytes:
        if self._packed[0] != self.round:
            self._packed = self.round, pack(self._snapshot())
        return self._packed[1]

    def _accepted(self, chosen: Sequence[int], answers: Answers) -> tuple[dict[int, Packet], dict[int, str]]:
        """Return the usable packets, in the order of the clients, and why others are dropped. A bad reply is not fatal."""
        packets: dict[int, Packet] = {}
        norms: dict[int, float] = {}
        reasons: dict[int, str] = {}
        for client in chosen:
            if client not in answers.replies:
                reasons[client] = answers.complaints.get(client, "no reply came")
                continue
            try:
                packets[client], norm = self._read(answers.replies[client], self._context(client))
                if norm is not None:
                    norms[client] = norm
            except SketchfedError as error:
                self.tally.refused += 1
                reasons[client] = str(error)
        # If the server adds the noise, replies are clipped anyway, and leaving one out because of others would reveal it.
        central = self.protection.central
        for client, reason in wild(norms, 0.0 if central else self.algorithm.screening).items():
            del packets[client]
            self.tally.refused += 1
            reasons[client] = reason
        self.tally.replies += len(packets)
        self._used(packets)
        self._tell(reasons)
        return packets, reasons

    def _read(self, reply: bytes, context: RoundContext) -> tuple[Packet, float | None]:
        """Return the packet of a reply and its norm. Raise an error if it is not one of this client in this round."""
        packet = unpack(reply)
        if packet.scalars.get("round") != context.round:
            raise WireError(f"it is for round {packet.scalars.get('round')!r}, not {context.round}.")
        if packet.clients != 1:  # a packet that claims to stand for many would outweigh all others
            raise WireError(f"it claims to stand for {packet.clients:,} clients; a reply must stand for one client.")
        return packet, self.algorithm.check(packet, len(self.state.replica.weights), context)

    def _context(self, client: int = 0) -> RoundContext:
        return RoundContext(round=self.round, seed=self.seed, client=client, replica=self.state.replica)

    def _tell(self, reasons: Mapping[int, str]) -> None:
        """Log the clients that are left out of this round, one line per reason."""
        for reason in dict.fromkeys(reasons.values()):
            named = _named([client for client, own in reasons.items() if own == reason])
            log.warning("round %d goes on without %s: %s", self.round + 1, named, reason)


def _named(clients: list[int]) -> str:
    return "client " + ", ".join(map(str, clients[:5])) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")


def _first(reasons: Mapping[int, str]) -> tuple[int, str]:
    """The lowest client number, and that client's reason without its full stop."""
    client = min(reasons)
    return client, reasons[client].rstrip(".")
