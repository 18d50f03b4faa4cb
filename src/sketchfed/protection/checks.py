"""Checks of [privacy] and [secure]. Each error says what to change."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, RoundContext
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import InputError, NotLinearError, SketchfedError, UnresolvedError
from sketchfed.privacy import GaussianNoise
from sketchfed.protection.settings import PrivacySettings, SecureSettings
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.wire import Packet

_TRIED, _LEAST_NOISE = 16_384, 0.96  # numbers with noise, and the least deviation of normal ones, 7 standard errors below 1


def check_privacy(algorithm: Algorithm, privacy: PrivacySettings, *, secure: bool) -> None:
    """Refuse settings of [privacy] that contradict each other, the algorithm or secure sums."""
    if privacy.discrete and not secure:
        raise InputError(
            "privacy.name = 'discrete_gaussian' is for secure sums: each client adds only a share of the noise, which alone "
            "hides nothing. Add [secure], or use 'gaussian'."
        )
    if privacy.discrete and privacy.placement == "steps":
        raise InputError("privacy.placement = 'steps' adds real-valued noise in local steps. Use privacy.name = 'gaussian'.")
    if not privacy.discrete and secure and privacy.placement == "sent":
        raise InputError(
            f"privacy.name = '{privacy.name}' adds real-valued noise, but secure sums add integers. Use 'discrete_gaussian', "
            "or privacy.placement = 'steps'."
        )
    if privacy.observer == "public" and (secure or privacy.placement == "steps"):
        what = "under secure sums" if secure else "in local steps"
        raise InputError(
            f"privacy.observer = 'public' trusts the server with the noise, but {what} clients add it themselves, and it "
            "protects against the server too. Use privacy.observer = 'server'."
        )
    if privacy.hidden_cohorts and (privacy.observer != "public" or privacy.unit == "example"):
        raise InputError(
            "privacy.hidden_cohorts hides from the public which clients took part. It does not hide this from the server, and "
            "does not hide single examples. Use privacy.unit = 'client' with privacy.observer = 'public'."
        )
    if privacy.adjacency == "add-remove" and privacy.unit == "client" and not privacy.hidden_cohorts:
        raise InputError(
            "privacy.adjacency = 'add-remove' hides who took part, but cohorts are drawn from the public seed. Use 'zero-out', "
            "or hide the cohorts: privacy.hidden_cohorts = true with privacy.observer = 'public'."
        )
    if reason := algorithm.refused_placements.get(privacy.placement):
        raise InputError(reason)
    if privacy.batches == "passes":
        _check_passes(algorithm, privacy)
    _check_units(algorithm, privacy, secure=secure)


def _check_passes(algorithm: Algorithm, privacy: PrivacySettings) -> None:
    if privacy.unit == "client":
        raise InputError(
            "privacy.batches = 'passes' selects the examples that a client uses in a round, but privacy.unit = 'client' "
            "protects all examples of a client, used or not. Remove privacy.batches, or use privacy.unit = 'example'."
        )
    if privacy.adjacency == "add-remove":
        raise InputError(
            "privacy.adjacency = 'add-remove' hides whether an example exists. But passes are cut into batches by the number "
            "of a client's examples, so one more example would move all others. Use 'zero-out', or privacy.batches = "
            "'poisson'."
        )
    if algorithm.local_epochs is not None or (algorithm.local_steps or 1) > 1:
        name = "local_epochs" if algorithm.local_epochs is not None else "local_steps"
        raise InputError(
            f"algorithm.{name} = {getattr(algorithm, name)}: with privacy.batches = 'passes' a client uses one batch per "
            "round, and a pass takes many rounds. Remove it, or use privacy.batches = 'poisson' with algorithm.local_steps."
        )


def _check_units(algorithm: Algorithm, privacy: PrivacySettings, *, secure: bool) -> None:
    if privacy.unit == "client":
        if privacy.placement == "steps":
            raise InputError(
                "privacy.placement = 'steps' clips the gradients of examples, so it protects examples. Use privacy.unit = "
                "'example', or placement 'sent'."
            )
        return
    if algorithm.batch is None:
        raise InputError(
            "privacy.unit = 'example' works in batches, so it needs the number of examples in a batch, or the expected number "
            "if batches are hidden. Set algorithm.batch."
        )
    if algorithm.local_epochs is not None:
        raise InputError(
            f"algorithm.local_epochs = {algorithm.local_epochs} means passes over the data, but hidden batches draw each "
            "example at random. Set algorithm.local_steps instead."
        )
    if privacy.placement == "steps":
        return
    if (algorithm.local_steps or 1) > 1 and (secure or privacy.observer == "public"):
        raise InputError(
            f"algorithm.local_steps = {algorithm.local_steps}: noise is added only to the sum, so a second local step would "
            "start from a first step without noise. Use 1, or privacy.observer = 'server' without secure sums."
        )
    if algorithm.local_momentum or algorithm.weight_decay:
        raise InputError(
            "algorithm.local_momentum and weight_decay change a step in all coordinates, but with noise on what is sent, a "
            "step consists of clipped codes. Remove them (algorithm.global_momentum works), or use privacy.placement = 'steps'."
        )


def check_noise(privacy: PrivacySettings) -> None:
    """Refuse a mechanism of somebody else that adds less noise than it is asked for, or does not clip.

    Its noise is measured on 16,384 numbers. A mechanism that keeps its word is refused with probability 1e-12.
    """
    if privacy.discrete or type(mechanism := privacy.noise(_TRIED, 1.0)) is GaussianNoise:
        return
    subject, nothing = f"privacy.name = '{privacy.name}'", torch.zeros(_TRIED)
    one, other = (mechanism.noised(nothing, SecretSeed.insecure(number)).double() / mechanism.clip for number in (1, 2))
    if (found := float(one.square().mean().sqrt())) < _LEAST_NOISE:
        raise InputError(
            f"{subject} adds noise with a deviation of {found:.3g}, but 1 was asked for, so no ε holds. Add noise with the "
            "standard deviation `self.deviation` to every number, or use 'gaussian'."
        )
    if float((one - other).square().mean().sqrt()) < _LEAST_NOISE:
        raise InputError(
            f"{subject} draws the same noise from two secrets, so it cancels in the difference of two rounds, and no ε holds. "
            "Draw it from `secret`, or use 'gaussian'."
        )
    long = torch.full((1, _TRIED), 3 * mechanism.clip / math.sqrt(_TRIED))
    if (norm := float(mechanism.clipped_sum(long).double().norm()) / mechanism.clip) > 1 + 1e-4:
        raise InputError(
            f"{subject} leaves a vector of norm {norm:.3g} as long as that, but clip is 1, so no ε holds. Scale rows that are "
            "longer than `self.clip` down to it in `clipped_sum`, or use 'gaussian'."
        )


def check_secure(secure: SecureSettings, privacy: PrivacySettings | None, *, cohort: int) -> None:
    """Refuse secure sums that hide nothing, or whose integers have no bounded range."""
    if cohort < 3:
        raise InputError(
            f"with {cohort} clients per round, a secure sum hides nothing, because a client can subtract its own reply. Raise "
            "algorithm.participation or data.clients to have 3 or more, or set secure.aggregation = false."
        )
    if (smallest := min(secure.group_sizes(cohort))) < 3:
        raise InputError(
            f"{cohort} clients per round in {len(secure.group_sizes(cohort))} groups leave {smallest} in a group, and a secure "
            "sum over fewer than 3 hides nothing. Lower secure.groups, or raise secure.group_size."
        )
    for size in sorted(set(secure.group_sizes(cohort))):
        _check_colluders(secure, size, cohort)
    noise = privacy is not None and privacy.placement == "sent"
    if noise and secure.clip is not None:
        raise InputError("secure.clip and privacy.clip both bound what a client sends. Remove secure.clip.")
    if not noise:
        secure.needed_clip()


def _check_colluders(secure: SecureSettings, size: int, cohort: int) -> None:
    """Refuse groups that colluders could open, should as many meet in one as chance allows."""
    try:
        secure.terms(range(size), cohort=cohort, session=bytes(16), index=0, size=1, bits=8)
    except InputError as error:
        raise InputError(
            f"of a round's {cohort} clients, up to {secure.colluding(size, cohort)} colluders may meet in a secure sum over "
            f"{size}, and it cannot be planned: {error} With secure.colluders = {secure.colluders:g} and secure.survivors = "
            f"{secure.survivors:g}, use larger groups, or raise secure.survivors."
        ) from None


def check_linear(algorithm: Algorithm, dim: int, *, secure: bool) -> None:
    """Refuse algorithms whose packets cannot be summed or cannot take noise.

    An algorithm, codec or sketch may declare a linear code that it does not have, so every declared code is tried.
    """
    context = RoundContext(round=0, seed=PublicSeed(0), client=0)
    try:
        declared_code(algorithm, dim, context)
    except NotLinearError as error:
        if secure:
            why, instead = "cannot be summed, so it cannot run under secure aggregation", "set secure.aggregation = false"
        else:
            why = "does not send numbers to which noise could be added"
            instead = "add it in local steps: privacy.unit = 'example' with privacy.placement = 'steps'"
        raise InputError(
            f"{error.subject} {why}: {error.reason} Use codec 'dense', codec 'sketched' or algorithm 'iterative' with "
            f"sketch.bits = 32, or {instead}."
        ) from None


def declared_code(algorithm: Algorithm, dim: int, context: RoundContext) -> None:
    """Raise `NotLinearError` unless the algorithm's packets can be summed.

    The code is tried on two changes and their sum, and the server's step on a packet that stands for two equal clients.
    """
    subject, declared = f"algorithm '{algorithm.label}'", "it declares a linear code, but"
    try:
        code = algorithm.code(dim, context)
        change = torch.linspace(-1.0, 1.0, math.prod(code.shape) if code.map is None else dim)
        other = change.flip(0).square()
        mapped = [code.mapped(each) for each in (change, other, change + other)]
        adjoint = [code.adjoint(each) for each in mapped]
        values = code.apply(change)
        algorithm.check(code.packet(values), dim, context)
        one, two = _stepped(algorithm, code, values, dim, context)
    except NotLinearError:
        raise
    except Exception as error:  # an external part may raise anything
        reason = str(error) if isinstance(error, SketchfedError) else f"{type(error).__name__}: {error}"
        raise NotLinearError(subject, f"{declared} its packets do not work as one ({reason.rstrip('.')}).") from error
    if not _adds(mapped):
        raise NotLinearError(subject, f"{declared} the code of a sum of two changes is not the sum of their codes.")
    if any(each.shape != change.shape for each in adjoint):
        raise NotLinearError(
            subject, f"{declared} its adjoint returns shape {tuple(adjoint[0].shape)} for a change of {len(change):,} numbers."
        )
    if not _adds(adjoint):
        raise NotLinearError(subject, f"{declared} its adjoint is not linear.")
    if not _close(one, two):
        raise NotLinearError(
            subject, f"{declared} a packet that stands for two equal clients does not decode to their common change."
        )


def _stepped(algorithm: Algorithm, code: LinearCode, values: Tensor, dim: int, context: RoundContext) -> tuple[Tensor, Tensor]:
    """The weights after the packets of two clients, and after a packet that stands for both. Equal if no step can be tried.

    An algorithm may need the model for its first step, and planning has no model.
    """
    try:
        apart, together = [code.packet(values)] * 2, [code.packet(values * 2, clients=2)]
        one, two = (_weights(algorithm, packets, dim, context) for packets in (apart, together))
    except UnresolvedError:
        return torch.zeros(1), torch.zeros(1)
    return one, two


def _weights(algorithm: Algorithm, packets: list[Packet], dim: int, context: RoundContext) -> Tensor:
    """The weights after a first step from these packets."""
    state = algorithm.begin(torch.zeros(dim))
    return algorithm.server(state, packets, context.seed)[0].replica.weights


def _adds(images: Sequence[Tensor]) -> bool:
    """Whether the third of three images is the sum of the others."""
    one, other, summed = images
    return _close(one + other, summed)


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
