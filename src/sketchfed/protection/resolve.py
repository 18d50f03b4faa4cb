"""From the tables [privacy] and [secure] to a protection that holds together: what cannot work is refused before round 1."""

from collections.abc import Sequence
from dataclasses import replace

from sketchfed.algorithms import Algorithm, RoundContext
from sketchfed.algorithms.base import most_participations
from sketchfed.errors import InputError
from sketchfed.privacy.accounting import Charge, calibrated, check_delta, epsilon_of
from sketchfed.protection.protection import Protection
from sketchfed.protection.settings import PrivacySettings, SecureSettings
from sketchfed.seeds import PublicSeed


def completed_work(algorithm: Algorithm, privacy: PrivacySettings | None) -> Algorithm:
    """The algorithm with one local step where examples are protected and nothing else was said."""
    if privacy is None or privacy.unit == "client" or algorithm.local_steps is not None or algorithm.local_epochs is not None:
        return algorithm
    return replace(algorithm, local_steps=1)


def make_protection(
    algorithm: Algorithm,
    *,
    privacy: PrivacySettings | None,
    secure: SecureSettings | None,
    dim: int,
    sizes: Sequence[int],
    seed: PublicSeed,
) -> Protection | None:
    """The protection of a run whose clients have so many examples each, with its noise calibrated; None if there is none."""
    if secure is not None and not secure.aggregation:
        secure = None
    if privacy is None and secure is None:
        return None
    protection = Protection(
        algorithm=algorithm,
        dim=dim,
        population=len(sizes),
        smallest=min(sizes),
        sizes=tuple(sizes),
        privacy=privacy,
        secure=secure,
    )
    if privacy is not None:
        _check_privacy(protection, privacy)
        check_delta(privacy.delta, len(sizes) if privacy.unit == "client" else sum(sizes))
    if secure is not None:
        _check_secure(protection, secure)
    if secure is not None or not protection.in_steps:
        _check_linear(protection)
    if privacy is None:
        return protection
    protection = replace(protection, privacy=replace(privacy, adjacency=protection.claim.adjacency))
    if privacy.noise_multiplier is None:
        protection = _calibrated(protection, seed)
    if secure is not None:
        protection.charge()  # refuses a modulus that is too small, now
    return protection


def participations(protection: Protection, seed: PublicSeed) -> int:
    """In how many rounds the client takes part that takes part most often; all clients in all, where cohorts are hidden.

    Where batches are cut from passes, how many passes the client begins that begins the most: an example is in one sum of each.
    """
    rounds = protection.algorithm.rounds
    if protection.passes is not None:
        return protection.passes.most(seed, rounds)
    if protection.hidden or protection.cohort == protection.population:
        return rounds
    return most_participations(seed, rounds=rounds, population=protection.population, count=protection.cohort)


def _calibrated(protection: Protection, seed: PublicSeed) -> Protection:
    """The same with the least noise that keeps all rounds within the budget."""
    privacy, times = protection.privacy, participations(protection, seed)
    assert privacy is not None
    assert privacy.epsilon is not None
    common = {"sampling": protection.sampling, "steps": protection.noisy_steps, "discrete": privacy.name == "discrete_gaussian"}
    multiplier = calibrated(
        protection.claim,
        privacy.epsilon,
        lambda noise: {Charge(multiplier=noise, **common): times},  # type: ignore[arg-type]
    )
    while True:  # what discrete noise lacks of a discrete Gaussian is known once the noise is
        noised = replace(protection, privacy=replace(privacy, noise_multiplier=multiplier))
        if epsilon_of({noised.charge(): times}, noised.claim) <= privacy.epsilon:
            return noised
        multiplier *= 1.01


def _check_privacy(protection: Protection, privacy: PrivacySettings) -> None:
    secure = protection.secure is not None
    if privacy.name == "discrete_gaussian" and not secure:
        raise InputError(
            "privacy.name = 'discrete_gaussian' makes integers for secure sums: alone, a client's share of the noise hides "
            "nothing. Add [secure], or use 'gaussian'."
        )
    if privacy.name == "discrete_gaussian" and privacy.placement == "steps":
        raise InputError("privacy.placement = 'steps' adds real-valued noise in local steps. Use privacy.name = 'gaussian'.")
    if privacy.name == "gaussian" and secure and privacy.placement == "sent":
        raise InputError(
            "privacy.name = 'gaussian' adds real numbers, and secure sums are over integers. Use 'discrete_gaussian', or "
            "privacy.placement = 'steps'."
        )
    if privacy.observer == "public" and (secure or privacy.placement == "steps"):
        what = "under secure sums" if secure else "in local steps"
        raise InputError(
            f"privacy.observer = 'public' trusts the server with the noise, but {what} clients add it themselves, and it "
            "protects against the server too. Use privacy.observer = 'server'."
        )
    if privacy.hidden_cohorts and (privacy.observer == "server" or privacy.unit == "example"):
        raise InputError(
            "privacy.hidden_cohorts hides from the public which clients took part; the server knows, and all examples of a "
            "client come together. It counts for privacy.unit = 'client' with privacy.observer = 'public' only."
        )
    if privacy.adjacency == "add-remove" and privacy.unit == "client" and not privacy.hidden_cohorts:
        raise InputError(
            "privacy.adjacency = 'add-remove' hides who took part, but cohorts are drawn from the public seed. Use 'zero-out'"
            ", or hide them: privacy.hidden_cohorts = true with privacy.observer = 'public'."
        )
    if privacy.batches == "passes":
        _check_passes(protection.algorithm, privacy)
    _check_units(protection.algorithm, privacy, secure=secure)


def _check_passes(algorithm: Algorithm, privacy: PrivacySettings) -> None:
    if privacy.unit == "client":
        raise InputError(
            "privacy.batches = 'passes' is about the examples that a client uses in a round, and privacy.unit = 'client' "
            "protects all that it has, used or not. Remove it, or use privacy.unit = 'example'."
        )
    if privacy.adjacency == "add-remove":
        raise InputError(
            "privacy.adjacency = 'add-remove' means that nobody can tell whether an example is there, but how many examples a "
            "client has says into which batches passes are cut, and one more would move all others. Use 'zero-out', or "
            "privacy.batches = 'poisson'."
        )
    if algorithm.local_epochs is not None or (algorithm.local_steps or 1) > 1:
        name = "local_epochs" if algorithm.local_epochs is not None else "local_steps"
        raise InputError(
            f"algorithm.{name} = {getattr(algorithm, name)}: with privacy.batches = 'passes' a client uses one batch a round, "
            "and its passes go over many rounds. Remove it, or use privacy.batches = 'poisson' with algorithm.local_steps."
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
            "privacy.unit = 'example' works in batches, and needs to know how many examples are in one, or are expected in a "
            "hidden one. Set algorithm.batch."
        )
    if algorithm.local_epochs is not None:
        raise InputError(
            f"algorithm.local_epochs = {algorithm.local_epochs} means passes over the data, but hidden batches draw each "
            "example by chance. Say algorithm.local_steps instead."
        )
    if privacy.placement == "steps":
        if algorithm.warm_up:
            raise InputError(
                "subspace.centre shortens what is sent along the mean image, so noise of local steps has another variance "
                "there than elsewhere. Remove subspace.centre, or privacy.placement = 'steps'."
            )
        return
    if (algorithm.local_steps or 1) > 1 and (secure or privacy.observer == "public"):
        raise InputError(
            f"algorithm.local_steps = {algorithm.local_steps}: a second local step would start from a first one whose noise "
            "is not in it yet, since noise is only in the sum. Use 1, or privacy.observer = 'server' without secure sums."
        )
    if algorithm.local_momentum or algorithm.weight_decay:
        raise InputError(
            "algorithm.local_momentum and weight_decay change steps in all coordinates; with noise on what is sent, steps are "
            "made of clipped codes. Remove them (algorithm.global_momentum works), or use privacy.placement = 'steps'."
        )


def _check_secure(protection: Protection, secure: SecureSettings) -> None:
    if protection.cohort < 3:
        raise InputError(
            f"a secure sum over {protection.cohort} clients a round hides nothing from the other one. Raise "
            "algorithm.participation or data.clients to have 3 or more, or set secure.aggregation = false."
        )
    noise = protection.privacy is not None and not protection.in_steps
    if noise and secure.clip is not None:
        raise InputError("secure.clip and privacy.clip both bound what a client sends. Remove secure.clip.")
    if not noise and secure.clip is None:
        raise InputError(
            "integers need a range: set secure.clip to the longest change that a client may send; longer ones are shortened."
        )


def _check_linear(protection: Protection) -> None:
    algorithm = protection.algorithm
    if algorithm.code(protection.dim, RoundContext(round=0, seed=PublicSeed(0), client=0)) is not None:
        return
    if protection.secure is not None:
        why, else_ = "cannot be summed, so it cannot run under secure aggregation", "set secure.aggregation = false"
    else:
        why = "does not send numbers to which noise could be added"
        else_ = "add it in local steps: privacy.unit = 'example' with privacy.placement = 'steps'"
    raise InputError(
        f"{algorithm.sends} {why}. Use codec 'dense', codec 'sketched' or algorithm 'iterative' with sketch.bits = 32, "
        f"or {else_}."
    )
