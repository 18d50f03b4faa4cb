"""The packets of a secure sum: raw bytes, bound to its terms, without overhead for each neighbour."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import SecureSumError, WireError
from sketchfed.secure.terms import Terms
from sketchfed.wire import Bits, Packet, expect_kind, tensor_named

Stage = Literal["keys", "shares", "masked", "consent", "unmask", "recover"]
STAGES: tuple[Stage, ...] = get_args(Stage)[:-1]
"""The stages of every sum. "recover" follows only if somebody dealt its shares wrongly."""

BOUND = 16
"""The bytes of the terms' digest that a packet carries. They only tell sums apart. What matters is signed or sealed in full."""


SECURE = "secure."
"""The prefix of the kinds of all packets of secure sums."""


def request_kind(stage: Stage) -> str:
    return f"{SECURE}{stage}"


def reply_kind(stage: Stage) -> str:
    return f"{SECURE}{stage}.reply"


def message(kind: str, terms: Terms, body: bytes, **arrays: Bits) -> Packet:
    return Packet(kind=kind, arrays={"terms": _tensor(terms.digest[:BOUND]), "body": _tensor(body), **arrays})


def body_of(packet: Packet, kind: str, terms: Terms) -> bytes:
    """The body of a packet of that kind that belongs to this sum."""
    bound = tensor_named(expect_kind(packet, kind), "terms", shape=(BOUND,), dtype=torch.uint8).numpy().tobytes()
    if bound != terms.digest[:BOUND]:
        raise SecureSumError(
            f"packet '{kind}' belongs to another session, round or terms than this sum: it is replayed or lost."
        )
    body = packet.arrays.get("body")
    if not isinstance(body, Tensor) or body.dtype != torch.uint8 or body.dim() != 1:
        raise WireError(f"packet '{kind}' should carry an array 'body' of bytes.")
    return body.numpy().tobytes()


def sum_of(packet: Packet) -> bytes:
    """The bytes by which a packet names its sum. Raises `WireError` if it names none."""
    return tensor_named(packet, "terms", shape=(BOUND,), dtype=torch.uint8).numpy().tobytes()


def laid_out(names: Sequence[int], parts: Mapping[int, bytes]) -> bytes:
    """Join equally long parts of some of these clients: one bit for each client, then the parts in order."""
    return flags(names, parts) + b"".join(parts[name] for name in names if name in parts)


def taken_apart(body: bytes, names: Sequence[int], width: int) -> dict[int, bytes]:
    """Take apart what `laid_out` joined, and check that it is exactly that."""
    header = (len(names) + 7) // 8
    chosen = flagged(body[:header], names)
    if len(body) != header + width * len(chosen):
        raise WireError(
            f"{len(chosen)} parts of {width} bytes after {header} bytes of flags should take {header + width * len(chosen):,} "
            f"bytes, {len(body):,} arrived."
        )
    return {name: body[header + width * at : header + width * (at + 1)] for at, name in enumerate(chosen)}


def flags(names: Sequence[int], chosen: Iterable[int]) -> bytes:
    """A bit for each name, set where it is chosen."""
    members = frozenset(chosen)
    return np.packbits([name in members for name in names], bitorder="little").tobytes()


def flagged(data: bytes, names: Sequence[int]) -> list[int]:
    """The names whose bit is set."""
    if len(data) != (len(names) + 7) // 8 or int.from_bytes(data, "little") >> len(names):
        raise WireError(
            f"{len(names):,} clients are flagged in {(len(names) + 7) // 8:,} bytes without further bits, "
            f"{len(data):,} bytes arrived or more bits are set."
        )
    return [
        name for name, bit in zip(names, np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"), strict=False) if bit
    ]


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
