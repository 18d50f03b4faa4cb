"""The server's side: one packet that stands for all clients of a round, noised or unmasked."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sketchfed.algorithms import RoundContext
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.gaussian import Gaussian
from sketchfed.privacy.rounded import Rounded
from sketchfed.protection.protection import Protection
from sketchfed.wire import Packet


def noised_sum(protection: Protection, packets: Sequence[Packet], context: RoundContext) -> Packet:
    """The packets of a round as one, with the noise that hides any unit in it: for a server that is trusted.

    Clients are clipped once more, for one that did not would cost everybody. Where cohorts are hidden, the sum is divided by
    how many clients were expected: how many came says something of those who did. So a round without clients is noise.
    """
    mechanism = protection.summation
    assert isinstance(mechanism, Gaussian)
    assert protection.privacy is not None
    code, scale = protection.code(context), 1.0
    rows = torch.stack([code.values(packet) for packet in packets]) if packets else torch.zeros(0, code.size)
    if protection.privacy.unit == "example":
        total, scale = rows.sum(0), _step(protection)
    else:
        total = mechanism.clipped_sum(rows)
    noisy = mechanism.noised(total / scale, protection.secret(context.round, "server")) * scale
    return code.packet(noisy, clients=protection.cohort if protection.hidden else len(packets))


def recovered_sum(protection: Protection, total: Tensor, survivors: int, context: RoundContext) -> Packet:
    """The integers of an unmasked sum as the packet that the algorithm decodes."""
    mechanism = protection.summation
    assert isinstance(mechanism, DiscreteGaussian | Rounded)
    values = mechanism.recovered(total, context.shared)
    if protection.privacy is not None and protection.privacy.unit == "example" and not protection.in_steps:
        values = values * _step(protection)
    return protection.code(context).packet(values, clients=survivors)


def _step(protection: Protection) -> float:
    """What a sum of clipped gradients is multiplied with to become a change."""
    work = protection.algorithm.work
    assert work.batch is not None
    return -work.rate / work.batch
