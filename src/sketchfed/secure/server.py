"""The server's part in a secure sum: it passes keys and sealed shares on, adds masked values, and opens the sum."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from sketchfed.errors import SecureSumError, SketchfedError, WireError
from sketchfed.secure.client import NO_PREMISE, PREMISE, check_premise, consent_text
from sketchfed.secure.dealing import Accusation, Dealing, Secret, self_commitment, to_accusations
from sketchfed.secure.keys import KEY, SIGNATURE, Advertised, KeyAgreement, is_signed
from sketchfed.secure.masks import from_words, to_words, word_for
from sketchfed.secure.messages import (
    STAGES,
    Stage,
    body_of,
    flagged,
    flags,
    laid_out,
    message,
    reply_kind,
    request_kind,
    taken_apart,
)
from sketchfed.secure.recovery import Recovery
from sketchfed.secure.shamir import SHARE
from sketchfed.secure.terms import Terms
from sketchfed.secure.transcript import Roll, Transcript
from sketchfed.wire import Bits, Packet, bits_named, pack, unpack

_T = TypeVar("_T")
_NOBODY: Mapping[int, str] = MappingProxyType({})
_PROBE = KeyAgreement(bytes(range(KEY)))  # no secret: it only finds keys of small order


class SecureSum(NamedTuple):
    """The result of a secure sum: the integers `(size,)` modulo 2^bits, and the clients that are in them."""

    total: Tensor
    survivors: tuple[int, ...]


class SecureServer:
    """One secure sum, from the first request to the total.

    `requests` are those of `stage`. `receive` takes the replies and moves on. A client whose reply is missing or unacceptable
    is left out from then on, and `reasons` says why. If it has already sent its masked values, they stay in the sum. If too few
    clients are left, or a secret can no longer be opened, `receive` raises `SecureSumError`. If this can be foreseen, it
    happens before anybody is asked to reveal anything. A client that dealt its shares wrongly is found, and the stage "recover"
    does without it.

    `directory` holds the public identities of clients. The server uses it to check what clients will check anyway. Clients in
    `without` are asked nothing, for the reasons given: they made another attempt at the same sum fail. Clients whose premise is
    another than `premise` are left out, however many they are: what clients say does not decide who is in the sum.
    """

    def __init__(
        self,
        terms: Terms,
        directory: Mapping[int, bytes],
        *,
        without: Mapping[int, str] = _NOBODY,
        premise: bytes = NO_PREMISE,
    ) -> None:
        check_premise(premise)
        self.terms = terms
        self.premise = premise
        """The digest of what clients are sent to compute their values from. It must be known when masked values arrive."""
        self.stage: Stage | None = "keys"
        self.reasons: dict[int, str] = {client: without[client] for client in terms.clients if client in without}
        self.strayed: tuple[int, ...] = ()
        """Clients that computed their values from something else than they were sent."""
        self.blamed: dict[int, str] = {}
        """Why a sum failed that might have been opened without these clients."""
        self.requests: dict[int, bytes] = dict.fromkeys(
            (client for client in terms.clients if client not in without), pack(terms.packet)
        )
        self.result: SecureSum | None = None
        self.asked_to_open = False
        """Whether clients were asked to open the sum. From then on they must assume that it was opened."""
        self._directory = directory
        self._keys: dict[int, Advertised] = {}
        self._transcript = Transcript(terms, b"")
        self._dealt: dict[int, Dealing] = {}
        self._opened: dict[int, list[int]] = {}
        self._values: dict[int, Bits] = {}
        self._premises: dict[int, bytes] = {}
        self._list = b""
        self._consents: dict[int, bytes] = {}
        self._seeds: dict[int, bytes] = {}
        self._left: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, bytes]] = {}
        self._wrong: dict[int, Accusation | None] = {}
        self._pairs: dict[int, dict[int, bytes]] = {}

    @property
    def survivors(self) -> tuple[int, ...]:
        """The clients whose masked values are in the sum, if it is opened."""
        return tuple(sorted(self._values))

    @property
    def present(self) -> tuple[int, ...]:
        """The clients that are asked in the current stage."""
        return tuple(self.requests)

    def receive(self, replies: Mapping[int, bytes], complaints: Mapping[int, str] = _NOBODY) -> None:
        """Take the replies to `requests`. `complaints` says what the transport knows about clients that did not answer."""
        if self.stage is None:
            raise SecureSumError("this sum is finished or was abandoned; start another.")
        stage, asked, self.requests = self.stage, list(self.requests), {}
        self.stage = None  # until the next one is settled: an abandoned sum stays abandoned
        read, go_on = {
            "keys": (self._read_keys, self._ask_shares),
            "shares": (self._read_shares, self._ask_masked),
            "masked": (self._read_masked, self._ask_consent),
            "consent": (self._read_consent, self._ask_unmask),
            "unmask": (self._read_unmask, self._open),
            "recover": (self._read_recover, self._recovered),
        }[stage]
        for client in asked:
            if client not in replies:
                self._leave_out([client], stage, complaints.get(client, "no reply came"))
                continue
            try:
                read(client, unpack(replies[client]))
            except SketchfedError as error:
                self._leave_out([client], stage, str(error))
        self.requests = go_on()
        following = STAGES.index(stage) + 1 if stage in STAGES else len(STAGES)
        self.stage = STAGES[following] if following < len(STAGES) else "recover" if self.requests else None
        self.asked_to_open |= self.stage == "unmask"

    # keys ------------------------------------------------------------------------------------------------------------

    def _read_keys(self, client: int, reply: Packet) -> None:
        body = body_of(reply, reply_kind("keys"), self.terms)
        _check_length(body, Advertised.size)
        keys = Advertised.from_bytes(body).check(self.terms, client, self._directory)
        for key in (keys.mask, keys.seal):
            _PROBE.with_(key)
        self._keys[client] = keys

    def _ask_shares(self) -> dict[int, bytes]:
        present = self._connected(self._keys, "keys")
        self._check_enough(present, "sent usable keys")
        self._keys = {client: self._keys[client] for client in present}
        shown = {client: keys.to_bytes() for client, keys in self._keys.items()}
        roll = Roll(shown)
        self._transcript = Transcript(self.terms, roll.root)
        return {
            client: self._request("shares", roll.proof(client) + laid_out(*self._near(client, shown))) for client in present
        }

    # shares ----------------------------------------------------------------------------------------------------------

    def _read_shares(self, client: int, reply: Packet) -> None:
        neighbours, asked = self._near(client, self._keys)
        dealing = Dealing.from_bytes(body_of(reply, reply_kind("shares"), self.terms), neighbours)
        if dealing.parts.keys() != asked.keys():
            raise WireError(
                f"it dealt shares to {len(dealing.parts)} neighbours, not to the {len(asked)} whose keys it was sent."
            )
        if not dealing.is_signed_by(self._transcript, client, self._directory[client]):
            raise SecureSumError("what it dealt is not signed by it for this sum.")
        self._dealt[client] = dealing

    def _ask_masked(self) -> dict[int, bytes]:
        dealers = self._connected(self._dealt, "shares")
        self._check_enough(dealers, "dealt shares")
        self._dealt = {client: self._dealt[client] for client in dealers}
        requests = {}
        for client in dealers:
            neighbours, near = self._near(client, self._dealt)
            requests[client] = self._request("masked", laid_out(neighbours, {p: near[p].parts[client] for p in near}))
        return requests

    # masked ----------------------------------------------------------------------------------------------------------

    def _read_masked(self, client: int, reply: Packet) -> None:
        body = body_of(reply, reply_kind("masked"), self.terms)
        if len(body) < PREMISE:
            raise WireError(f"{len(body)} bytes of its body arrived, and {PREMISE} say from what it computed its values.")
        opened = flagged(body[PREMISE:], self.terms.neighbours_of(client))
        shape = (self.terms.size,)
        bits_named(reply, "values", shape=shape, bits=self.terms.bits)  # checked now; read when they are added up
        values = reply.arrays["values"]
        if isinstance(values, Bits):
            self._values[client], self._opened[client], self._premises[client] = values, opened, body[:PREMISE]

    def _ask_consent(self) -> dict[int, bytes]:
        self._leave_other_premises()
        self._leave_unopened()
        self._check_enough(self._values, "sent masked values of one model" if self.strayed else "sent masked values")
        self._list = flags(self.terms.clients, self._values)
        if gap := self.terms.gap(self._values):
            raise SecureSumError(
                f"of {gap.width} clients in a row on the ring, {gap.left} sent masked values, and {gap.needed} must, or the "
                f"ring might fall apart. The sum is abandoned and nothing was revealed; {self._advice}"
            )
        survivors = frozenset(self._values)
        lonely = {client for client in survivors if self._count_near(client, survivors) + 1 < self.terms.threshold}
        self._leave_out(lonely, "masked", "too few of its neighbours are left for it to go on.")
        request = self._request("consent", self._list)
        return {client: request for client in self._values if client not in lonely}

    def _leave_other_premises(self) -> None:
        """Leave clients out whose values follow from something else than they were sent: their masks do not cancel."""
        self.strayed = tuple(client for client in self._values if self._premises[client] != self.premise)
        self._leave_out(self.strayed, "masked", "it computed its values from another model, or with other settings.")
        for client in self.strayed:
            del self._values[client]

    def _leave_unopened(self) -> None:
        """Leave clients out whose shares too few could open: the others tell their masks with them one by one.

        If such a client stayed in the sum and fell silent at the end, its seed would be lost, and the sum with it. But a reply
        can also lie about what could not be opened. So one client's word alone does not count, and neither does that of a
        client that complains of more dealers than there are complaints about this one. Nobody is left out if the sum would
        then be over too few: it may be opened with that client, and cannot be without it.
        """
        accusers = {dealer: self._accusers(dealer) for dealer in self._values}
        complaints = Counter(chain.from_iterable(accusers.values()))
        for dealer in sorted(accusers, key=lambda dealer: -len(accusers[dealer])):
            believed = [peer for peer in accusers[dealer] if complaints[peer] <= len(accusers[dealer])]
            count = self._count_near(dealer, self._values.keys()) - (len(believed) if len(believed) > 1 else 0)
            if count < self.terms.threshold and len(self._values) > self.terms.least:
                self._leave_out([dealer], "masked", f"only {count} of its neighbours could open the shares that it dealt.")
                del self._values[dealer]

    def _accusers(self, dealer: int) -> list[int]:
        """The neighbours that sent values and say that they could not open the shares of this dealer."""
        return [peer for peer in self._near(dealer, self._values)[1] if dealer not in self._opened[peer]]

    # consent ---------------------------------------------------------------------------------------------------------

    def _read_consent(self, client: int, reply: Packet) -> None:
        body = body_of(reply, reply_kind("consent"), self.terms)
        _check_length(body, SIGNATURE)
        if not is_signed(consent_text(self._transcript, self._list), body, self._directory[client]):
            raise SecureSumError("its signature is not one of this list of survivors.")
        self._consents[client] = body

    def _ask_unmask(self) -> dict[int, bytes]:
        """Pass on enough signatures of the committee, if the answers can be enough."""
        signed = {member: self._consents[member] for member in self.terms.committee if member in self._consents}
        if len(signed) < self.terms.threshold:
            raise SecureSumError(
                f"{len(signed)} of the committee of {len(self.terms.committee)} clients signed the list of survivors, and "
                f"{self.terms.threshold} are needed. The sum is abandoned and nothing was revealed; {self._advice}"
            )
        for client in self._to_open(told=self._consents):
            accusers = self._accusers(client) if client in self._values else []  # masks with others are told one by one
            holders = self._count_near(client, self._consents.keys() - set(accusers))
            if holders < self.terms.threshold:
                if accusers:
                    self.blamed[client] = (
                        f"it left, and {len(accusers)} of its neighbours could not open the shares that it dealt"
                    )
                raise SecureSumError(
                    f"a secret of client {client}, which left, could not be opened: {holders} of its neighbours are left and "
                    f"{self.terms.threshold} are needed. The sum is abandoned and nothing was revealed; {self._advice}"
                )
        return {client: self._request("unmask", self._signatures_for(client, signed)) for client in sorted(self._consents)}

    def _signatures_for(self, client: int, signed: Mapping[int, bytes]) -> bytes:
        """The signatures that a client needs besides its own, and no more."""
        others = [member for member in signed if member != client]
        enough = others[: self.terms.threshold - (client in signed)]
        return laid_out(self.terms.witnesses_of(client), {member: signed[member] for member in enough})

    # unmask ----------------------------------------------------------------------------------------------------------

    def _read_unmask(self, client: int, reply: Packet) -> None:
        body = body_of(reply, reply_kind("unmask"), self.terms)
        shares = taken_apart(body[KEY:], self.terms.neighbours_of(client), SHARE)
        if self_commitment(self.terms, client, body[:KEY]) != self._keys[client].seed:
            raise SecureSumError("the seed that it told is not the one that it committed to.")
        self._seeds[client] = body[:KEY]
        self._shares[client] = shares

    def _open(self) -> dict[int, bytes]:
        """Open everything that is left to open. If somebody dealt wrongly, ask its neighbours for their masks with it."""
        recovery = Recovery(self._transcript, self._keys, self._dealt, self._shares)
        needed = self._to_open(told=self._seeds)
        self._seeds |= recovery.opened(Secret.SEED, [client for client in needed if client in self._values])
        self._left = recovery.opened(Secret.MASK, [client for client in needed if client not in self._values])
        for client, reason in recovery.reasons.items():
            self._leave_out([client], "unmask", reason)
        self._wrong = recovery.wrong
        if not self._wrong:
            return self._finish()
        return self._ask_recover(recovery.reasons)

    # recover ---------------------------------------------------------------------------------------------------------

    def _ask_recover(self, why: Mapping[int, str]) -> dict[int, bytes]:
        self._blame(why)
        for client, accusation in self._wrong.items():
            if accusation is None and client in self._values:
                raise SecureSumError(
                    f"a secret of client {client}, which left, cannot be opened: {why[client]} The sum is abandoned; ask again "
                    f"without client {client}, or plan for more dropouts."
                )
        for client in self._wrong:
            self._values.pop(client, None)
        self._check_enough(self._values, "dealt correctly and sent masked values", revealed=True)
        requests = {}
        for client in self._values:
            accused = {peer: proof for peer, proof in self._wrong.items() if peer in self.terms.neighbours_of(client)}
            if accused:
                requests[client] = self._request("recover", to_accusations(self.terms, client, accused))
        return requests or self._finish()

    def _blame(self, why: Mapping[int, str]) -> None:
        """Note who is at fault, should the sum fail: not those who just left, but wrong dealers and holders of wrong shares.

        A dealer is at fault if its secret is lost and a neighbour complained about it. A holder is at fault if it keeps back
        shares that it said it could open.
        """
        for client, accusation in self._wrong.items():
            if accusation is not None or (client in self._values and self._accusers(client)):
                self.blamed[client] = why[client]
        for holder, shares in self._shares.items():
            kept_back = (self._wrong.keys() & set(self._opened[holder])) - shares.keys()
            if holder in why or kept_back:
                self.blamed[holder] = why.get(holder, "it keeps back shares that it said it could open")

    def _read_recover(self, client: int, reply: Packet) -> None:
        neighbours, accused = self._near(client, self._wrong)
        keys = taken_apart(body_of(reply, reply_kind("recover"), self.terms), neighbours, KEY)
        if keys.keys() != accused.keys():
            raise WireError(f"it told {len(keys)} keys, and was asked for {len(accused)}.")
        self._pairs[client] = keys

    def _recovered(self) -> dict[int, bytes]:
        silent = {
            client: accused
            for client in self._values
            if client not in self._pairs and (accused := self._near(client, self._wrong)[1])
        }
        self.blamed |= dict.fromkeys(silent, "it did not tell its masks with a client that dealt wrongly")
        if silent:
            client, accused = next(iter(silent.items()))
            raise SecureSumError(
                f"client {client} did not tell its masks with client {min(accused)}, which dealt wrongly. The sum is "
                f"abandoned; ask again without client {min(accused)}."
            )
        return self._finish()

    def _finish(self) -> dict[int, bytes]:
        words = np.zeros(self.terms.size, word_for(self.terms.bits))
        for values in self._values.values():
            words += to_words(values.values, self.terms.bits)
        recovery = Recovery(self._transcript, self._keys, self._dealt, self._shares)
        seeds = {client: self._seeds[client] for client in self._values}
        recovery.unmask(words, seeds=seeds, left=self._left, pairs=self._pairs, premise=self.premise)
        self.result = SecureSum(from_words(words, self.terms.bits), self.survivors)
        return {}

    # -----------------------------------------------------------------------------------------------------------------

    def _to_open(self, *, told: Collection[int]) -> list[int]:
        """The clients whose secrets must come from shares: survivors that did not reveal their seed, and those that left."""
        told, survivors = frozenset(told), frozenset(self._values)
        silent = [client for client in self._values if client not in told]
        left = [client for client in self._dealt if client not in survivors]
        return silent + [client for client in left if not survivors.isdisjoint(self.terms.neighbours_of(client))]

    def _near(self, client: int, of: Mapping[int, _T]) -> tuple[tuple[int, ...], dict[int, _T]]:
        """The neighbours of a client, and what is known of them."""
        neighbours = self.terms.neighbours_of(client)
        return neighbours, {peer: of[peer] for peer in neighbours if peer in of}

    def _count_near(self, client: int, among: Set[int]) -> int:
        """How many neighbours of a client are among some clients."""
        return sum(peer in among for peer in self.terms.neighbours_of(client))

    def _connected(self, clients: Iterable[int], stage: Stage) -> list[int]:
        """The clients that have enough neighbours among themselves to go on."""
        left = set(clients)
        while few := {client for client in left if self._count_near(client, left) + 1 < self.terms.threshold}:
            self._leave_out(few, stage, "too few of its neighbours are left to open its secrets.")
            left -= few
        return sorted(left)

    def _check_enough(self, clients: Collection[int], did: str, *, revealed: bool = False) -> None:
        if len(clients) < self.terms.least:
            told = "" if revealed else " and nothing was revealed"
            raise SecureSumError(
                f"{len(clients):,} of {len(self.terms.clients):,} clients {did}, the terms ask for {self.terms.least:,}. "
                f"The sum is abandoned{told}; {self._advice}"
            )

    def _leave_out(self, clients: Iterable[int], stage: Stage, reason: str) -> None:
        for client in clients:
            self.reasons.setdefault(client, f"{stage}: {reason}")

    def _request(self, stage: Stage, body: bytes) -> bytes:
        return pack(message(request_kind(stage), self.terms, body))

    @property
    def _advice(self) -> str:
        return "ask again, or plan for more dropouts."


def _check_length(body: bytes, length: int) -> None:
    if len(body) != length:
        raise WireError(f"{length} bytes should be in its body, {len(body):,} arrived.")
