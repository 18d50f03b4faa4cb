"""What a client remembers between messages, in Flower's context, because a new process serves each message.

A context can be copied. What must happen only once is in the node's store (`sketchfed.nodes.store`), not here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from sketchfed.algorithms import Replica
from sketchfed.algorithms.replicas import from_tensors, group
from sketchfed.flower.messages import NEVER
from sketchfed.training import ClientMemory

_RUN, _KEPT = "sketchfed.run", "sketchfed.kept"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a client holds after a round in which it replied: its replica, and its memory."""

    made: int = NEVER
    """The round of that reply."""
    replica: Replica | None = None
    memory: ClientMemory = field(default_factory=ClientMemory)

    def to_bytes(self) -> bytes:
        tensors = {"made": torch.tensor(self.made)}
        if self.replica is not None:
            tensors |= {f"replica.{name}": tensor for name, tensor in self.replica.to_tensors().items()}
            tensors["round"] = torch.tensor(self.replica.round)
        return save(tensors | self.memory.to_tensors())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Kept":
        tensors = load(data)
        parts = group(tensors, "replica")
        replica = from_tensors(parts, round=int(tensors["round"])) if parts else None
        return cls(made=int(tensors["made"]), replica=replica, memory=ClientMemory.from_tensors(tensors))


class ClientState:
    """The records of one run. Records of another run are deleted as soon as this run is asked for."""

    def __init__(self, records: RecordDict, session: bytes) -> None:
        self._records = records
        if self._of(_RUN).get("session") != session:
            records.pop(_KEPT, None)
            records[_RUN] = ConfigRecord({"session": session, "agreement": b""})

    @property
    def agreement(self) -> bytes:
        """The run's agreement, packed. Empty if it never arrived."""
        return _bytes(self._of(_RUN), "agreement")

    @agreement.setter
    def agreement(self, packed: bytes) -> None:
        self._set(_RUN, "agreement", packed)

    def settled(self, acknowledged: int, start: Replica | None) -> Kept:
        """Return what is valid, given the last reply of this client that the server used.

        What was kept for that reply becomes valid, and what was kept for an unused reply is dropped. If neither fits, this
        client lost its memory, or the server went back. Then the client begins again, and the server brings it up to date.
        """
        committed, pending = self._kept("committed"), self._kept("pending")
        if pending is not None and pending.made == acknowledged != NEVER:
            committed = pending
        elif committed is None or committed.made != acknowledged:
            committed = None
        self._set(_KEPT, "pending", b"")
        self._set(_KEPT, "committed", b"" if committed is None else committed.to_bytes())
        return Kept(replica=start) if committed is None else committed

    def keep(self, kept: Kept) -> None:
        """Keep the result of a reply until the server says that it was used."""
        self._set(_KEPT, "pending", kept.to_bytes())

    def _kept(self, name: str) -> Kept | None:
        data = _bytes(self._of(_KEPT), name)
        try:
            return Kept.from_bytes(data) if data else None
        except (SafetensorError, KeyError, TypeError, ValueError):  # written by another version: as good as lost
            return None

    def _of(self, name: str) -> Mapping[str, object]:
        return self._records.config_records.get(name, {})

    def _set(self, name: str, key: str, value: bytes) -> None:
        self._records[name] = ConfigRecord({**self._of(name), key: value})  # type: ignore[dict-item]


def _bytes(record: Mapping[str, object], key: str) -> bytes:
    value = record.get(key, b"")
    return value if isinstance(value, bytes) else b""
