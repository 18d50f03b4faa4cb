"""Secure sums: clients send masked integers, and the server learns only their sum."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from sketchfed.algorithms import RoundContext, cohort, round_seed
from sketchfed.draws import permutation
from sketchfed.errors import SecureSumError
from sketchfed.privacy.claims import Charge
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.rounded import Rounded
from sketchfed.protection.base import Protection
from sketchfed.protection.batches import ExampleBatches, batch_of
from sketchfed.protection.budget import Budget
from sketchfed.protection.honest_sums import clipped_to, honest_norm
from sketchfed.protection.noise import NoisySteps
from sketchfed.protection.settings import SecureSettings
from sketchfed.protection.units import ProtectedUnit
from sketchfed.protection.work import ClientWork
from sketchfed.secure import Terms
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, tensor_named

log = logging.getLogger("sketchfed")

INTEGERS = "integers"
"""The kind of packet that is masked. It never leaves a client without a mask."""


@dataclass(frozen=True, kw_only=True)
class SecureSums(Protection):
    """Sums over masked integers. The server cannot read the integers of a single client.

    Without [privacy], the integers are rounded numbers, and no ε is claimed. With noise in local steps, they are also rounded
    numbers, and the change already contains the noise. Otherwise each client adds a share of discrete Gaussian noise.
    """

    settings: SecureSettings
    unit: ProtectedUnit
    mechanism: Rounded | DiscreteGaussian

    @property
    def batches(self) -> ExampleBatches | None:
        return self.unit.batches

    @property
    def packets(self) -> int:
        """The number of sums in a round."""
        return len(self.group_sizes)

    def reply(self, work: ClientWork) -> tuple[Packet, None]:
        return Packet(kind=INTEGERS, arrays={"values": self.integers(work)}), None

    def integers(self, work: ClientWork) -> Tensor:
        """Return the integers that a client masks, `(mechanism.size,)` of int64, with its share of the noise."""
        secret = self.client_secret(work.context)
        return self.mechanism.noised(self.unit.integers(work, self.mechanism, secret), secret)

    def combine(self, replies: Sequence[Packet], context: RoundContext) -> list[Packet]:
        """Convert opened sums of integers into the packets that the algorithm decodes.

        A sum is clipped to the largest norm that honest clients can add up to, because a single client can send any integers.
        """
        return [self._recovered(expect_kind(packet, INTEGERS), context) for packet in replies]

    def opened(self, total: Tensor, survivors: int, context: RoundContext) -> Packet:
        """Convert the integers of one unmasked sum into the packet that the algorithm decodes."""
        [packet] = self.combine([Packet(kind=INTEGERS, arrays={"values": total}, clients=survivors)], context)
        return packet

    @cached_property
    def group_sizes(self) -> list[int]:
        """The number of clients in each group of a round, the largest first."""
        return self.settings.group_sizes(self.cohort_size)

    def groups(self, seed: PublicSeed, index: int) -> list[tuple[int, ...]]:
        """The clients of a round, split at random. Each group has a secure sum of its own."""
        clients = cohort(seed, index, population=self.population, count=self.cohort_size)
        if len(self.group_sizes) == 1:
            return [tuple(clients)]
        order = permutation(round_seed(seed, index).child("groups"), len(clients)).tolist()
        starts = accumulate(self.group_sizes, initial=0)
        parts = [order[start : start + size] for start, size in zip(starts, self.group_sizes, strict=False)]
        return [tuple(sorted(clients[place] for place in part)) for part in parts]

    def terms(self, seed: PublicSeed, index: int, attempt: int) -> list[Terms]:
        """The terms on which each group of a round agrees. Each attempt at a round has sessions of its own.

        Attempt 0 is that of sums whose keys and shares travel with the messages of the round before.
        """
        session = round_seed(seed, index).child("secure", attempt)
        return [
            self._terms(session.child("group", number).to_bytes(), index, clients)
            for number, clients in enumerate(self.groups(seed, index))
        ]

    def _terms(self, session: bytes, index: int, clients: tuple[int, ...]) -> Terms:
        shape = {"size": self.mechanism.size, "bits": self.mechanism.bits}
        return self.settings.terms(clients, cohort=self.cohort_size, session=session, index=index, **shape)

    def agreed(self, proposed: Terms, seed: PublicSeed) -> Terms:
        """Return the proposed terms if the client computes the same ones from the public seed, else raise an error."""
        for attempt in range(self.settings.attempts + 1):
            if proposed in self.terms(seed, proposed.round, attempt):
                return proposed
        raise SecureSumError(
            f"the server proposes a secure sum for round {proposed.round} over {len(proposed.clients)} clients, but its terms "
            "differ from the run's settings. This client does not take part; check that server and client run the same "
            "configuration."
        )

    def _recovered(self, packet: Packet, context: RoundContext) -> Packet:
        total = tensor_named(packet, "values", shape=(self.mechanism.size,), dtype=torch.int64)
        opened = self.mechanism.recovered(total, context.shared)
        batch = None if self.unit.batches is None else batch_of(self.algorithm.work)
        most = honest_norm(self.mechanism, clients=packet.clients, batch=batch)
        values = clipped_to(opened, most)
        if values is not opened:
            log.warning(
                "round %d: a secure sum over %d clients has norm %.3g, but honest clients add up to at most %.3g. Some client "
                "sent something else than its update. The sum is clipped.",
                context.round + 1,
                packet.clients,
                float(opened.double().norm()),
                most,
            )
        return self.code(context).packet(values * self.unit.scale, clients=packet.clients)


@dataclass(frozen=True, kw_only=True)
class SecureNoise(SecureSums):
    """Secure sums in which each client adds a share of discrete Gaussian noise."""

    mechanism: DiscreteGaussian
    budget: Budget = field()

    @property
    def clip(self) -> float | None:
        if self.batches is None:
            return self.mechanism.clip
        work = self.algorithm.work
        return self.mechanism.clip * work.rate if self.budget.releases == work.batch == 1 else None

    def charge(self, survivors: int | None = None) -> Charge:
        """The privacy cost of a round with this many survivors in its smallest sum.

        The worst case is the smallest number of survivors with which a sum is still opened.

        With passes, the worst case is always charged, because one charge covers a whole pass, and other rounds of the pass may
        have fewer survivors.
        """
        worst = survivors is None or self.budget.passes is not None
        stayed = self.settings.least(min(self.group_sizes)) if worst or survivors is None else survivors
        return self.budget.charge(self.settings.honest(stayed, max(self.group_sizes), self.cohort_size))

    def variance(self, clients: int) -> float:
        return self.mechanism.variance(clients=clients, units=0) * (self.unit.scale / clients) ** 2


@dataclass(frozen=True, kw_only=True)
class SecureSteps(SecureSums):
    """Secure sums of the changes that noisy local steps make."""

    steps: NoisySteps
    budget: Budget = field()

    noise_before_code = True

    def unseeded(self) -> Self:
        return replace(super().unseeded(), steps=self.steps.unseeded())

    @property
    def batches(self) -> ExampleBatches:
        return self.steps.batches

    def variance(self, clients: int) -> float:
        return self.steps.variance(clients)
