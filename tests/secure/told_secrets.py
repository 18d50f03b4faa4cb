"""Which of a client's secrets are in its reply, and which of them its stage is there to tell."""

from collections.abc import Container

from sketchfed.secure import Consented, SumState, Told
from sketchfed.secure.messages import flagged
from sketchfed.wire import Packet, pack

Secret = tuple[str, int]
"""A kind of secret, and the client whose secret it is."""


def secrets(state: SumState) -> dict[Secret, bytes]:
    """All secrets that a state holds, half by half where they are longer than a key."""
    own = {name: getattr(state, name, None) for name in ("mask_key", "seal_key", "self_seed", "dealing")}
    found = {(name, state.client): value[:32] for name, value in own.items() if value is not None}
    if (identity := getattr(state, "identity", None)) is not None:
        found["identity", state.client] = identity.private
    for peer, known in getattr(state, "peers", {}).items():
        found["incoming", peer] = known.incoming
    for peer, key in getattr(state, "pairs", {}).items():
        found["pair", peer] = key
    for peer, held in getattr(state, "held", {}).items():
        found["mask_share", peer] = held.mask_share
        found["seed_share", peer] = held.seed_share
    return found


def told(state: SumState, reply: Packet) -> set[Secret]:
    """The secrets of a state whose bytes are in a reply."""
    data = pack(reply)
    return {name for name, secret in secrets(state).items() if secret in data}


def allowed(state: SumState, wrong: Container[int]) -> set[Secret]:
    """What may be told after a state: one share of each neighbour, as the signed list says, or masks with wrong dealers.

    In a complete graph masks with clients that are not on the list may be told too.
    """
    terms = state.terms
    if isinstance(state, Consented):
        listed = flagged(state.survivors, terms.clients)
        shares = {("seed_share" if peer in listed else "mask_share", peer) for peer in state.held}
        return {("self_seed", state.client)} | shares
    if isinstance(state, Told):
        listed = flagged(state.survivors, terms.clients)
        return {("pair", peer) for peer in state.pairs if peer in wrong or (terms.complete and peer not in listed)}
    return set()
