"""Song et al. 2023, Sec. 7: when gradient descent on ‖∇F(w, x) − g‖² reaches a match, and how fast.

L(x) = ‖∇_w F(w, x) − g‖², or ‖R∇_w F(w, x) − Rg‖² where gradients are sketched, is what `Matching` minimises with
`objective = "squares"`.
"""

import math
from dataclasses import dataclass

from sketchfed.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """What is assumed of L: it is (a, b, p)-semi-smooth (Def. 7.2), and θ₁²·L ≤ ‖∇L‖² ≤ θ₂²·L (non-critical, Def. 7.3)."""

    a: float
    b: float
    p: float
    least: float
    """θ₁."""
    most: float
    """θ₂."""

    def __post_init__(self) -> None:
        if not (0 <= self.p <= 1 and self.a >= 0 and self.b > 0 and 0 < self.least <= self.most < float("inf")):
            raise InputError(
                f"a landscape has 0 ≤ p ≤ 1, a ≥ 0, b > 0 and 0 < least ≤ most, got p = {self.p}, a = {self.a}, b = {self.b}, "
                f"least = {self.least} and most = {self.most}."
            )

    @classmethod
    def of_linear(cls, *, least: float, most: float) -> "Landscape":
        """Where A·∇_w F(w, x) is linear in x, with singular values of its transpose from `least` to `most`.

        L is then a square: the remainder of its expansion is at most most²·‖y − x‖², so a = 0 and b = most², and ∇L has norm
        from 2·least·√L to 2·most·√L. A is the sketch, if there is one, or the identity; d ≤ m keeps `least` above 0.
        """
        return cls(a=0.0, b=most**2, p=0.5, least=2 * least, most=2 * most)

    @classmethod
    def published(cls, *, lipschitz: float, least: float, most: float) -> "Landscape":
        """Theorem 7.4, for a gradient that is β-Lipschitz in x with a pseudo-kernel of eigenvalues from least² to most².

        With the factor 2 of ∇L = 2Φ(∇F − g), which the theorem lacks and Lemma 7.7 has. No such landscape meets the
        conditions of Theorem 7.5: β is at least `most`, so a·θ₂ = 4(β + most)·most is more than θ₁² = 4·least².
        """
        return cls(a=2 * (lipschitz + most), b=lipschitz, p=0.5, least=2 * least, most=2 * most)

    @property
    def margin(self) -> float:
        """θ₁² − a·θ₂^(2 − 2p), which Theorem 7.5 wants above 0."""
        return self.least**2 - self.a * math.pow(self.most, 2 - 2 * self.p)

    @property
    def step(self) -> float:
        """The longest step η of Theorem 7.5."""
        if self.margin <= 0:
            raise InputError(
                f"Theorem 7.5 says nothing here: θ₁² = {self.least**2:.4g} is not above a·θ₂^(2 − 2p) = "
                f"{self.least**2 - self.margin:.4g}. Gradient descent may well find a match nevertheless; try it."
            )
        return self.margin / (2 * self.b * self.most**2)

    def rate(self, step: float | None = None) -> float:
        """γ: every iteration leaves at most 1 − γ of the mismatch, L(x_t+1) − L* ≤ (1 − γ)(L(x_t) − L*)."""
        chosen = self.step if step is None else step
        if not 0 < chosen <= self.step:
            raise InputError(f"Theorem 7.5 is for steps from 0 to {self.step:.4g}, got {chosen:.4g}.")
        return chosen * self.margin / 2
