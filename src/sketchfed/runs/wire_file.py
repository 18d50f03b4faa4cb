"""The file with the recorded traffic of a run: packets that contain the requests and replies byte for byte."""

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import StorageError, WireError
from sketchfed.rounds import Exchange
from sketchfed.runs.versions import naming_writer
from sketchfed.storage import storing
from sketchfed.wire import Packet, expect_kind, number_named, pack, unpack
from sketchfed.wire.packet import MAGIC, PREFIX

WIRE = "wire.bin"
_KEY = 32
_NUMBERS, _BYTES = ("clients", "which", "sizes", "lengths"), ("requests", "replies", "identities")


class WireFile:
    """Appends requests and replies to a file, one packet per engine call. Identical requests are stored once per packet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def open(self, rounds: int) -> "WireFile":
        """Open the file to continue after `rounds` rounds. Later rounds are deleted, because they will run again."""
        with naming_writer(self.path.parent):
            kept = _length(self.path, rounds) if rounds else 0
        with storing(self.path):
            self._file = self.path.open("ab", buffering=0)
            self._file.truncate(kept)
        return self

    def append(self, exchanges: Sequence[Exchange]) -> None:
        """Append the exchanges of one call."""
        if exchanges:
            self._write(_to_packet(exchanges))

    def sync(self, rounds: int) -> None:
        """Mark that the file covers `rounds` rounds, and make sure that everything is on disk.

        Call this before saving the checkpoint that relies on it.
        """
        self._write(Packet(kind="told", arrays={}, scalars={"rounds": rounds}))
        with storing(self.path):
            os.fsync(self._opened.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> IO[bytes]:
        if self._file is None:
            raise StorageError(f"{self.path} is not open for writing. Call `open` first.")
        return self._file

    def _write(self, packet: Packet) -> None:
        left, file = pack(packet), self._opened
        with storing(self.path):
            while left:  # a disk that fills up writes a part first, and fails at the next call
                left = left[file.write(left) :]


def read_wire(path: Path) -> list[Exchange]:
    """Read all exchanges in a file. An incomplete last packet is left out, because no checkpoint relies on it."""
    try:
        return [each for packet, _ in _packets(path) if packet.kind != "told" for each in _from_packet(packet)]
    except WireError as error:
        raise WireError(f"{path} is not recorded traffic, or it was damaged: {error} Record the run again.") from error


def _packets(path: Path) -> Iterator[tuple[Packet, int]]:
    """Yield the packets of a file, each with the offset at which it ends."""
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot read the recorded traffic {path}: {error.strerror or error}.") from error
    at = 0
    while at < len(data):
        size = PREFIX.size
        if at + size <= len(data):
            _, _, _, header, payload, _ = PREFIX.unpack_from(data, at)
            size += header + payload
        torn = data[at : at + len(MAGIC)] == MAGIC[: len(data) - at] and at + size > len(data)
        if torn:
            return
        at += size
        yield unpack(data[at - size : at], limit=size), at


def _length(path: Path, rounds: int) -> int:
    """The number of bytes that the first `rounds` rounds take in the file."""
    try:
        for packet, end in _packets(path):
            if packet.kind == "told" and packet.scalars.get("rounds") == rounds:
                return end
    except (WireError, StorageError):
        pass
    raise StorageError(
        f"{path} should hold {rounds} rounds, like the checkpoint in the same folder, but does not. It was removed, changed or "
        "damaged. Put it back, or start the run anew in another folder."
    )


def _to_packet(exchanges: Sequence[Exchange]) -> Packet:
    """Make the packet of one call. All exchanges belong to the same round and stage."""
    requests = {request: place for place, request in enumerate(dict.fromkeys(each.request for each in exchanges))}
    numbers = {
        "clients": [each.client for each in exchanges],
        "which": [requests[each.request] for each in exchanges],
        "sizes": [len(request) for request in requests],
        "lengths": [-1 if each.reply is None else len(each.reply) for each in exchanges],
    }
    parts = {
        "requests": b"".join(requests),
        "replies": b"".join(each.reply for each in exchanges if each.reply is not None),
        "identities": b"".join(each.identity for each in exchanges),
    }
    arrays = {name: torch.tensor(values, dtype=torch.int64) for name, values in numbers.items()}
    arrays |= {name: torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for name, data in parts.items()}
    first = exchanges[0]
    return Packet(kind="exchange", arrays=arrays, scalars={"round": first.round, "stage": first.stage})


def _from_packet(packet: Packet) -> Iterator[Exchange]:
    expect_kind(packet, "exchange")
    index, stage = number_named(packet, "round", least=0, most=2**62), packet.scalars.get("stage")
    clients, which, sizes, lengths = (_row(packet, name, torch.int64).tolist() for name in _NUMBERS)
    requests, replies, identities = (_row(packet, name, torch.uint8).numpy().tobytes() for name in _BYTES)
    fits = isinstance(index, int) and isinstance(stage, str) and len(clients) == len(which) == len(lengths)
    fits = fits and min([*clients, *which, *sizes, 0]) == 0 and max(which, default=0) < max(1, len(sizes))
    fits = fits and sum(sizes) == len(requests) and sum(max(0, length) for length in lengths) == len(replies)
    if not fits or len(identities) not in (0, _KEY * len(clients)):
        raise WireError("the lengths that an exchange states do not match its content.")
    asked, answered = _cut(requests, sizes), iter(_cut(replies, [length for length in lengths if length >= 0]))
    for place, client in enumerate(clients):
        yield Exchange(
            round=int(index),
            stage=str(stage),
            client=client,
            request=asked[which[place]],
            reply=next(answered) if lengths[place] >= 0 else None,
            identity=identities[_KEY * place : _KEY * (place + 1)],
        )


def _row(packet: Packet, name: str, dtype: torch.dtype) -> Tensor:
    array = packet.arrays.get(name)
    if not isinstance(array, Tensor) or array.dtype != dtype or array.ndim != 1:
        raise WireError(f"an exchange has no array '{name}' of {str(dtype).removeprefix('torch.')}.")
    return array


def _cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split data into consecutive parts of these sizes."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [data[start:end] for start, end in pairwise(ends)]
