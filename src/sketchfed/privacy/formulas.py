"""How much noise the papers ask for, beside how much it takes: every formula gives a noise multiplier for (ε, δ).

A release is one clipped sum with Gaussian noise of standard deviation multiplier·clip; `releases` of them touch the same unit,
each with probability `sampling` that the observer does not see. `compared` puts the ε that each of them really gives next to
the one it promises. Only `by_pld` and `by_rdp` should be run on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sketchfed.errors import InputError
from sketchfed.privacy.accounting import calibrated, epsilon_of
from sketchfed.privacy.claims import Charge, Claim, check_epsilon
from sketchfed.privacy.divergences import gaussian_delta

__all__ = [
    "ComparedNoise",
    "before_sampling",
    "bun_steinke_proposition_1_3",
    "by_pld",
    "by_rdp",
    "canonne_kamath_steinke_proposition_12",
    "classical_gaussian",
    "compared",
    "dome_theorem_3_3",
    "dwork_rothblum_vadhan_theorem_iii_3",
    "exact_gaussian",
    "song_2022_lemma_h_4",
    "song_2023_theorem_6_2",
]


def classical_gaussian(epsilon: float, delta: float) -> float:
    """√(2·ln(1.25/δ))/ε for one release (Dwork & Roth 2014, Thm A.1).

    It is proven for ε < 1, where it is a third too much. People use it for larger ε too. From about ε = 9 at δ = 1e-5 it is too
    little.
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def exact_gaussian(epsilon: float, delta: float) -> float:
    """The least noise for one release (Balle & Wang 2018, Alg. 1), by bisection. It is at most 1e-12 too much."""
    low, high = 1e-4, 1.0
    while gaussian_delta(high, epsilon) > delta:
        low, high = high, 2 * high
    while high > low * (1 + 1e-12):
        middle = math.sqrt(low * high)
        if middle in (low, high):
            break
        low, high = (middle, high) if gaussian_delta(middle, epsilon) > delta else (low, middle)
    return high


def before_sampling(epsilon: float, delta: float, sampling: float) -> tuple[float, float]:
    """The (ε, δ) of a release that Poisson sampling turns into the given one (Balle, Barthe, Gaboardi 2018, Thm 8).

    ε = ln(1 + q·(e^ε₀ − 1)) and δ = q·δ₀. This is tight for one release of the worst mechanism. It is loose for Gaussians, and
    when composed.
    """
    return math.log1p(math.expm1(epsilon) / sampling), min(delta / sampling, 0.5)


def song_2023_theorem_6_2(epsilon: float, delta: float, *, releases: int, sampling: float = 1.0, exact: bool = False) -> float:
    """Song et al. 2023, Thm 6.2: releases of (ε̂, δ̂) each make (√(TK)·ε̂, TK·δ̂), T rounds of K local steps.

    That is no composition theorem. For mechanisms in general it is wrong: 200 answers by randomised response with
    ε̂ = 3/√200 should be (3, 0) and have δ = 0.56 at ε = 3. The advanced composition that the paper cites has another
    √(2·ln(1/δ′)), and adds δ′. For Gaussians the missing factor is made up by what δ̂ = δ/(TK) costs as long as ε is small:

    - with the classical noise (Alg. 2, line 12 says O(log(1/δ)·ℓ²/ε̂²); 2·ln(1.25/δ̂) is the usual constant) it is 1.2 to 2.2
      times too much up to ε = 8, and too little from ε = 20 to 50 on;
    - `exact`, with each step's noise exactly that of (ε̂, δ̂), it is within 10 % of enough at ε = 3 and too little at ε = 8:
      200 releases that should be (8, 1e-5) are (8.29, 1e-5), inside the theorem's condition ε < √T.

    Alg. 2 adds this noise to the *mean* over a batch, and takes the Lipschitz constant for the sensitivity of that mean, which
    is smaller by the size of the batch. Here multipliers are over the sensitivity.
    """
    step, chance = before_sampling(epsilon / math.sqrt(releases), delta / releases, sampling)
    return exact_gaussian(step, chance) if exact else classical_gaussian(step, chance)


def song_2022_lemma_h_4(epsilon: float, delta: float) -> float:
    """Song et al., the version for ICLR 2022, Lemma H.4: 4·√ln(1/δ)/ε on a sketch, for one release.

    The paper does not mention rounds, so several releases do not keep ε. The sensitivity is that of one changed *entry* of the
    gradient times a bound on ‖R‖. But an example changes all entries, so this is not example-level privacy. Clipping the sketch
    needs no bound on ‖R‖.
    """
    return 4 * math.sqrt(math.log(1 / delta)) / epsilon


def dome_theorem_3_3(epsilon: float, delta: float, *, rounds: int) -> float:
    """Nicolas et al. 2025, Thm 3.3: √rounds·max(1/√ε, 2√2·√ln(1/δ)/ε).

    It is safe and loose. It splits ε = ρ + 2√(ρ·ln(1/δ)) into two halves, which is 2.3 times too much for one release at ε = 3.
    It also composes all n·E rounds, although a client is touched only by those in which it takes part.
    """
    return math.sqrt(rounds) * max(1 / math.sqrt(epsilon), 2 * math.sqrt(2 * math.log(1 / delta)) / epsilon)


def dwork_rothblum_vadhan_theorem_iii_3(epsilon: float, delta: float, *, releases: int, sampling: float = 1.0) -> float:
    """Advanced composition (Dwork, Rothblum, Vadhan 2010, Thm III.3) of classical Gaussians, amplified one by one.

    ε = ε̂·√(2k·ln(1/δ′)) + k·ε̂·(e^ε̂ − 1) and δ = k·δ̂ + δ′, with half of δ for δ′. It holds for every mechanism, and is seven
    to eight times too much for Gaussians.
    """
    spread = math.sqrt(2 * releases * math.log(2 / delta))
    low, high = 0.0, epsilon / spread
    for _ in range(200):
        middle = (low + high) / 2
        enough = middle * spread + releases * middle * math.expm1(middle) <= epsilon
        low, high = (middle, high) if enough else (low, middle)
    return classical_gaussian(*before_sampling(low, delta / (2 * releases), sampling))


def bun_steinke_proposition_1_3(epsilon: float, delta: float, *, releases: int) -> float:
    """zCDP with ε = ρ + 2√(ρ·ln(1/δ)) and ρ = releases/(2·multiplier²) (Bun & Steinke 2016, Prop. 1.3).

    It does not use amplification by sampling.
    """
    log = math.log(1 / delta)
    root = math.sqrt(log + epsilon) - math.sqrt(log)  # √ρ
    return math.sqrt(releases / 2) / root


def canonne_kamath_steinke_proposition_12(epsilon: float, delta: float, *, releases: int) -> float:
    """zCDP with the tight conversion at the best real order, without amplification (Canonne et al. 2020, Prop. 12)."""
    from scipy.optimize import minimize_scalar

    def cost(log_order: float, rho: float) -> float:
        less = math.exp(log_order)  # the order minus 1
        order = 1 + less
        return rho * order + math.log(less / order) - (math.log(delta) + math.log(order)) / less

    def spends(rho: float) -> float:
        """ε at a nearly best order. Every order is valid, so a worse one is only slightly too much."""
        return float(minimize_scalar(cost, bounds=(-8.0, 16.0), args=(rho,), method="bounded", options={"xatol": 1e-9}).fun)

    low, high = 1e-14, 1e6
    while high > low * (1 + 1e-10):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spends(middle) <= epsilon else (low, middle)
    return math.sqrt(releases / (2 * low))


def by_rdp(claim: Claim, epsilon: float, *, releases: int, sampling: float = 1.0) -> float:
    """Rényi divergences of the sampled Gaussian (Mironov, Talwar, Zhang 2019), the best of many orders."""
    return _calibrated(replace(claim, accountant="rdp"), epsilon, releases, sampling)


def by_pld(claim: Claim, epsilon: float, *, releases: int, sampling: float = 1.0) -> float:
    """Privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022). They are as tight as the grid is fine."""
    return _calibrated(replace(claim, accountant="pld"), epsilon, releases, sampling)


def _calibrated(claim: Claim, epsilon: float, releases: int, sampling: float) -> float:
    return calibrated(claim, epsilon, lambda noise: {Charge(multiplier=noise, sampling=sampling): releases})


@dataclass(frozen=True, kw_only=True)
class ComparedNoise:
    """The noise that one method requires, and the ε that this noise really gives.

    promised: the ε that the method states; epsilon: the true one, by PLD, at the claim's δ.
    """

    method: str
    multiplier: float
    promised: float
    epsilon: float
    against_tight: float

    @property
    def kept(self) -> bool:
        """Whether the promise holds."""
        return self.epsilon <= self.promised * (1 + 1e-6)


def compared(claim: Claim, epsilon: float, *, rounds: int, releases: int, sampling: float = 1.0) -> list[ComparedNoise]:
    """Compare all methods for one setting, with the tight one last.

    `releases` of the noisy sums in `rounds` touch the worst unit. Under replace-one, a unit moves a sum by twice the clip norm,
    so formulas that do not know this are doubled.
    """
    check_epsilon(epsilon)
    for name, count in (("rounds", rounds), ("releases", releases)):
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {count}.")
    delta, wide = claim.delta, 2.0 if claim.adjacency == "replace-one" else 1.0
    sampled = sampling < 1
    asked: dict[str, Callable[[], float]] = {
        "Song et al. 2023, Thm 6.2": lambda: wide * song_2023_theorem_6_2(epsilon, delta, releases=releases, sampling=sampling),
        "  the same, exact steps": lambda: (
            wide * song_2023_theorem_6_2(epsilon, delta, releases=releases, sampling=sampling, exact=True)
        ),
        "Song et al. 2022, Lemma H.4": lambda: wide * song_2022_lemma_h_4(epsilon, delta),
        "DOME, Thm 3.3": lambda: wide * dome_theorem_3_3(epsilon, delta, rounds=max(rounds, releases)),
        "advanced composition": lambda: (
            wide * dwork_rothblum_vadhan_theorem_iii_3(epsilon, delta, releases=releases, sampling=sampling)
        ),
        "zCDP": lambda: wide * bun_steinke_proposition_1_3(epsilon, delta, releases=releases),
        "zCDP, tight conversion": lambda: wide * canonne_kamath_steinke_proposition_12(epsilon, delta, releases=releases),
        "RDP": lambda: by_rdp(claim, epsilon, releases=releases, sampling=sampling),
        "PLD": lambda: by_pld(claim, epsilon, releases=releases, sampling=sampling),
    }
    if sampled and claim.adjacency == "replace-one":
        del asked["RDP"]  # no bound is known
    found = {method: ask() for method, ask in asked.items()}
    judge = replace(claim, accountant="pld")
    return [
        ComparedNoise(
            method=method,
            multiplier=multiplier,
            promised=epsilon,
            epsilon=epsilon_of({Charge(multiplier=multiplier, sampling=sampling): releases}, judge),
            against_tight=multiplier / found["PLD"],
        )
        for method, multiplier in found.items()
    ]
