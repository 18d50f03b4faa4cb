"""Compares the actual norms of contributions with the chosen clip norm, before the first round."""

from dataclasses import replace

import torch
from torch import Tensor

from sketchfed.algorithms import Replica, RoundContext, State
from sketchfed.protection.base import Protection
from sketchfed.protection.secure_sums import SecureNoise, SecureSums
from sketchfed.protection.work import ClientWork
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Trainer

CLIENTS, EXAMPLES = 5, 32
"""The number of clients that are measured, and the number of examples of each."""


def norms(
    protection: Protection, trainer: Trainer, replica: Replica, data: list[Examples], seed: PublicSeed
) -> tuple[str, float, Tensor]:
    """Return the name of the clip setting, its value, and the norms that it would clip, measured at the first weights."""
    algorithm = protection.algorithm
    form = algorithm.given(seed, replica.round)
    replica = form.replica(form.packet(replica), trainer.dim)
    while not form.trains:
        replica = _warmed(protection, trainer, replica, data, seed)
        form = algorithm.given(seed, replica.round)
    context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
    trainer = form.trainer(trainer)
    if isinstance(protection, SecureSums) and not isinstance(protection, SecureNoise):
        return "secure.clip", protection.mechanism.clip, _changes(protection, trainer, replica, data, context)
    budget = protection.budget
    if budget is None:
        raise ValueError("this protection clips nothing, so there are no norms to measure")
    if protection.batches is None:
        return "privacy.clip", budget.settings.clip, _changes(protection, trainer, replica, data, context)
    firsts = [each.part(0, EXAMPLES) for each in data]
    gradients = [trainer.gradients(replica.weights, first) for first in firsts]
    if not protection.noise_before_code:
        code, rate = protection.code(context), algorithm.work.rate
        gradients = [code.of_gradients(rows, rate) for rows in gradients]
    return "privacy.clip", budget.settings.clip, torch.cat([rows.norm(dim=1).cpu() for rows in gradients])


def _warmed(protection: Protection, trainer: Trainer, replica: Replica, data: list[Examples], seed: PublicSeed) -> Replica:
    """Return the replica after a round without noise, to reach the first round that trains."""
    context, algorithm = RoundContext(round=replica.round, seed=seed, client=0, replica=replica), protection.algorithm
    packets = []
    for examples in data:
        warm = algorithm.given(seed, replica.round).trainer(trainer)
        work = ClientWork(trainer=warm, replica=replica, examples=examples, memory=None, context=context)
        packets.append(algorithm.client(work.trained(algorithm.work), None, context)[0])
    return algorithm.server(State(replica=replica), packets, seed)[0].replica


def _changes(protection: Protection, trainer: Trainer, replica: Replica, data: list[Examples], context: RoundContext) -> Tensor:
    works = [
        ClientWork(trainer=trainer, replica=replica, examples=each, memory=None, context=replace(context, client=client))
        for client, each in enumerate(data)
    ]
    changes = [work.trained(protection.algorithm.work) for work in works]
    return torch.stack([change.through(protection.code(context)).norm().cpu() for change in changes])


def advice(setting: str, clip: float, measured: Tensor) -> str | None:
    """Return advice about a clip norm that no norm reaches or that every norm exceeds. None if it lies in between.

    The norms are measured without noise, so the advice is for the operator of a simulation, not for publication.
    """
    least, middle, most = (float(end) for end in torch.quantile(measured, torch.tensor([0.0, 0.5, 1.0])))
    found = (
        f"Of {len(measured)} norms at the first weights, the smallest is {least:.3g}, the median {middle:.3g} and the largest "
        f"{most:.3g}"
    )
    if most < clip and setting == "privacy.clip":
        return (
            f"{setting} = {clip:g} is never reached (quantile 1). {found}. Noise is proportional to the clip norm, so there is "
            f"more of it than needed: try {middle:.2g}."
        )
    if least > clip:
        return (
            f"{setting} = {clip:g} clips everything (quantile 0). {found}. Clients then send only directions, without lengths: "
            f"try {middle:.2g}, or keep this clip norm on purpose and take longer steps."
        )
    return None
