"""Applies the combine rule of a run to the packets of a round. Rules that cannot work are refused before round 1."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, Change, DecodesAlone, RoundContext, combined_packet
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import InputError, NotLinearError, SketchfedError
from sketchfed.protection.base import Protection
from sketchfed.protection.checks import declared_code
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


def combined(protection: Protection, packets: Sequence[Packet], context: RoundContext) -> list[Packet]:
    """Return one packet for all clients, made by the run's combine rule. If that is the mean, return the packets unchanged.

    The rule works on the mean of each packet over its clients, with their number as its weight. If packets are linear codes, it
    works on the encoded numbers, and the result is an ordinary packet. Otherwise each packet is decoded by itself.
    """
    settings = protection.algorithm.combine
    if settings.averages:
        return list(packets)
    code = _code(protection, context)
    read = code.values if code is not None else _reader(protection, context)
    rows = torch.stack([read(packet) for packet in packets])
    weights = torch.tensor([packet.clients for packet in packets], dtype=torch.float64)
    clients = sum(packet.clients for packet in packets)
    values = settings.rule().combine(rows / weights[:, None].to(rows.dtype), weights)
    return [combined_packet(values, clients) if code is None else code.packet(values * clients, clients=clients)]


def check_combine(protection: Protection) -> None:
    """Refuse a combine rule that breaks a claim of privacy, has too few packets to compare, or cannot read them."""
    algorithm = protection.algorithm
    settings = algorithm.combine
    if settings.averages:
        return
    if protection.central:
        raise InputError(
            f"algorithm.combine = '{settings.name}' with privacy.observer = 'public': the server's noise hides what one client "
            "can add to a sum, but in this rule one client can change which others count, so the noise would not cover it. "
            "Use privacy.observer = 'server', where clients add the noise themselves, or algorithm.combine = 'mean': the "
            "server clips every reply there, so an attacker adds no more than anybody else."
        )
    if protection.packets == 1 < protection.cohort_size:
        raise InputError(
            f"algorithm.combine = '{settings.name}' compares the packets of a round, but under secure sums the server gets one "
            "sum per round, and nothing to compare it with. Split the clients into groups, each with a sum of its own "
            "(secure.groups), or use algorithm.combine = 'mean', with which the sum is still clipped to what honest clients "
            "can send, or set secure.aggregation = false."
        )
    settings.rule().check(protection.packets)
    _check_readable(protection)


def _check_readable(protection: Protection) -> None:
    """Try whether the rule can read packets, and whether the server can use its result."""
    algorithm, dim = protection.algorithm, protection.dim
    context = RoundContext(round=0, seed=PublicSeed(0), client=0)
    try:
        if _code(protection, context) is not None:
            declared_code(algorithm, dim, context)
        elif isinstance(algorithm, DecodesAlone):
            _try_alone(algorithm, algorithm, dim, context)
        else:
            protection.code(context)  # raises an error that says why there is no code
    except NotLinearError as error:
        raise InputError(
            f"algorithm.combine = '{algorithm.combine.name}' works on the vectors that clients send, but {error.subject} does "
            f"not show them: {error.reason} Use algorithm.combine = 'mean', or an algorithm whose packets are linear codes or "
            "can be decoded one by one, such as 'fedavg'."
        ) from None


def _try_alone(algorithm: Algorithm, alone: DecodesAlone, dim: int, context: RoundContext) -> None:
    """Try whether a packet that was decoded by itself leads to the same weights as the packet."""
    subject = f"algorithm '{algorithm.label}'"
    try:
        packet, _ = algorithm.client(Change(torch.linspace(-1.0, 1.0, dim)), None, context)
        decoded = combined_packet(alone.decoded_alone(packet, dim, context), 1)
        one, other = (
            algorithm.server(algorithm.begin(torch.zeros(dim)), [each], context.seed)[0].replica.weights
            for each in (packet, decoded)
        )
    except Exception as error:  # an external part may raise anything
        reason = str(error) if isinstance(error, SketchfedError) else f"{type(error).__name__}: {error}"
        raise NotLinearError(subject, f"its packets cannot be decoded one by one ({reason.rstrip('.')}).") from error
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max())):
        raise NotLinearError(subject, "a packet that was decoded by itself does not lead to the weights of that packet.")


def _code(protection: Protection, context: RoundContext) -> LinearCode | None:
    """The linear code of the round's packets. None if they must be decoded one by one."""
    try:
        return protection.code(context)
    except NotLinearError:
        return None


def _reader(protection: Protection, context: RoundContext) -> Callable[[Packet], Tensor]:
    algorithm = protection.algorithm
    if not isinstance(algorithm, DecodesAlone):
        raise InputError(f"the packets of algorithm '{algorithm.name}' cannot be decoded one by one.")
    return lambda packet: algorithm.decoded_alone(packet, protection.dim, context)
