"""Before the first round: how long contributions really are, beside the clip norm that was chosen for them."""

import torch
from torch import Tensor

from sketchfed.algorithms import Replica, RoundContext, State
from sketchfed.protection.protection import Protection
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Trainer

CLIENTS, EXAMPLES = 5, 32
"""So many clients are looked at, and so many examples of each."""


def norms(
    protection: Protection, trainer: Trainer, replica: Replica, data: list[Examples], seed: PublicSeed
) -> tuple[str, float, Tensor]:
    """The setting that clips, its value, and the norms at the first weights of what it would clip."""
    algorithm = protection.algorithm
    replica = algorithm.received(algorithm.snapshot(replica, seed), trainer.dim, seed)
    for _ in range(algorithm.warm_up):
        replica = _warmed(protection, trainer, replica, data, seed)
    context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
    trainer = algorithm.local(trainer, context)
    if protection.privacy is None or (protection.secure is not None and protection.in_steps):
        assert protection.secure is not None
        assert protection.secure.clip is not None
        return "secure.clip", protection.secure.clip, _changes(protection, trainer, replica, data, context)
    if protection.privacy.unit == "client":
        return "privacy.clip", protection.privacy.clip, _changes(protection, trainer, replica, data, context)
    firsts = [Examples(each.x[:EXAMPLES], each.y[:EXAMPLES]) for each in data]
    gradients = [trainer.gradients(replica.weights, first) for first in firsts]
    if not protection.in_steps:
        code, rate = protection.code(context), algorithm.work.rate
        gradients = [code.of_gradients(rows, rate) for rows in gradients]
    return "privacy.clip", protection.privacy.clip, torch.cat([rows.norm(dim=1) for rows in gradients])


def _warmed(protection: Protection, trainer: Trainer, replica: Replica, data: list[Examples], seed: PublicSeed) -> Replica:
    """The replica after a round without noise: the first in which training happens is what matters."""
    context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
    algorithm, code = protection.algorithm, protection.code(context)
    warm = algorithm.local(trainer, context)
    trained = [warm.train(replica.weights, each, algorithm.work, context.own) - replica.weights for each in data]
    packets = [code.packet(code.apply(change)) for change in trained]
    return algorithm.server(State(replica=replica), packets, seed)[0].replica


def _changes(protection: Protection, trainer: Trainer, replica: Replica, data: list[Examples], context: RoundContext) -> Tensor:
    code, work = protection.code(context), protection.algorithm.work
    trained = [trainer.train(replica.weights, each, work, context.own) for each in data]
    return torch.stack([code.apply(weights - replica.weights).norm() for weights in trained])


def advice(setting: str, clip: float, measured: Tensor) -> str | None:
    """What to say of a clip norm that nothing reaches, or that everything exceeds; None if it lies between.

    The norms are measured without noise, so what is said here is for the operator of a simulation, not for publication.
    """
    least, middle, most = (float(end) for end in torch.quantile(measured, torch.tensor([0.0, 0.5, 1.0])))
    found = (
        f"Of {len(measured)} norms at the first weights {least:.3g} is the least, {middle:.3g} the median, {most:.3g} the most"
    )
    if most < clip and setting == "privacy.clip":
        return (
            f"{setting} = {clip:g} is never reached (quantile 1). {found}. Noise is proportional to the clip norm, so there is "
            f"more of it than needed: try {middle:.2g}."
        )
    if least > clip:
        return (
            f"{setting} = {clip:g} shortens everything (quantile 0). {found}. Only directions are left of what is sent: try "
            f"{middle:.2g}, or keep it on purpose and take longer steps."
        )
    return None
