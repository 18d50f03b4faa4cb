"""Honest clients as nodes keep them, and a server that makes of their replies whatever requests a script asks for."""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256

import torch
from knowledge import Knowledge, Row
from torch import Tensor

from sketchfed.errors import SecureSumError, SketchfedError, WireError
from sketchfed.secure import Identity, SecureClient, Terms, advertise, share, sum_of
from sketchfed.secure.client import consent_text
from sketchfed.secure.dealing import DEALT, Accusation, Dealing, Secret, to_accusations
from sketchfed.secure.keys import SIGNATURE, Advertised
from sketchfed.secure.messages import flags, laid_out, message, request_kind
from sketchfed.secure.transcript import Roll, Transcript, read_proof
from sketchfed.seeds import SecretSeed
from sketchfed.wire import Packet, pack, unpack

SECRET = SecretSeed.insecure(7)


class Device:
    """An honest client with what a node's store holds: the sums it joined, its state as bytes, and one answer to each stage."""

    def __init__(self, client: int, directory: Mapping[int, bytes], demands: Mapping[str, object]) -> None:
        self.client, self.directory, self.demands = client, directory, demands
        self.joined: set[bytes] = set()
        self.kept: dict[bytes, bytes] = {}
        self.answers: dict[tuple[bytes, str], tuple[bytes, bytes | None]] = {}
        self.inputs: dict[bytes, Tensor] = {}
        """What it added, by its masked reply. It computes something else each time."""
        self.model = b"the model"
        """What the server sent it to compute from."""
        self.models: dict[bytes, bytes] = {}
        """The model from which it computed what it added, by its masked reply."""
        self._numbers = torch.Generator().manual_seed(client)

    def answer(self, request: bytes) -> bytes:
        """The reply; a `SketchfedError` if the client refuses."""
        packet = unpack(request)
        if packet.kind == "secure.keys":
            return self._join(packet)
        name = sum_of(packet)
        before = self.answers.get((name, packet.kind))
        if before is not None:
            if before[0] != request or before[1] is None:
                raise SecureSumError(f"client {self.client} has answered '{packet.kind}' of this sum.")
            return before[1]
        self.answers[name, packet.kind] = request, None
        try:
            reply = self._stage(name, packet)
        except WireError:
            del self.answers[name, packet.kind]
            raise
        except SecureSumError:
            self.kept.pop(name, None)
            raise
        self.answers[name, packet.kind] = request, reply
        return reply

    def _join(self, packet: Packet) -> bytes:
        terms = Terms.from_packet(packet).demand(**self.demands)
        identity, secret = identity_of(self.client), SECRET.child("device", self.client)
        session, reply = SecureClient.join(terms, self.client, identity, self.directory, secret, joined=self.joined)
        self.joined.add(terms.digest)
        self.kept[session.name] = session.to_bytes()
        return pack(reply)

    def _stage(self, name: bytes, packet: Packet) -> bytes:
        if name not in self.kept:
            raise SecureSumError(f"client {self.client} takes no part in this sum.")
        session = SecureClient.from_bytes(self.kept[name])
        terms = session.state.terms
        values = torch.randint(0, 2**terms.bits, (terms.size,), generator=self._numbers)
        reply = pack(session.answer(packet, values, self.premise()))
        self.kept[name] = session.to_bytes()
        if packet.kind == "secure.masked":
            self.inputs[reply], self.models[reply] = values, self.model
        return reply

    def premise(self) -> bytes:
        return sha256(self.model).digest()


@cache
def identity_of(client: int) -> Identity:
    return Identity.of(SECRET.child("identity", client))


class ScriptedServer:
    """A lying server. Each of its moves goes to the clients that the script names, and refusals are counted, not raised.

    `learns` has all that was heard. Accomplices deal for every transcript and sign every list.
    """

    def __init__(self, terms: Terms, accomplices: Collection[int] = (), device: type[Device] = Device) -> None:
        self.terms = terms
        directory = {client: identity_of(client).public for client in terms.clients}
        demands = {name: getattr(terms, name) for name in ("size", "bits", "neighbours", "threshold", "least", "spread")}
        self.directory, self.accomplices = directory, frozenset(accomplices)
        self.devices = {c: device(c, directory, demands) for c in terms.clients if c not in self.accomplices}
        self.honest = tuple(self.devices)
        self.learns = Knowledge({client: identity_of(client) for client in self.accomplices})
        self.sent: list[tuple[int, bytes]] = []
        self.refusals: list[str] = []
        self.wrong: set[int] = set()
        """Accomplices that deal shares of another seed than they advertised."""
        self._signed: defaultdict[bytes, dict[int, bytes]] = defaultdict(dict)
        self._lists: dict[tuple[bytes, int], bytes] = {}
        self._shown: dict[tuple[bytes, int], frozenset[int]] = {}

    def ask(self, client: int, request: bytes) -> bool:
        """Whether an honest client answers."""
        self.sent.append((client, request))
        try:
            reply = self.devices[client].answer(request)
        except SketchfedError as error:
            self.refusals.append(str(error))
            return False
        self.learns.hear(client, request, reply)
        packet = unpack(request)
        if packet.kind == "secure.consent":
            transcript = self.learns.transcripts[self.learns.named(sum_of(packet)).digest, client]
            body = _bytes(packet)
            self._lists[transcript.terms.digest, client] = body
            self._signed[consent_text(transcript, body)][client] = _bytes(unpack(reply))
        return True

    def _send(self, terms: Terms, stage: str, bodies: Mapping[int, bytes]) -> set[int]:
        """Who answers a stage."""
        requests = {client: pack(message(request_kind(stage), terms, body)) for client, body in bodies.items()}
        return {client for client, request in requests.items() if self.ask(client, request)}

    # The stages, for whom and with what the server likes ----------------------------------------------------------------

    def begin(self, terms: Terms, clients: Iterable[int] | None = None) -> set[int]:
        """Ask for keys."""
        for client in self.accomplices:
            state, _ = advertise(terms, client, identity_of(client), SECRET.child("accomplice", client))
            self.learns.joined[terms.digest, client] = state
            self.learns.keys[terms.digest][client] = Advertised.from_bytes(state.shown)
        return {client for client in self._some(clients) if self.ask(client, pack(terms.packet))}

    def show(self, terms: Terms, clients: Iterable[int] | None = None, *, without: Container[int] = ()) -> set[int]:
        """Show the keys of all clients, or of all but some, and ask for shares."""
        keys = {
            client: own.to_bytes() for client, own in sorted(self.learns.keys[terms.digest].items()) if client not in without
        }
        if not keys:
            return set()
        roll = Roll(keys)
        bodies = {
            client: roll.proof(client) + laid_out(terms.neighbours_of(client), _near(terms, client, keys)) for client in keys
        }
        for client in self.accomplices & keys.keys():
            self._deal(terms, client, bodies[client])
        answered = self._send(terms, "shares", {client: bodies[client] for client in self._some(clients) if client in keys})
        self._shown |= {(terms.digest, client): frozenset(keys) for client in answered}
        return answered

    def _deal(self, terms: Terms, client: int, body: bytes) -> None:
        state = self.learns.joined[terms.digest, client]
        lying = replace(state, self_seed=bytes([7] * 31 + [0])) if client in self.wrong else state
        with suppress(SecureSumError):  # an accomplice deals by the honest function, which wants enough neighbours
            transcript, _ = read_proof(body, terms, client, state.shown)
            if client not in self.learns.dealings[transcript.digest]:
                _, reply = share(lying, message("secure.shares", terms, body), self.directory)
                self.learns.deal(transcript, client, Dealing.from_bytes(_bytes(reply), terms.neighbours_of(client)))

    def deliver(
        self,
        terms: Terms,
        clients: Iterable[int] | None = None,
        *,
        withheld: Container[tuple[int, int]] = (),
        other_model: Container[int] = (),
    ) -> set[int]:
        """Hand over the boxes, but those of some (dealer, holder), and ask for masked values, of some for another model.

        In place of a box that is missing, because its dealer was shown other keys, goes one that does not open.
        """
        bodies = {}
        for client in self._informed(terms, clients):
            own = self.learns.dealings[self.learns.transcripts[terms.digest, client].digest]
            boxes = {peer: dealing.parts[client] for peer, dealing in own.items() if client in dealing.parts}
            boxes = dict.fromkeys(self._shown[terms.digest, client] - {client}, bytes(DEALT)) | boxes
            wanted = {peer: box for peer, box in boxes.items() if (peer, client) not in withheld}
            bodies[client] = laid_out(terms.neighbours_of(client), _near(terms, client, wanted))
            self.devices[client].model = b"another model" if client in other_model else b"the model"
        return self._send(terms, "masked", bodies)

    def propose(self, terms: Terms, survivors: Collection[int], clients: Iterable[int] | None = None) -> set[int]:
        """Ask clients to sign a list of survivors."""
        body = flags(terms.clients, survivors)
        return self._send(terms, "consent", dict.fromkeys(self._some(clients), body))

    def open(self, terms: Terms, clients: Iterable[int] | None = None) -> set[int]:
        """Ask for seeds and shares, with all signatures that there are for each client's list, and forged ones."""
        bodies = {}
        for client in self._informed(terms, clients):
            transcript, listed = self.learns.transcripts[terms.digest, client], self._lists.get((terms.digest, client))
            text = consent_text(transcript, listed or b"")
            forged, mates = dict.fromkeys(terms.clients, bytes(SIGNATURE)), self._signed_by_accomplices(text)
            bodies[client] = laid_out(
                terms.witnesses_of(client), _only(forged | self._signed[text] | mates, terms.witnesses_of(client))
            )
        return self._send(terms, "unmask", bodies)

    def _signed_by_accomplices(self, text: bytes) -> dict[int, bytes]:
        return {mate: identity_of(mate).sign(text) for mate in self.accomplices}

    def accuse(self, terms: Terms, accused: Collection[int], clients: Iterable[int] | None = None) -> set[int]:
        """Say that clients dealt wrongly, with a proof if all its shares are at hand, whether it convicts or not."""
        bodies = {}
        for client in self._informed(terms, clients):
            near = [peer for peer in terms.neighbours_of(client) if peer in accused]
            transcript = self.learns.transcripts[terms.digest, client]
            bodies[client] = to_accusations(terms, client, {peer: self._proof(transcript, peer) for peer in near})
        return self._send(terms, "recover", bodies)

    def _proof(self, transcript: Transcript, dealer: int) -> Accusation | None:
        dealing, terms = self.learns.dealings[transcript.digest].get(dealer), transcript.terms
        for secret in Secret if dealing else ():
            shares = self.learns.shares[terms.digest, secret, dealer]
            some = dict(list(shares.items())[: terms.threshold])
            if len(some) == terms.threshold:
                return dealing.accusation(secret, some)
        return None

    def replay(self, stage: str, clients: Collection[int], terms: Terms | None = None) -> None:
        """Send every earlier request of a stage to these clients once more: as it was, or as one of other terms."""
        for client, request in list(self.sent):
            packet = unpack(request)
            if client in clients and packet.kind == request_kind(stage):
                relabelled = terms and stage != "keys"
                self.ask(client, pack(message(packet.kind, terms, _bytes(packet))) if relabelled else request)

    def run(self, terms: Terms, *, gone: Collection[int] = ()) -> None:
        """All stages as they should be. Those who are gone sent their values, and are said to have left."""
        self.begin(terms), self.show(terms), self.deliver(terms)
        self.propose(terms, set(terms.clients) - set(gone))
        self.open(terms)

    def input_of(self, row: Row) -> Tensor:
        """What a client really added."""
        return self.devices[row.client].inputs[row.reply]

    def _some(self, clients: Iterable[int] | None) -> list[int]:
        return [client for client in (self.honest if clients is None else clients) if client in self.devices]

    def _informed(self, terms: Terms, clients: Iterable[int] | None) -> list[int]:
        return [client for client in self._some(clients) if (terms.digest, client) in self.learns.transcripts]


def assert_learns_whole_sums_only(server: ScriptedServer) -> int:
    """The adversary learns sums of at least `least` clients, one for each set of terms, and nothing else. Returns how many."""
    learnt, least = server.learns.learnt(), server.terms.least
    for each in learnt:
        real = sum(factor * server.input_of(row) for row, factor in each.parts.items()) % 2**server.terms.bits
        assert torch.equal(each.values, real), "what the adversary computes is not what the clients added"
    for each in learnt:
        names = sorted(row.client for row in each.parts)
        assert set(each.parts.values()) == {1}, f"learnt a difference: {names} with {sorted(each.parts.values())}"
        assert len({row.terms.digest for row in each.parts}) == 1, f"learnt a sum over several sums: {names}"
        models = {server.devices[row.client].models[row.reply] for row in each.parts}
        assert len(models) == 1, f"learnt a sum over clients that trained different models: {names}"
        assert len(names) + len(server.accomplices) >= least, f"learnt a sum of {len(names)} honest clients: {names}"
    sums = [next(iter(each.parts)).terms.digest for each in learnt]
    assert len(set(sums)) == len(sums), "learnt two sums on the same terms"
    assert not server.learns.both_secrets(), "learnt both secrets of a client"
    return len(learnt)


def _near(terms: Terms, client: int, of: Mapping[int, bytes]) -> dict[int, bytes]:
    return _only(of, terms.neighbours_of(client))


def _only(of: Mapping[int, bytes], names: Iterable[int]) -> dict[int, bytes]:
    return {name: of[name] for name in names if name in of}


def _bytes(packet: Packet) -> bytes:
    return packet.arrays["body"].numpy().tobytes()
