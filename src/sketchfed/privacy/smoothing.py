"""Discrete Gaussian noise as continuous Gaussian noise that is rounded at random.

Let N_Z(v, σ²) be the discrete Gaussian with centre v, P(y) ∝ exp(−(y − v)²/(2σ²)) over the integers. Draw x ~ N(v, s²) with
s² = σ² − r², then y ~ N_Z(x, r²). For an integer v, y is distributed almost as N_Z(v, σ²) (Peikert 2010, "An Efficient and
Parallel Gaussian Sampler for Lattices", Thm 3.1). The second step does not know v, so it is post-processing: whatever holds of
the continuous mechanism with deviation s, sampled or not, holds of the discrete one with deviation σ, up to "almost".

How nearly, for one number. By Poisson's summation formula

    Σ_k exp(−(k − x)²/(2r²)) = r√(2π)·(1 + θ_r(x)),   θ_r(x) = 2·Σ_{m≥1} exp(−2π²r²m²)·cos(2πmx).

Write e_r = 2·Σ_{m≥1} exp(−2π²r²m²), the maximum of |θ_r|. The normalisation of N_Z(v, σ²) at an integer v is σ√(2π)·(1 + e_σ).
With φ for normal densities,

    P(y) = ∫ φ_s(x − v)·φ_r(y − x)/(1 + θ_r(x)) dx = φ_σ(y − v)·E[1/(1 + θ_r(X))],   X ~ N(μ, r²s²/σ²),

because a product of normal densities in x is one; μ depends on y and v. So P(y)/N_Z(v, σ²)(y) = (1 + e_σ)·E[1/(1 + θ_r(X))].
Now 1/(1 + θ) = 1 − θ + θ²/(1 + θ), and averaging over X damps the cosines: |E[θ_r(X)]| ≤ e_t with t² = r² + r²s²/σ². Hence

    |ln P(y) − ln N_Z(v, σ²)(y)| ≤ e_σ + e_t + e_r²/(1 − e_r)

for all integers y and v: `rounding_slack`. (The ratio is at most (1 + e_σ)·(1 + e_t + e_r²/(1 − e_r)), and at least 1 − e_t,
whose −ln is below e_t + e_r²/(1 − e_r) since e_t ≤ e_r.) Vectors of `size` independent numbers have `size` times that.
"""

import math

from sketchfed.caches import cached

LITTLE_SLACK = 1e-9
"""Of a whole release: so little that a million releases can bear it."""


def rounding_slack(coarseness: float, deviation: float) -> float:
    """How far, at most, the log-probabilities of N(v, σ² − r²), rounded by N_Z(·, r²), are from those of N_Z(v, σ²).

    `coarseness` is r and `deviation` is σ, both in integer steps. Infinite if the bound says nothing.
    """
    wobble = _wobble(coarseness**2)
    if wobble >= 1:
        return math.inf
    left = deviation**2 - coarseness**2
    return _wobble(deviation**2) + _wobble(coarseness**2 * (1 + left / deviation**2)) + wobble**2 / (1 - wobble)


def _wobble(square: float) -> float:
    """e_r for r² = `square`, from above: m² − 1 ≥ 3·(m − 1) makes the series geometric."""
    first = math.exp(-2 * math.pi**2 * square)
    return 2 * first / (1 - first**3) if first < 1 else math.inf


@cached(maxsize=4096)
def rounded_from(deviation: float, size: int, most_slack: float = LITTLE_SLACK) -> tuple[float, float] | None:
    """The continuous deviation s from which discrete noise on `size` numbers is rounded, and the slack of all numbers together.

    r is the smallest with a slack of `most_slack`. For 1e-9 it is about 0.7 to 1.1 integer steps for sizes up to ten million. A
    smaller r saves noise in proportion to r²/σ², but slack grows as exp(−4π²r²). None if there is no such r, because the noise
    has less than about one integer step.
    """
    low, high = 0.0, deviation
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if size * rounding_slack(middle, deviation) <= most_slack else (middle, high)
    square = deviation**2 - high**2
    return (math.sqrt(square) * (1 - 1e-12), size * rounding_slack(high, deviation)) if square > 1e-3 * deviation**2 else None
