"""Clients that do harm on purpose, for experiments in one process: the attacks of the literature on robust rules.

Attackers know what all honest clients of the round send, and agree with each other. They change what is sent in the encoded
space, where a robust rule looks at it, or the examples that they train on. In the clear they change their replies; under secure
sums they change their integers before these are masked.
"""

import math
from abc import ABC
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.protection import ClientWork, SecureSums
from sketchfed.rounds import Engine, Participant, Relay
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

    def sent(self, own: Tensor, honest: Tensor, *, attackers: int, generator: torch.Generator) -> Tensor:
        """Return what attackers send, a row for each row of `own`, which is what they would send if they were honest.

        `honest` `(honest clients, size)` is what the others send. `attackers` is the number of attackers in the round.
        """
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

    def sent(self, own: Tensor, honest: Tensor, *, attackers: int, generator: torch.Generator) -> Tensor:
        return self.factor * own


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """Attackers send normal noise, `times` as long as an honest update."""

    times: float = 10.0

    name = "noise"
    summary = "normal noise, longer than an honest update"

    def sent(self, own: Tensor, honest: Tensor, *, attackers: int, generator: torch.Generator) -> Tensor:
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

    def sent(self, own: Tensor, honest: Tensor, *, attackers: int, generator: torch.Generator) -> Tensor:
        count = attackers + len(honest)
        needed = count // 2 + 1 - attackers
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

    def sent(self, own: Tensor, honest: Tensor, *, attackers: int, generator: torch.Generator) -> Tensor:
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

    def sent(self, own: Tensor, honest: Tensor, *, attackers: int, generator: torch.Generator) -> Tensor:
        return own * ((attackers + len(honest)) / attackers)


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


class Attackers:
    """Clients that attack together, and what they know of the current round."""

    def __init__(self, attack: Attack, clients: Collection[int], seed: int) -> None:
        self.attack, self.clients = attack, frozenset(clients)
        self.present = 0
        """The number of attackers in the round."""
        self.honest: dict[int, Tensor] = {}
        """What each honest client sends in the round."""
        self._generator = torch.Generator().manual_seed(seed)

    def sent(self, own: Tensor) -> Tensor:
        """Return what attackers send in place of `own`, one row for each. Without honest clients they have nobody to harm."""
        if not self.honest:
            return own
        honest = torch.stack([self.honest[client] for client in sorted(self.honest)])
        return self.attack.sent(own, honest, attackers=self.present, generator=self._generator)

    def among(self, participant: Participant) -> Participant:
        """Return a participant whose clients mask what the attackers want if sums are secure. In the clear it is unchanged."""
        protection = participant.protection
        if not isinstance(protection, SecureSums):
            return participant
        if type(protection) is not SecureSums:
            raise InputError("attackers under secure sums change rounded numbers, without noise. Leave [privacy] out.")
        settings = {each.name: getattr(protection, each.name) for each in fields(protection)}
        return replace(participant, protection=AttackedSums(**settings, attackers=self))


@dataclass(frozen=True, kw_only=True)
class AttackedSums(SecureSums):
    """The clients' side of secure sums, where attackers choose the integers that they mask.

    Keys, shares, masks, groups and opened sums are those of the protocol, and attackers keep to it: a client that does not is
    left out of its sum. An attacker can ignore the clip norm and mask any integers modulo 2^bits, and it knows what all honest
    clients add. It cannot choose its group, nor add to the sum of another group. It does not cancel what the others of its
    group add, although it could.

    If a number of a sum exceeds half of the ring it wraps around, and the direction that the attacker chose is lost. Attackers
    therefore scale a vector down until each number is at most half of the ring over the clients of a group. That is also the
    largest number of an honest client, but a vector of such numbers is √size times as long as `clip`, far beyond the norm to
    which the server clips the sum.
    """

    attackers: Attackers = field(compare=False)

    def integers(self, work: ClientWork) -> Tensor:
        values, half = super().integers(work), 1 << self.mechanism.bits - 1
        own, client = ((values ^ half) - half).double(), work.context.client
        if client not in self.attackers.clients:
            self.attackers.honest[client] = own
            return values
        wanted = self.attackers.sent(own[None])[0].double()
        most = half // max(self.group_sizes)
        fitted = wanted * min(1.0, most / max(1.0, float(wanted.abs().max())))
        return fitted.round().long() & (2 * half - 1)


class AttackedEngine(Relay):
    """An engine some of whose clients are attackers.

    In the clear it changes the replies of attackers, whose numbers are `values`. In a secure sum it asks the honest clients for
    their masked values first, so that the attackers, who must be `among` the participant, know what these add.
    """

    def __init__(self, inner: Engine, attackers: Attackers) -> None:
        super().__init__(inner)
        self.attackers = attackers
        self._complaints: dict[int, str] = {}

    @property
    def complaints(self) -> Mapping[int, str]:
        return self._complaints

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        self._complaints = {}
        if stage == "train":
            return self._changed(self._asked(requests, stage))
        if stage != "masked":
            return self._asked(requests, stage)
        attacking = {client: request for client, request in requests.items() if client in self.attackers.clients}
        self.attackers.present, self.attackers.honest = len(attacking), {}
        replies = self._asked({client: requests[client] for client in requests if client not in attacking}, stage)
        return replies | self._asked(attacking, stage)

    def _asked(self, requests: Mapping[int, bytes], stage: str) -> dict[int, bytes]:
        if not requests:
            return {}
        replies = dict(self.inner.ask(requests, stage))
        self._complaints |= self.inner.complaints
        return replies

    def _changed(self, replies: dict[int, bytes]) -> dict[int, bytes]:
        """Replies in the clear, with those of the attackers replaced."""
        attackers = self.attackers
        present = sorted(attackers.clients & replies.keys())
        if not present:
            return replies
        packets = {client: unpack(reply) for client, reply in replies.items()}
        attackers.present = len(present)
        attackers.honest = {client: _numbers(packet) for client, packet in packets.items() if client not in attackers.clients}
        sent = attackers.sent(torch.stack([_numbers(packets[client]) for client in present]))
        for client, values in zip(present, sent, strict=True):
            packet = packets[client]
            arrays = {**packet.arrays, "values": values.reshape(packet.arrays["values"].shape).contiguous()}
            replies[client] = pack(replace(packet, arrays=arrays))
        return replies


def _numbers(packet: Packet) -> Tensor:
    values = packet.arrays["values"]
    assert isinstance(values, Tensor), "this attack reads packets of float32 numbers"
    return values.reshape(-1)
