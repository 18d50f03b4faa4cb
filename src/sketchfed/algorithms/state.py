"""What the parties of a run hold between rounds, and what a client's work in a round produces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from sketchfed.algorithms.cohorts import round_seed
from sketchfed.codecs.linear import LinearCode
from sketchfed.seeds import PublicSeed
from sketchfed.subspaces import Subspace


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What a client must hold to take part in a round. All parties hold the same numbers, bit for bit."""

    round: int
    """The number of completed rounds."""
    weights: Tensor
    velocity: Tensor | None = None
    """The global momentum, for algorithms that have one."""
    prediction: Tensor | None = None
    """The prediction of the next mean change, if clients send the difference between it and their change."""
    moments: Mapping[str, Tensor] = field(default_factory=dict)
    """The running means of changes and of their squares, for algorithms whose steps depend on them."""
    subspace: Subspace | None = None
    """The subspace in which changes are sent, if it depends on earlier rounds. None before the first round."""

    def to_tensors(self) -> dict[str, Tensor]:
        """The named tensors of a replica, without its round. `replicas.from_tensors` rebuilds the replica from them."""
        named = {"weights": self.weights, "velocity": self.velocity, "prediction": self.prediction}
        named |= {f"moments.{name}": tensor for name, tensor in self.moments.items()}
        if self.subspace is not None:
            seed = torch.frombuffer(bytearray(self.subspace.seed.to_bytes()), dtype=torch.uint8)
            named |= {f"subspace.{name}": tensor for name, tensor in {**self.subspace.tensors(), "seed": seed}.items()}
        return {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the round and all tensors. Replicas with equal digests are equal, bit for bit."""
        found = sha256(self.round.to_bytes(8, "little"))
        for name, tensor in sorted(self.to_tensors().items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            found.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).reshape(-1).data)
        return found.digest()


@dataclass(frozen=True, kw_only=True)
class State:
    """What the server holds between rounds: a replica, and tensors that only the server needs."""

    replica: Replica
    own: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """Where a client's work belongs: the round, counted from 0, the run's seed, and the client."""

    round: int
    seed: PublicSeed
    client: int
    replica: Replica | None = None
    """The replica from which the client started. None if nothing depends on it."""
    population: int | None = None
    """The total number of clients. If it is known, everyone can compute who takes part."""

    @property
    def shared(self) -> PublicSeed:
        """The seed that all parties of this round share."""
        return round_seed(self.seed, self.round)

    @property
    def own(self) -> PublicSeed:
        """The seed of this client in this round. It orders the client's batches."""
        return self.shared.child("local", self.client)


class Change:
    """How local work changed the weights of one client.

    An algorithm that sends a linear code asks for the change `through` that code. Privacy at example level has no other form:
    it clips each example after encoding, so the whole change never exists. Other algorithms use `values`.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values

    @property
    def dim(self) -> int:
        """The number of weights that a client trains."""
        return len(self._values)

    @property
    def values(self) -> Tensor:
        """The change itself, `(dim,)`, on the CPU."""
        return self.unmoved.cpu()

    @property
    def unmoved(self) -> Tensor:
        """The change on the device that computed it. Codecs take it from there."""
        return self._values

    def through(self, code: LinearCode) -> Tensor:
        """The encoded change, `(code.size,)`, perhaps on that device."""
        return code.apply(self._values)
