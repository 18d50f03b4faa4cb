"""Song et al. 2023, Sec. 7: when gradient descent on ‖∇F(w, x) − g‖² reaches a match, and how fast.

L(x) = ‖∇_w F(w, x) − g‖², or ‖R∇_w F(w, x) − Rg‖² where gradients are sketched, is what `Matching` minimises with
`objective = "squares"`.
"""

import math
from dataclasses import dataclass

from sketchfed.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The assumptions on L: it is (a, b, p)-semi-smooth (Def. 7.2), and θ₁²·L ≤ ‖∇L‖² ≤ θ₂²·L (non-critical, Def. 7.3)."""

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
        """The landscape if A·∇_w F(w, x) is linear in x. Its transpose has singular values from `least` to `most`.

        L is then a square. The remainder of its expansion is at most most²·‖y − x‖², so a = 0 and b = most². The norm of ∇L is
        from 2·least·√L to 2·most·√L. A is the sketch, or the identity without one. d ≤ m keeps `least` above 0.
        """
        return cls(a=0.0, b=most**2, p=0.5, least=2 * least, most=2 * most)

    @classmethod
    def published(cls, *, lipschitz: float, least: float, most: float) -> "Landscape":
        """Theorem 7.4: the gradient is β-Lipschitz in x, and its pseudo-kernel has eigenvalues from least² to most².

        The factor 2 of ∇L = 2Φ(∇F − g) is included, which Lemma 7.7 has and the theorem lacks. No such landscape meets the
        conditions of Theorem 7.5: β is at least `most`, so a·θ₂ = 4(β + most)·most is larger than θ₁² = 4·least².
        """
        return cls(a=2 * (lipschitz + most), b=lipschitz, p=0.5, least=2 * least, most=2 * most)

    @property
    def margin(self) -> float:
        """θ₁² − a·θ₂^(2 − 2p). Theorem 7.5 requires it to be above 0."""
        return self.least**2 - self.a * math.pow(self.most, 2 - 2 * self.p)

    @property
    def step(self) -> float:
        """The largest step η that Theorem 7.5 allows."""
        if self.margin <= 0:
            raise InputError(
                f"Theorem 7.5 says nothing here: θ₁² = {self.least**2:.4g} is not above a·θ₂^(2 − 2p) = "
                f"{self.least**2 - self.margin:.4g}. Gradient descent may well find a match nevertheless; try it."
            )
        return self.margin / (2 * self.b * self.most**2)

    def rate(self, step: float | None = None) -> float:
        """γ, by which the mismatch shrinks in every iteration: L(x_t+1) − L* ≤ (1 − γ)(L(x_t) − L*)."""
        chosen = self.step if step is None else step
        if not 0 < chosen <= self.step:
            raise InputError(f"Theorem 7.5 is for steps from 0 to {self.step:.4g}, got {chosen:.4g}.")
        return chosen * self.margin / 2
