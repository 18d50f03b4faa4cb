"""One client of one secure sum as an object. It knows which stage comes next and never answers one twice."""

from collections.abc import Container, Mapping

from torch import Tensor

from sketchfed.errors import InputError, SecureSumError
from sketchfed.secure import kept
from sketchfed.secure.client import NO_PREMISE, advertise, consent, mask, recover, share, unmask
from sketchfed.secure.keys import Identity
from sketchfed.secure.messages import BOUND, Stage, request_kind
from sketchfed.secure.states import Consented, Done, Joined, Masked, Shared, SumState, Told
from sketchfed.secure.terms import Terms
from sketchfed.seeds import SecretSeed
from sketchfed.wire import Packet

_NEXT: dict[type[SumState], Stage] = {
    Joined: "shares",
    Shared: "masked",
    Masked: "consent",
    Consented: "unmask",
    Told: "recover",
}


class SecureClient:
    """A client after it has joined. Between stages it can be kept as bytes; what it holds must stay on the client.

    After a refusal (`SecureSumError`) it forgets its secrets and answers nothing more: a server that tried one forbidden thing
    does not get to try another. A request that cannot be read (`WireError`) changes nothing.
    """

    def __init__(self, state: SumState, directory: Mapping[int, bytes]) -> None:
        self.state = state
        others = {*state.terms.neighbours_of(state.client), *state.terms.witnesses_of(state.client)}
        self._directory = {peer: directory[peer] for peer in sorted(others) if peer in directory}

    @classmethod
    def join(
        cls,
        terms: Terms,
        client: int,
        identity: Identity,
        directory: Mapping[int, bytes],
        secret: SecretSeed,
        *,
        joined: Container[bytes] = (),
    ) -> "tuple[SecureClient, Packet]":
        """Make the client, and its answer to the request with the terms. `joined` has the same meaning as in `advertise`."""
        state, reply = advertise(terms, client, identity, secret, joined=joined)
        return cls(state, directory), reply

    def to_bytes(self) -> bytes:
        """Everything, including private keys, for a client whose process ends between two stages. Nobody else may get it."""
        return kept.to_bytes(self.state, self._directory)

    @classmethod
    def from_bytes(cls, data: bytes) -> "SecureClient":
        """Restore the client that `to_bytes` stored. Raises `SecureSumError` if the bytes are damaged or of another version."""
        return cls(*kept.from_bytes(data))

    @property
    def name(self) -> bytes:
        """The bytes by which packets name this sum."""
        return self.state.terms.digest[:BOUND]

    @property
    def stage(self) -> Stage | None:
        """The next stage that it answers. None after the last one or after a refusal. Most sums end before "recover"."""
        return _NEXT.get(type(self.state))

    def answer(self, request: Packet, values: Tensor | None = None, premise: bytes = NO_PREMISE) -> Packet:
        """Answer any request after the first. `values` are needed only at stage "masked", and `premise` counts only there."""
        try:
            self.state, reply = self._answered(request, values, premise)
        except SecureSumError:
            self.state = Done(terms=self.state.terms, client=self.state.client)
            raise
        return reply

    def _answered(self, request: Packet, values: Tensor | None, premise: bytes) -> tuple[SumState, Packet]:
        if self.stage is None or request.kind != request_kind(self.stage):
            expected = f"expects '{request_kind(self.stage)}'" if self.stage else "has finished"
            raise SecureSumError(f"client {self.state.client} {expected}, '{request.kind}' came. It answers each stage once.")
        match self.state:
            case Joined() as joined:
                return share(joined, request, self._directory)
            case Shared() as shared:
                if values is None:
                    raise InputError("at stage 'masked' a client needs the values that it adds: answer(request, values=...).")
                return mask(shared, request, values, premise)
            case Masked() as masked:
                return consent(masked, request)
            case Consented() as consented:
                return unmask(consented, request, self._directory)
            case Told() as told:
                return recover(told, request)
        raise SecureSumError(f"client {self.state.client} has finished.")
