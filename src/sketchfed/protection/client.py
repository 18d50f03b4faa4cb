"""The client's side: from training to what is sent in the clear, or goes under masks."""

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from sketchfed.algorithms import Replica, RoundContext
from sketchfed.algorithms.linear import LinearCode
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.gaussian import Gaussian
from sketchfed.privacy.rounded import Rounded
from sketchfed.protection.protection import Protection
from sketchfed.seeds import SecretSeed
from sketchfed.training import Examples, Trainer
from sketchfed.training.base import CHUNK
from sketchfed.training.private import Batches, hidden_batches, passed_batch, private_descent
from sketchfed.wire import Packet


def private_packet(
    protection: Protection,
    trainer: Trainer,
    replica: Replica,
    examples: Examples,
    memory: Tensor | None,
    context: RoundContext,
) -> tuple[Packet, Tensor | None]:
    """The packet of a client whose reply is seen as it is, and what the client keeps.

    Noise is in it unless the server is trusted to add it.
    """
    secret = protection.secret(context.round, "client", context.client)
    if protection.in_steps:
        return _trained(protection, trainer, replica, examples, memory, context, secret)
    assert protection.privacy is not None
    mechanism = protection.summation
    assert isinstance(mechanism, Gaussian)
    code = protection.code(context)
    if protection.privacy.unit == "example":
        return code.packet(_noisy_codes(protection, mechanism, trainer, replica, examples, context, secret)), None
    packet, memory = _trained(protection, trainer, replica, examples, memory, context, secret)
    clipped = mechanism.clipped_sum(code.values(packet)[None])
    return code.packet(clipped if protection.central else mechanism.noised(clipped, secret)), memory


def integers(protection: Protection, trainer: Trainer, replica: Replica, examples: Examples, context: RoundContext) -> Tensor:
    """What a client puts under its masks: `(size,)`, of as many bits as the secure sum has."""
    secret = protection.secret(context.round, "client", context.client)
    mechanism = protection.summation
    assert isinstance(mechanism, DiscreteGaussian | Rounded)
    code = protection.code(context)
    if protection.privacy is None or protection.in_steps or protection.privacy.unit == "client":
        packet, _ = _trained(protection, trainer, replica, examples, None, context, secret)
        total = mechanism.clipped_sum(code.values(packet)[None], secret, context.shared)
    else:
        total = torch.zeros(code.size, dtype=torch.int64)
        [(batch, own)] = batches_of(protection, examples, context, secret)
        for index, rows in enumerate(_encoded(code, trainer, replica.weights, batch, protection.algorithm.work.rate)):
            total += mechanism.clipped_sum(rows, own.child("rounding", index), context.shared)
    return mechanism.noised(total, secret)


def _trained(
    protection: Protection,
    trainer: Trainer,
    replica: Replica,
    examples: Examples,
    memory: Tensor | None,
    context: RoundContext,
    secret: SecretSeed,
) -> tuple[Packet, Tensor | None]:
    """What the algorithm sends after local work; with noise in each step, if that is where it goes."""
    work = protection.algorithm.work
    if protection.in_steps:
        steps = protection.steps(trainer.dim)
        batches = batches_of(protection, examples, context, secret)
        trained = private_descent(trainer, replica.weights, batches, work, clip=steps.clip, noise=steps.noised)
    else:
        trained = trainer.train(replica.weights, examples, work, context.own)
    return protection.algorithm.client(trained.sub_(replica.weights), memory, context)


def batches_of(protection: Protection, examples: Examples, context: RoundContext, secret: SecretSeed) -> Batches:
    """The batches of a round at example level: hidden ones, or the one whose turn it is."""
    work = protection.algorithm.work
    if protection.passes is None:
        return hidden_batches(examples, work, secret)
    assert work.batch is not None
    turn = protection.passes.turn(context.seed, context.round, context.client)
    batch = passed_batch(examples, work.batch, turn, context.seed.child("examples", context.client))
    return [(batch, secret.child("step", 0))]


def _noisy_codes(
    protection: Protection,
    mechanism: Gaussian,
    trainer: Trainer,
    replica: Replica,
    examples: Examples,
    context: RoundContext,
    secret: SecretSeed,
) -> Tensor:
    """The encoded change `(size,)` after local steps that see each other only through noisy codes.

    In each step the gradients of a hidden batch are encoded, clipped one by one, and added up, and noise goes on the sum:
    among `size` numbers instead of `dim`. The client goes on from what anyone could decode of that, so all that it sends is
    a function of noisy sums. Where the server adds the noise there is one step, and what leaves here has none yet. What is
    taken off a change is taken off its steps, in equal parts.
    """
    work, code, steps = protection.algorithm.work, protection.code(context), protection.noisy_steps
    assert work.batch is not None
    weights, total = replica.weights.clone(), torch.zeros(code.size)
    for batch, own in batches_of(protection, examples, context, secret):
        if code.map is None and code.offset is None:
            summed = code.apply(trainer.clipped_sum(weights, batch, mechanism.clip))
        else:
            summed = torch.zeros(code.size)
            for rows in _encoded(code, trainer, weights, batch, work.rate * steps):
                summed += mechanism.clipped_sum(rows)
        noisy = summed if protection.central else mechanism.noised(summed, own)
        change = noisy.mul(-work.rate / work.batch)
        total += change
        if steps > 1:
            weights += trainer.gram(code.adjoint(change if code.offset is None else change + code.offset / steps))
    return total


def _encoded(code: LinearCode, trainer: Trainer, weights: Tensor, batch: Examples, rate: float) -> Iterator[Tensor]:
    """The encoded gradients of examples, `(some, size)` at a time: as many as fit the cache."""
    if getattr(_kept, "rows", torch.empty(0, 0)).shape[1] != trainer.dim:
        _kept.rows = torch.empty(CHUNK, trainer.dim)
    for start in range(0, len(batch.x), CHUNK):
        part = Examples(batch.x[start : start + CHUNK], batch.y[start : start + CHUNK])
        yield code.of_gradients(trainer.gradients(weights, part, out=_kept.rows), rate)


_kept = threading.local()  # fresh memory for gradients costs more than the gradients
