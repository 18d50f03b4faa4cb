"""Noise without secure sums: in local steps, on what is sent, or added by a trusted server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sketchfed.algorithms import Change, RoundContext
from sketchfed.privacy.gaussian import GaussianNoise
from sketchfed.protection.base import Protection
from sketchfed.protection.batches import ExampleBatches, batch_of, private_descent
from sketchfed.protection.budget import Budget
from sketchfed.protection.units import ProtectedUnit
from sketchfed.protection.work import ClientWork
from sketchfed.seeds import SecretSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class NoisySteps(Protection):
    """Noise in local steps: each gradient is clipped per example and noised before anything is encoded.

    Paper: Song et al. 2023, Alg. 2. The noise has as many numbers as the model, so any algorithm and codec can send the result.
    """

    budget: Budget = field()
    draws: ExampleBatches

    noise_before_code = True

    @property
    def batches(self) -> ExampleBatches:
        return self.draws

    def reply(self, work: ClientWork) -> tuple[Packet, Tensor | None]:
        return self.algorithm.client(self.change(work, self.client_secret(work.context)), work.memory, work.context)

    def change(self, work: ClientWork, secret: SecretSeed) -> Change:
        """Compute the change that noisy local steps make."""
        weights, clip, local = work.replica.weights, self.budget.settings.clip, self.algorithm.work
        noise = self.budget.settings.noise(work.trainer.dim, self.budget.multiplier)
        batches = self.batches.draw(work.examples, work.context, secret)
        sent = private_descent(work.trainer, weights, batches, local, clip=clip, noise=noise.noised, pull=work.pull)
        return Change(sent.sub_(weights))

    def variance(self, clients: int) -> float:
        """The variance of the noise. The noise goes through the code, so this is exact only for orthonormal codes."""
        work = self.algorithm.work
        # With momentum, the noise of a step also enters all later steps.
        lasting = [sum(work.momentum**later for later in range(left + 1)) for left in range(self.budget.releases)]
        deviation = self.budget.multiplier * self.budget.settings.clip
        return deviation**2 * clients * sum(share**2 for share in lasting) * (work.rate / batch_of(work) / clients) ** 2


@dataclass(frozen=True, kw_only=True)
class NoisySent(Protection):
    """Noise on what is sent: each client clips its encoded contributions and adds noise to their sum."""

    budget: Budget = field()
    unit: ProtectedUnit
    mechanism: GaussianNoise

    @property
    def batches(self) -> ExampleBatches | None:
        return self.unit.batches

    @property
    def clip(self) -> float | None:
        if self.batches is None:
            return self.mechanism.clip
        work = self.algorithm.work
        return self.mechanism.clip * work.rate if self.budget.releases == work.batch == 1 else None

    def reply(self, work: ClientWork) -> tuple[Packet, Tensor | None]:
        return self.unit.packet(work, self.mechanism, self.mechanism.noised, self.client_secret(work.context))

    def variance(self, clients: int) -> float:
        return self.mechanism.deviation**2 * clients * self.budget.releases * (self.unit.scale / clients) ** 2


@dataclass(frozen=True, kw_only=True)
class CentralNoise(NoisySent):
    """Central noise: clients clip, and a trusted server adds noise once, to the sum. It protects against the public only."""

    central = True

    @property
    def hidden(self) -> bool:
        return self.budget.settings.hidden_cohorts

    def reply(self, work: ClientWork) -> tuple[Packet, Tensor | None]:
        return self.unit.packet(work, self.mechanism, _nothing, self.client_secret(work.context))

    def combine(self, replies: Sequence[Packet], context: RoundContext) -> list[Packet]:
        """Return one packet for all clients, with noise that hides any single unit.

        The server clips clients once more, because one client that did not clip would harm everybody. If cohorts are hidden,
        the sum is divided by the expected number of clients, because the true number reveals something about who took part. A
        round without clients is then pure noise.
        """
        code, scale = self.code(context), self.unit.scale
        rows = torch.stack([code.values(packet) for packet in replies]) if replies else torch.zeros(0, code.size)
        total = self.mechanism.clipped_sum(rows) if self.batches is None else rows.sum(0)
        noisy = self.mechanism.noised(total / scale, self.secret(context.round, "server")) * scale
        return [code.packet(noisy, clients=self.cohort_size if self.hidden else len(replies))]

    def variance(self, clients: int) -> float:
        return self.mechanism.deviation**2 * (self.unit.scale / clients) ** 2


def _nothing(total: Tensor, secret: SecretSeed) -> Tensor:
    """Add no noise on the client, because the server adds it."""
    return total
