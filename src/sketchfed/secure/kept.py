"""The state of a client between two stages as bytes, and the checks when it is read back.

The bytes never leave the client, but files can be damaged, and versions differ. After these checks, the stage functions raise
no errors but ours.
"""

from collections.abc import Mapping
from hashlib import sha256
from itertools import chain

import msgspec

from sketchfed.errors import InputError, SecureSumError, SketchfedError
from sketchfed.secure.keys import KEY, Advertised
from sketchfed.secure.messages import flagged
from sketchfed.secure.shamir import PRIME
from sketchfed.secure.states import Consented, Done, Joined, Masked, Shared, SumState, Told
from sketchfed.secure.transcript import HASH

_KINDS: dict[str, type[SumState]] = {kind.__name__: kind for kind in (Joined, Shared, Masked, Consented, Told, Done)}
_WIDTHS = {"mask_key": KEY, "seal_key": KEY, "self_seed": KEY, "dealing": 2 * KEY, "shown": Advertised.size}


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    state: msgspec.Raw
    directory: dict[int, bytes]


def to_bytes(state: SumState, directory: Mapping[int, bytes]) -> bytes:
    """A state with all its secrets, and the identities of the client's neighbours."""
    packed = msgspec.Raw(msgspec.msgpack.encode(state))
    return sealed(msgspec.msgpack.encode(_Kept(kind=type(state).__name__, state=packed, directory=dict(directory))))


def sealed(body: bytes) -> bytes:
    """The bytes with a checksum. Without it, damage could swap two shares, and both would be revealed."""
    return sha256(body).digest() + body


def from_bytes(data: bytes) -> tuple[SumState, dict[int, bytes]]:
    """Read what `to_bytes` wrote. Raises `SecureSumError` if it is something else."""
    try:
        body = data[HASH:]
        if sealed(body) != data:
            raise InputError("its checksum does not fit")
        kept = msgspec.msgpack.decode(body, type=_Kept)
        if kept.kind not in _KINDS:
            raise InputError(f"a client is at one of {', '.join(_KINDS)}, this one at '{kept.kind[:40]}'")
        state = msgspec.msgpack.decode(kept.state, type=_KINDS[kept.kind])
        _check(state)
        if any(len(identity) != KEY for identity in kept.directory.values()):
            raise InputError(f"an identity takes {KEY} bytes")
    except (msgspec.DecodeError, SketchfedError, ValueError, TypeError, RecursionError) as error:
        raise SecureSumError(
            f"what was kept of this secure sum cannot be read: {str(error).rstrip('.')}. The client joins the next one."
        ) from None
    return state, kept.directory


def _check(state: SumState) -> None:
    """Check that every secret has its length, and that everything is about neighbours of this client in this sum."""
    neighbours = frozenset(state.terms.neighbours_of(state.client))
    for name, width in _WIDTHS.items():
        if len(getattr(state, name, bytes(width))) != width:
            raise InputError(f"its {name} does not take {width} bytes")
    for name in ("mask_key", "self_seed"):
        if int.from_bytes(getattr(state, name, b""), "little") >= PRIME:
            raise InputError(f"its {name} cannot be shared")
    transcript = getattr(state, "transcript", None)
    if transcript is not None and (transcript.terms != state.terms or len(transcript.root) != HASH):
        raise InputError("its transcript is of another sum")
    peers, held = getattr(state, "peers", {}), getattr(state, "held", {})
    pairs = getattr(state, "pairs", dict.fromkeys(peers, bytes(KEY)))
    if not neighbours >= peers.keys() >= held.keys() or pairs.keys() != peers.keys():
        raise InputError("it knows secrets of clients that are not its neighbours, or too few of those that are")
    known = [*pairs.values(), *chain.from_iterable(peers.values()), *chain.from_iterable(held.values())]
    if any(len(part) != KEY for part in known):
        raise InputError("a secret of a neighbour has another length")
    if (signed := getattr(state, "survivors", None)) is not None:
        survivors = flagged(signed, state.terms.clients)
        if state.client not in survivors or len(survivors) < state.terms.least:
            raise InputError("it signed a list of survivors that no client signs")
