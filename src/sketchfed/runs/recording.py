"""The recorded wire of a run as a file: packets in which the bytes that passed lie as they were."""

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from sketchfed.engines import Exchange
from sketchfed.errors import StorageError, WireError
from sketchfed.storage import storing
from sketchfed.wire import Packet, expect_kind, number_named, pack, split, unpack
from sketchfed.wire.packet import PREFIX

WIRE = "wire.bin"
_MOST = 2**31
_KEY = 32


class WireFile:
    """What passed, appended as it passes. Clients that were sent the same bytes share one packet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def open(self, rounds: int) -> "WireFile":
        """Go on after so many rounds; what comes later in the file will come again, and is cut off."""
        with storing(self.path):
            if rounds and not self.path.exists():
                raise StorageError(
                    f"{self.path} should tell of {rounds} rounds, as the checkpoint beside it does, but is not there. Put it "
                    "back, or start the run anew in another folder."
                )
            kept = _length(self.path, rounds) if self.path.exists() else 0
            self._file = self.path.open("ab", buffering=0)
            self._file.truncate(kept)
        return self

    def append(self, exchanges: Sequence[Exchange]) -> None:
        assert self._file is not None
        for _, same in groupby(exchanges, key=lambda each: id(each.request)):
            left = pack(_to_packet(list(same)))
            with storing(self.path):
                while left:
                    left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Make sure that it is on the disk: before the checkpoint that counts on it."""
        assert self._file is not None
        with storing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_wire(path: Path) -> list[Exchange]:
    """All exchanges in a file; a packet that was not written to its end is left out, for it was not acknowledged."""
    return [exchange for packet in _packets(path) for exchange in _from_packet(packet)]


def _packets(path: Path) -> Iterator[Packet]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read the recorded wire {path}: {error.strerror or error}.") from error
    yield from (unpack(part) for part in split(memoryview(data)[: _whole(data)], most=_MOST))


def _whole(data: bytes) -> int:
    """How many bytes at the start are whole packets."""
    at = 0
    while at + PREFIX.size <= len(data):
        _, _, _, header, payload, _ = PREFIX.unpack_from(data, at)
        if at + PREFIX.size + header + payload > len(data):
            break
        at += PREFIX.size + header + payload
    return at


def _length(path: Path, rounds: int) -> int:
    """How many bytes tell of the first so many rounds."""
    length = 0
    for packet in _packets(path):
        if number_named(packet, "round") >= rounds:
            break
        length += len(pack(packet))
    return length


def _to_packet(exchanges: Sequence[Exchange]) -> Packet:
    first = exchanges[0]
    replies = [each.reply for each in exchanges]
    arrays = {
        "clients": torch.tensor([each.client for each in exchanges], dtype=torch.int64),
        "lengths": torch.tensor([-1 if reply is None else len(reply) for reply in replies], dtype=torch.int64),
        "request": _array(first.request),
        "replies": _array(b"".join(reply for reply in replies if reply is not None)),
        "identities": _array(b"".join(each.identity for each in exchanges)),
    }
    return Packet(kind="exchange", arrays=arrays, scalars={"round": first.round, "stage": first.stage})


def _from_packet(packet: Packet) -> Iterator[Exchange]:
    expect_kind(packet, "exchange")
    index, stage = int(number_named(packet, "round", least=0, most=2**62)), packet.scalars.get("stage")
    plain = {name: packet.arrays.get(name) for name in ("clients", "lengths", "request", "replies", "identities")}
    if not isinstance(stage, str) or not all(isinstance(array, Tensor) and array.ndim == 1 for array in plain.values()):
        raise WireError("the recorded wire holds a packet that is no exchange. It was changed or damaged; record again.")
    tensors: dict[str, Tensor] = plain  # type: ignore[assignment]
    request, replies, identities = (tensors[name].numpy().tobytes() for name in ("request", "replies", "identities"))
    clients, lengths = tensors["clients"].tolist(), tensors["lengths"].tolist()
    sent = sum(max(0, length) for length in lengths)
    if len(clients) != len(lengths) or sent != len(replies) or len(identities) not in (0, _KEY * len(clients)):
        raise WireError("an exchange in the recorded wire has other lengths than it says. It was damaged; record again.")
    at = 0
    for place, (client, length) in enumerate(zip(clients, lengths, strict=True)):
        reply = None if length < 0 else replies[at : at + length]
        at += max(0, length)
        identity = identities[_KEY * place : _KEY * (place + 1)]
        yield Exchange(round=index, stage=stage, client=client, request=request, reply=reply, identity=identity)


def _array(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
