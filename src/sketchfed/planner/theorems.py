"""The convergence theorems of Song et al. 2023 as functions: step sizes that they admit, losses that they promise.

All of them speak of Algorithm 1: every client takes part in every round, takes `local_steps` full-gradient steps at `rate`
and sends the sketch of its change; the server's mean is applied with a global rate of 1. The sketch of a round is independent
of the others, unbiased, and has E‖RᵀRh‖² ≤ (1 + α)‖h‖² (Thm 4.2). A round is one exchange: w after T of them is w^{T+1} in the
paper's counting, where w¹ = w⁰.
"""

import math
from dataclasses import dataclass

from sketchfed.errors import InputError
from sketchfed.planner.problem import Analysis, Problem, check_alpha, check_analysis, check_rates, check_steps, check_target

_ROUNDING = 1 + 1e-9  # a rate computed as the largest admissible one is not refused for its last bit
_MOST_ROUNDS = 1e12


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """A bound for rates up to `limit`: what is left of the start after some rounds, plus `floor`·rate²."""

    source: str
    limit: float
    start: float
    floor: float
    local_steps: int
    strong_convexity: float
    compounds: bool = True
    """Whether every local step contracts (sharpened), or every round does (as printed)."""

    def bound(self, rate: float, rounds: int) -> float:
        return self._left(rate, rounds) + self.floor * rate**2

    def rounds(self, rate: float, target: float) -> int:
        """The fewest rounds after which the bound is at most `target`."""
        rest = target - self.floor * rate**2
        if rest <= 0:
            raise InputError(
                f"at rate {rate:.3g} {self.source} leaves {self.floor * rate**2:.3g} for any number of rounds, because clients "
                f"drift apart; the target is {target:.3g}. Use a rate below {math.sqrt(target / self.floor):.3g}."
            )
        if self.strong_convexity:
            estimate = math.log(max(self.start / rest, 1)) / self._contraction(rate)
        else:
            estimate = self.start / (rate * self.local_steps * rest)
        if estimate > _MOST_ROUNDS:
            raise InputError(
                f"{self.source} asks for {estimate:.1e} rounds at rate {rate:.3g} to reach {target:.3g}. Use a larger target, "
                "or a sketch with a smaller alpha."
            )
        rounds = math.ceil(estimate)
        while rounds > 0 and self.bound(rate, rounds - 1) <= target:  # the logarithm and the power round differently
            rounds -= 1
        while self.bound(rate, rounds) > target:
            rounds += 1
        return rounds

    def best_rate(self, target: float) -> float:
        """The largest admissible rate whose floor is at most half the target, as in the proofs of Thms F.8 and F.10."""
        return self.limit if self.floor == 0 else min(self.limit, math.sqrt(target / (2 * self.floor)))

    def _left(self, rate: float, rounds: int) -> float:
        if self.strong_convexity:
            return self.start * (math.exp(-self._contraction(rate) * rounds) if rounds else 1.0)
        return self.start / (rate * self.local_steps * rounds) if rounds else math.inf

    def _contraction(self, rate: float) -> float:
        """−log of the factor by which a round shrinks what is left."""
        step = self.strong_convexity * rate
        if not self.compounds:
            return step
        return -self.local_steps * math.log1p(-step) if step < 1 else math.inf


def theorem(problem: Problem, *, alpha: float, local_steps: int, analysis: Analysis, strong: bool) -> Theorem:
    """The theorem that applies, with the problem's constants filled in."""
    check_alpha(alpha)
    check_steps(local_steps)
    check_analysis(analysis)
    if strong and not problem.strongly_convex:
        raise InputError("this bound needs strong_convexity above 0. Use convex_bound, or add a term (μ/2)‖w‖² to the loss.")
    make = {"published": _published, "sharpened": _sharpened, "curvature": _curvature}[analysis]
    return make(problem, alpha, local_steps, strong)


def _published(problem: Problem, alpha: float, steps: int, strong: bool) -> Theorem:
    smooth, mu, sigma_sq = problem.smoothness, problem.strong_convexity, problem.heterogeneity
    return Theorem(
        source="Theorem 5.1" if strong else "Theorem 5.3",
        limit=1 / (8 * (1 + alpha) * smooth * steps),
        start=smooth / 2 * problem.square_distance if strong else 4 * problem.square_distance,
        floor=4 * smooth**2 * steps**3 * sigma_sq / mu if strong else 32 * smooth * steps**2 * sigma_sq,
        local_steps=steps,
        strong_convexity=mu if strong else 0.0,
        compounds=False,
    )


def _sharpened(problem: Problem, alpha: float, steps: int, strong: bool) -> Theorem:
    """`docs/planner.md` has the proof. With one local step these are the paper's own Theorems E.1 and E.2."""
    if steps == 1:
        return _single_step(problem, alpha, strong, problem.smoothness)
    smooth, mu, sigma_sq = problem.smoothness, problem.strong_convexity, problem.heterogeneity
    return Theorem(
        source="the sharpened Theorem 5.1" if strong else "the sharpened Theorem 5.3",
        limit=1 / (4 * (1 + alpha) * smooth * steps),
        start=smooth / 2 * problem.square_distance if strong else 7 / 6 * problem.square_distance,
        floor=steps * (steps - 1) * (1.5 * smooth**2 * sigma_sq / mu if strong else 3 * smooth * sigma_sq),
        local_steps=steps,
        strong_convexity=mu if strong else 0.0,
    )


def _curvature(problem: Problem, alpha: float, steps: int, strong: bool) -> Theorem:
    if problem.top_curvature is None:
        raise InputError(
            "analysis 'curvature' needs the problem's top_curvature and total_curvature. Measure the problem "
            "(LogisticRegression, LinearRegression), or use analysis 'sharpened'."
        )
    if steps != 1 or not strong:
        given = f"local_steps = {steps}" if steps != 1 else "strong_convexity = 0"
        raise InputError(
            f"analysis 'curvature' is proven for one local step and strong_convexity above 0, got {given}. Use analysis "
            "'sharpened'."
        )
    return _single_step(problem, alpha, strong, problem.top_curvature)


def _single_step(problem: Problem, alpha: float, strong: bool, smooth: float) -> Theorem:
    initial = smooth / 2 * problem.square_distance
    return Theorem(
        source="Theorem E.1" if strong else "Theorem E.2",
        limit=1 / ((1 + alpha) * smooth * (1 if strong else 2)),
        start=(initial if problem.gap is None else min(initial, problem.gap)) if strong else problem.square_distance,
        floor=0.0,
        local_steps=1,
        strong_convexity=problem.strong_convexity if strong else 0.0,
    )


def admissible_rate(problem: Problem, *, alpha: float, local_steps: int = 1, analysis: Analysis = "sharpened") -> float:
    """The largest local step size for which the theorem about this problem holds.

    "published": 1/(8(1 + α)LK), Song et al. 2023, Thms 5.1 and 5.3. "sharpened": 1/(4(1 + α)LK) for K > 1 local steps; for one,
    1/((1 + α)L) when f is strongly convex (Thm E.1) and 1/(2(1 + α)L) when not (Thm E.2). "curvature": 1/((1 + α)λ) with
    α = `curvature_alpha` and λ the top curvature.

    >>> admissible_rate(Problem(smoothness=2.0), alpha=3.0, local_steps=5, analysis="published")
    0.003125
    """
    strong = problem.strongly_convex
    return theorem(problem, alpha=alpha, local_steps=local_steps, analysis=analysis, strong=strong).limit


def strongly_convex_bound(
    problem: Problem, *, alpha: float, rate: float, rounds: int, local_steps: int = 1, analysis: Analysis = "sharpened"
) -> float:
    """A bound on E f(w) − f(w*) after `rounds` rounds, for μ > 0.

    "published", Song et al. 2023, Thm 5.1 (F.9): (L/2)‖w⁰ − w*‖²·e^{−μηT} + 4η²L²K³σ²/μ. It is true and loses a factor K in
    both terms. "sharpened": (L/2)‖w⁰ − w*‖²·(1 − μη)^{KT} + (3/2)η²L²K(K − 1)σ²/μ for K > 1, and for one local step Thm E.1,
    (f(w⁰) − f(w*))·(1 − μη)^T: clients do not drift within one step, so σ² plays no part. "curvature": Thm E.1 with larger
    rates.
    """
    rule = theorem(problem, alpha=alpha, local_steps=local_steps, analysis=analysis, strong=True)
    return _checked_bound(rule, rate, rounds)


def convex_bound(
    problem: Problem, *, alpha: float, rate: float, rounds: int, local_steps: int = 1, analysis: Analysis = "sharpened"
) -> float:
    """A bound on E f(w̄) − f(w*) for μ ≥ 0, where w̄ is the mean of all clients' iterates u^{t,k} in `rounds` rounds.

    "published", Song et al. 2023, Thm 5.3 (F.7): 4‖w⁰ − w*‖²/(ηKT) + 32η²LK²σ². "sharpened": for K > 1,
    (7/6)‖w⁰ − w*‖²/(ηKT) + 3η²LK(K − 1)σ²; for one local step Thm E.2, ‖w⁰ − w*‖²/(ηT) for the mean of T points.
    """
    rule = theorem(problem, alpha=alpha, local_steps=local_steps, analysis=analysis, strong=False)
    return _checked_bound(rule, rate, rounds)


def stationary_bound(
    problem: Problem,
    *,
    alpha: float,
    rate: float,
    rounds: int,
    local_steps: int = 1,
    global_rate: float = 1.0,
    gradient_bound: float | None = None,
    analysis: Analysis = "sharpened",
) -> float:
    """A bound on the least E‖∇f(w^t)‖² in `rounds` rounds, t = 0 … T, without convexity; `gradient_bound` is G ≥ ‖∇f_c(w)‖.

    "published", Song et al., ICLR 2022 version, Thm G.2: Δ/(η_g(T + 1)) + ηLK²G²(η + η_gη(1 + α)/2) with Δ = f(w⁰) − f(w*).
    This is not true: Lemma G.1 loses the factor ηK of its first term, and the bound goes to 0 with steps too small to move at
    all. "sharpened" is what its proof shows: Δ/(η_gηK(T + 1)) + ηLG²(K − 1)/2 + η_gηLKG²(1 + α)/2. With one local step neither
    G nor the last two terms are needed while η_gη ≤ 1/((1 + α)L): 2Δ/(η_gη(T + 1)), Thm E.3.
    """
    check_alpha(alpha)
    check_steps(local_steps, rounds)
    if analysis == "curvature":
        raise InputError("stationary_bound knows the analyses 'published' and 'sharpened', got 'curvature'.")
    check_analysis(analysis)
    if problem.gap is None:
        raise InputError(
            "stationary_bound needs the problem's gap, f(w⁰) − f(w*). Any upper bound on it will do: the loss at w⁰."
        )
    check_rates(rate, global_rate)
    smooth, step = problem.smoothness, rate * global_rate
    if analysis == "sharpened" and local_steps == 1 and step <= _ROUNDING / ((1 + alpha) * smooth):
        return 2 * problem.gap / (step * (rounds + 1))
    if gradient_bound is None:
        raise InputError(
            f"gradient_bound is needed for {local_steps} local steps at rate {rate:g} and global rate {global_rate:g}: nothing "
            f"else limits drift. Give one, or take one local step at rate·global_rate <= {1 / ((1 + alpha) * smooth):.3g}."
        )
    square = gradient_bound**2
    if analysis == "published":
        return problem.gap / (global_rate * (rounds + 1)) + rate * smooth * local_steps**2 * square * (
            rate + step * (1 + alpha) / 2
        )
    drift = rate * smooth * square * (local_steps - 1) / 2
    noise = step * smooth * local_steps * square * (1 + alpha) / 2
    return problem.gap / (step * local_steps * (rounds + 1)) + drift + noise


def best_rate(
    problem: Problem, *, target: float, alpha: float, local_steps: int = 1, analysis: Analysis = "sharpened"
) -> float:
    """The admissible rate that reaches E f − f(w*) ≤ `target`: the largest one, or less so that drift leaves half the target.

    Paper: Song et al. 2023, proofs of Cors 5.2 and 5.4 (Thms F.10 and F.8).
    """
    check_target(target)
    strong = problem.strongly_convex
    rule = theorem(problem, alpha=alpha, local_steps=local_steps, analysis=analysis, strong=strong)
    return rule.best_rate(target)


def rounds_to(
    problem: Problem,
    *,
    target: float,
    alpha: float,
    rate: float | None = None,
    local_steps: int = 1,
    analysis: Analysis = "sharpened",
) -> int:
    """The fewest rounds after which the bound promises E f − f(w*) ≤ `target`, at `rate` or at `best_rate`.

    Paper: Song et al. 2023, Cors 5.2 and 5.4, with their constants. What they print for small targets, √(σ²/(με)) and
    σ√L/ε^{3/2}, comes of bounding a drift that is zero: their proofs choose one local step. For "sharpened" it is not there.
    """
    check_target(target)
    strong = problem.strongly_convex
    rule = theorem(problem, alpha=alpha, local_steps=local_steps, analysis=analysis, strong=strong)
    chosen = rule.best_rate(target) if rate is None else rate
    _check_rate(rule, chosen)
    return rule.rounds(chosen, target)


def _check_rate(rule: Theorem, rate: float) -> None:
    check_rates(rate)
    if rate > rule.limit * _ROUNDING:
        raise InputError(
            f"{rule.source} holds for rates up to {rule.limit:.6g} here and says nothing about {rate:.6g}. Use "
            "admissible_rate(...), or a sketch with a smaller alpha."
        )


def _checked_bound(rule: Theorem, rate: float, rounds: int) -> float:
    check_steps(rule.local_steps, rounds)
    _check_rate(rule, rate)
    return rule.bound(rate, rounds)
