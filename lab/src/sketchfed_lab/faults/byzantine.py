"""Clients that do harm on purpose, for experiments in one process: the attacks of the literature on robust rules.

Attackers know what all honest clients of the round send, and agree with each other. They change what is sent in the encoded
space, where a robust rule looks at it, or the examples that they train on.
"""

import math
from abc import ABC
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from sketchfed.rounds import Engine
from sketchfed.training import Examples
from sketchfed.wire import Packet, pack, unpack

PATCH, TARGET = 3, 0
"""The trigger of a backdoor is a bright square of this many pixels a side, and its label is this one."""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """What attackers do. By default they train and answer like everybody else."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def examples(self, examples: Examples, classes: int) -> Examples:
        """The examples that an attacker trains on, made from its own."""
        return examples

    def sent(self, own: Tensor, honest: Tensor, generator: torch.Generator) -> Tensor:
        """What attackers send, `(attackers, size)`, from what they would send and what honest clients do, `(honest, size)`."""
        return own


@dataclass(frozen=True, kw_only=True)
class Nothing(Attack):
    """No attack."""

    name = "none"
    summary = "attackers do nothing"


@dataclass(frozen=True, kw_only=True)
class Scaled(Attack):
    """Attackers send their own update times a factor."""

    factor: float = -1.0

    name = "scaled"
    summary = "the own update times a factor"

    def sent(self, own: Tensor, honest: Tensor, generator: torch.Generator) -> Tensor:
        return self.factor * own


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Attackers send normal noise, `times` as long as an honest update."""

    times: float = 10.0

    name = "noise"
    summary = "normal noise, longer than an honest update"

    def sent(self, own: Tensor, honest: Tensor, generator: torch.Generator) -> Tensor:
        deviation = self.times * float(honest.norm(dim=1).mean()) / math.sqrt(own.shape[1])
        return deviation * torch.randn(own.shape, generator=generator)


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Attackers train honestly on wrong labels: class c becomes classes − 1 − c."""

    name = "label flip"
    summary = "honest work on wrong labels"

    def examples(self, examples: Examples, classes: int) -> Examples:
        return Examples(examples.x, classes - 1 - examples.y)


@dataclass(frozen=True, kw_only=True)
class Alie(Attack):
    """A little is enough: all attackers send the honest mean minus z standard deviations, in each coordinate.

    Paper: Baruch et al. 2019, "A Little Is Enough", Alg. 3: z is such that, of n clients with f attackers, enough honest ones
    lie further out that the attackers look like the majority: Φ(z) = (n − f − s)/(n − f) with s = ⌊n/2 + 1⌋ − f.
    """

    name = "alie"
    summary = "the honest mean minus a few deviations that hide among honest clients"

    def sent(self, own: Tensor, honest: Tensor, generator: torch.Generator) -> Tensor:
        count = len(own) + len(honest)
        needed = count // 2 + 1 - len(own)
        share = min(max((len(honest) - needed) / len(honest), 0.5), 1 - 1e-6)
        away = NormalDist().inv_cdf(share) * honest.std(0, correction=0)
        return (honest.mean(0) - away).expand_as(own)


@dataclass(frozen=True, kw_only=True)
class Ipm(Attack):
    """Inner-product manipulation: all attackers send −`times` the honest mean.

    Paper: Xie, Koyejo & Gupta 2020, "Fall of Empires", Sec. 4. A small factor passes for an honest update.
    """

    times: float = 0.5

    name = "ipm"
    summary = "a small negative multiple of the honest mean"

    def sent(self, own: Tensor, honest: Tensor, generator: torch.Generator) -> Tensor:
        return (-self.times * honest.mean(0)).expand_as(own)


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Attackers teach the model that a bright square means class `TARGET`, and scale their update up to replace the model.

    Paper: Bagdasaryan et al. 2020, "How To Backdoor Federated Learning", Eq. 3: an update times n/f survives the mean. Half of
    an attacker's examples have the square.
    """

    name = "backdoor"
    summary = "a trigger in half of the examples, and the update scaled up to replace the model"

    def examples(self, examples: Examples, classes: int) -> Examples:
        x, y = examples.x.clone(), examples.y.clone()
        x[::2] = triggered(x[::2])
        y[::2] = TARGET
        return Examples(x, y)

    def sent(self, own: Tensor, honest: Tensor, generator: torch.Generator) -> Tensor:
        return own * ((len(own) + len(honest)) / len(own))


ATTACKS: dict[str, Attack] = {
    "none": Nothing(),
    "sign flip": Scaled(),
    "-9 times": Scaled(factor=-9.0),
    "-90 times": Scaled(factor=-90.0),
    "noise": Noise(),
    "label flip": LabelFlip(),
    "alie": Alie(),
    "ipm": Ipm(),
    "backdoor": Backdoor(),
}
"""By the names that results have."""


def triggered(images: Tensor) -> Tensor:
    """Images `(n, …, side, side)`, or flat ones `(n, side²)`, with the trigger in their last corner."""
    side = math.isqrt(images[0].numel() if images.ndim == 2 else images.shape[-1] ** 2)
    square = images.reshape(*images.shape[: max(1, images.ndim - 2)], side, side).clone()
    square[..., -PATCH - 1 : -1, -PATCH - 1 : -1] = images.max()
    return square.reshape(images.shape)


class AttackedEngine:
    """An engine some of whose clients are attackers. It changes replies in the clear, whose numbers are `values`.

    Under secure sums nobody but the client sees its numbers, so other stages pass unchanged.
    """

    def __init__(self, inner: Engine, attack: Attack, attackers: Collection[int], seed: int) -> None:
        self.inner, self.attack, self.attackers = inner, attack, frozenset(attackers)
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def clients(self) -> int:
        return self.inner.clients

    @property
    def complaints(self) -> Mapping[int, str]:
        return self.inner.complaints

    @property
    def directory(self) -> Mapping[int, bytes]:
        return self.inner.directory

    @property
    def unheard(self) -> Collection[int]:
        return self.inner.unheard

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        self.inner.acknowledge(rounds)

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        replies = dict(self.inner.ask(requests, stage))
        present = sorted(self.attackers & replies.keys())
        if stage != "train" or not present or len(present) == len(replies):
            return replies
        packets = {client: unpack(reply) for client, reply in replies.items()}
        own = torch.stack([_numbers(packets[client]) for client in present])
        honest = torch.stack([_numbers(packet) for client, packet in packets.items() if client not in self.attackers])
        for client, values in zip(present, self.attack.sent(own, honest, self._generator), strict=True):
            packet = packets[client]
            arrays = {**packet.arrays, "values": values.reshape(packet.arrays["values"].shape).contiguous()}
            replies[client] = pack(replace(packet, arrays=arrays))
        return replies


def _numbers(packet: Packet) -> Tensor:
    values = packet.arrays["values"]
    assert isinstance(values, Tensor), "this attack reads packets of float32 numbers"
    return values.reshape(-1)
