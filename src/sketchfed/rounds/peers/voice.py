"""What a node said so far: the estimate of its model that follows, and the latest updates, for those that missed some."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sketchfed.algorithms import Replica
from sketchfed.algorithms.forms import WholeModel
from sketchfed.rounds.peers.saved import whole_numbers
from sketchfed.wire import Packet, number_named, pack, packed_size, split, unpack

_MOST_PARTS = 8
"""More packets than an update of any algorithm has."""


class Voice:
    """A node's own words.

    `estimate.round` is the round after the last update. The latest updates are kept as bytes, up to the size of the whole
    estimate, so that a neighbour that missed some can catch up.
    """

    def __init__(self, estimate: Replica, extras: tuple[str, ...] = ()) -> None:
        self.estimate = estimate
        self._form = WholeModel(extras)
        self._latest: list[tuple[int, bytes]] = []
        """Each update, with the round of the estimate before it."""

    @property
    def spoken(self) -> int:
        """The round after the last update. 0 if there was none."""
        return self.estimate.round

    def say(self, update: bytes, estimate: Replica) -> None:
        """Add an update, after which the estimate is this one."""
        self._latest.append((self.spoken, update))
        self.estimate = estimate
        limit = packed_size(self._form.packet(estimate))
        while len(self._latest) > 1 and sum(len(update) for _, update in self._latest) > limit:
            self._latest.pop(0)

    def since(self, position: int) -> bytes:
        """What a neighbour needs whose copy is at this round: the updates that it lacks, or the whole estimate."""
        starts = [start for start, _ in self._latest]
        if position in starts:
            return b"".join(update for _, update in self._latest[starts.index(position) :])
        return b"" if position == self.spoken else pack(self._form.packet(self.estimate))

    def whole(self, packet: Packet, dim: int) -> Replica:
        """The estimate in a packet that carries all of it."""
        return self._form.replica(packet, dim)

    def tensors(self) -> dict[str, Tensor]:
        """Everything, to be saved."""
        data, sizes = _as_tensors([update for _, update in self._latest])
        starts = torch.tensor([start for start, _ in self._latest], dtype=torch.int64)
        named = {f"estimate.{name}": tensor for name, tensor in self.estimate.to_tensors().items()}
        return {**named, "spoken": torch.tensor(self.spoken), "starts": starts, "sizes": sizes, "updates": data}

    def restore(self, tensors: Mapping[str, Tensor], estimate: Replica) -> None:
        """Continue from what `tensors` returned. `estimate` is the one in it, which others may share."""
        self.estimate = estimate
        starts, sizes = (whole_numbers(tensors, name, -1) for name in ("starts", "sizes"))
        self._latest = list(zip(starts.tolist(), _as_bytes(tensors["updates"], sizes), strict=True))
        for start, update in self._latest:
            parts = list(split(update, most=_MOST_PARTS))
            if (
                not start < estimate.round
                or not parts
                or not start <= number_named(unpack(parts[-1]), "round") < estimate.round
            ):
                raise ValueError(f"it holds an update on round {start:,} of an estimate of round {estimate.round:,}")


def _as_tensors(parts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    data = bytearray(b"".join(parts))
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8), sizes


def _as_bytes(data: Tensor, sizes: Tensor) -> list[bytes]:
    if data.dtype != torch.uint8 or data.dim() != 1:
        raise ValueError("its updates are not bytes")
    return [part.numpy().tobytes() for part in torch.split(data, sizes.tolist())] if len(sizes) else []
