"""Checks of [privacy] and [secure]. Each error says what to change."""

import math

import torch

from sketchfed.algorithms import Algorithm, FedAvg, RoundContext
from sketchfed.errors import InputError, NotLinearError, SketchfedError
from sketchfed.protection.settings import PrivacySettings, SecureSettings
from sketchfed.seeds import PublicSeed


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
    if privacy.hidden_cohorts and (privacy.observer == "server" or privacy.unit == "example"):
        raise InputError(
            "privacy.hidden_cohorts hides from the public which clients took part. It does not hide this from the server, and "
            "does not hide single examples. Use privacy.unit = 'client' with privacy.observer = 'public'."
        )
    if privacy.adjacency == "add-remove" and privacy.unit == "client" and not privacy.hidden_cohorts:
        raise InputError(
            "privacy.adjacency = 'add-remove' hides who took part, but cohorts are drawn from the public seed. Use 'zero-out', "
            "or hide the cohorts: privacy.hidden_cohorts = true with privacy.observer = 'public'."
        )
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
        if reason := algorithm.refused_placements.get("steps"):
            raise InputError(reason)
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


def check_secure(secure: SecureSettings, privacy: PrivacySettings | None, *, cohort: int) -> None:
    """Refuse secure sums that hide nothing, or whose integers have no bounded range."""
    if cohort < 3:
        raise InputError(
            f"with {cohort} clients per round, a secure sum hides nothing, because a client can subtract its own reply. Raise "
            "algorithm.participation or data.clients to have 3 or more, or set secure.aggregation = false."
        )
    noise = privacy is not None and privacy.placement == "sent"
    if noise and secure.clip is not None:
        raise InputError("secure.clip and privacy.clip both bound what a client sends. Remove secure.clip.")
    if not noise and secure.clip is None:
        raise InputError(
            "secure sums add integers, which need a bounded range. Set secure.clip to the largest norm of a client's change; "
            "larger changes are scaled down to it."
        )


def check_linear(algorithm: Algorithm, dim: int, *, secure: bool) -> None:
    """Refuse algorithms whose packets cannot be summed or cannot take noise."""
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

    A third-party algorithm, or a codec in FedAvg, may declare a linear code that it does not have. Such a code is also tried
    out. The conformance suite tests all others.
    """
    if isinstance(algorithm, FedAvg) or not type(algorithm).__module__.startswith("sketchfed."):
        _try_sum(algorithm, dim, context)
    else:
        algorithm.code(dim, context)


def _try_sum(algorithm: Algorithm, dim: int, context: RoundContext) -> None:
    """Try whether the code is linear, and whether a packet that stands for two equal clients leads to the weights of one."""
    subject = f"algorithm '{algorithm.label}'"
    try:
        code = algorithm.code(dim, context)
        change = torch.linspace(-1.0, 1.0, math.prod(code.shape) if code.map is None else dim)
        other = change.flip(0).square()
        summed, apart = code.mapped(change + other), code.mapped(change) + code.mapped(other)
        values, start = code.apply(change), torch.zeros(dim)
        algorithm.check(code.packet(values), dim, context)
        weights = [
            algorithm.server(algorithm.begin(start), [code.packet(values * clients, clients=clients)], context.seed)[0]
            for clients in (1, 2)
        ]
    except NotLinearError:
        raise
    except Exception as error:  # an external part may raise anything
        reason = str(error) if isinstance(error, SketchfedError) else f"{type(error).__name__}: {error}"
        raise NotLinearError(
            subject, f"it declares a linear code, but its packets do not work as one ({reason.rstrip('.')})."
        ) from error
    if not torch.allclose(summed, apart, rtol=1e-3, atol=1e-3 * float(apart.abs().max())):
        raise NotLinearError(
            subject, "it declares a linear code, but the code of a sum of two changes is not the sum of their codes."
        )
    one, two = (state.replica.weights for state in weights)
    if not torch.allclose(one, two, rtol=1e-3, atol=1e-3 * float(one.abs().max())):
        raise NotLinearError(
            subject,
            "it declares a linear code, but a packet that stands for two equal clients does not decode to their common change.",
        )
