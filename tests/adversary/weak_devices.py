"""Clients with one fault each, as controls: against them the scripted server must learn what it should not."""

from scripted import Device

from sketchfed.secure import SecureClient, Terms, sum_of
from sketchfed.wire import unpack


class Forgetful(Device):
    """Its state can be copied and brought back: each stage is answered as often as it is asked for."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.states: dict[tuple[bytes, str], bytes] = {}

    def answer(self, request: bytes) -> bytes:
        packet = unpack(request)
        if packet.kind != "secure.keys":
            self.answers.clear()
            name = sum_of(packet)
            self.kept[name] = self.states.get((name, packet.kind), self.kept.get(name, b""))
        reply = super().answer(request)
        for name, kept in self.kept.items():
            self.states[name, f"secure.{SecureClient.from_bytes(kept).stage}"] = kept
        return reply


class Rejoining(Device):
    """It does not remember which sums it joined, nor what it answered in them."""

    def answer(self, request: bytes) -> bytes:
        if unpack(request).kind == "secure.keys":
            self.joined.clear()
            self.answers.clear()
        return super().answer(request)


class Undemanding(Device):
    """It takes whatever terms the server proposes."""

    def __init__(self, client, directory, _) -> None:
        super().__init__(client, directory, {})


class Trusting(Device):
    """Its masks do not depend on the model that it was sent."""

    def premise(self) -> bytes:
        return bytes(32)


def with_neighbours_as_witnesses(monkeypatch) -> None:
    """Clients take the signatures of their own neighbourhood, and not those of one committee."""
    monkeypatch.setattr(Terms, "witnesses_of", Terms.neighbours_of)
    monkeypatch.setattr(Terms, "committee", property(lambda terms: terms.clients))


def without_signatures(monkeypatch) -> None:
    """Clients take any signature on a list of survivors."""
    monkeypatch.setattr("sketchfed.secure.client.is_signed", lambda *_: True)


def without_proofs(monkeypatch) -> None:
    """Clients believe every accusation that comes with something like a proof."""
    monkeypatch.setattr("sketchfed.secure.dealing.Accusation.convicts", lambda *_, **__: True)


def without_gaps(monkeypatch) -> None:
    """Clients do not see gaps in the ring."""
    monkeypatch.setattr(Terms, "gap", lambda *_: None)
