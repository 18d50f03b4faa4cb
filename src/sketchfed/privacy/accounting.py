"""The privacy cost of noise: the ε of what was released, never below the truth, and the noise that an ε requires."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sketchfed.caches import cached
from sketchfed.errors import InputError
from sketchfed.privacy.claims import Accountant, Charge, Claim, check_epsilon
from sketchfed.privacy.counted import MOST_SQUARE, counted_loss, largest_square
from sketchfed.privacy.divergences import (
    ALL_ORDERS,
    LEAST_DELTA,
    WHOLE_ORDERS,
    gaussian_epsilon,
    interval,
    renyi,
    renyi_epsilons,
    sampled_loss,
    undominated,
)
from sketchfed.privacy.smoothing import LITTLE_SLACK, rounded_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PROFILES = 32  # for this many clients the privacy loss is computed one by one; for the others it is bounded
_LEVELS = 12  # for sampled discrete noise: every other number of survivors is another multiplier
_FACTOR = 1.0001  # between a multiplier that is too small and the one that calibration returns
_SMALLEST, _LARGEST = 0.02, 1e6  # multipliers that calibration tries
_COARSE = 12.0  # integer steps: below, it pays to try more than one bound
_COARSE_SLACK = 2e-4  # of all releases together: so little that the smallest usual ε can bear it
_LEAST_COUNTED = 0.05  # multiplier, as for sampled noise
_LEAST_SAMPLED, _MOST_PULL = 0.05, 1e4  # beyond, ε is in the hundreds, and sampling is not worth the grid that it takes


def accounted(claim: Claim, charges: Mapping[Charge, int] | Sequence[Charge]) -> Claim:
    """The claim with the accountant that these charges really get: RDP, if its ε for discrete noise is below that of PLD."""
    times = charges if isinstance(charges, Mapping) else Counter(charges)
    return replace(claim, accountant=worst_bound(list(times), np.array([[*times.values()]], dtype=np.int64), claim)[1])


def epsilon_of(charges: Mapping[Charge, int], claim: Claim) -> float:
    """ε for a unit that all charges touch. `charges` says how often each charge touches it. Never below the truth."""
    given = [charge for charge, times in charges.items() if times]
    return worst_epsilon(given, np.array([[charges[charge] for charge in given]], dtype=np.int64), claim)


def worst_epsilon(charges: Sequence[Charge], counts: "NDArray[np.int64]", claim: Claim) -> float:
    """The largest ε of any unit. Row i of `counts` says how often each charge touched unit i."""
    return worst_bound(charges, counts, claim)[0]


def worst_bound(charges: Sequence[Charge], counts: "NDArray[np.int64]", claim: Claim) -> tuple[float, Accountant]:
    """Return `worst_epsilon` and its accountant. For discrete noise it is the one with the smaller ε. Both are valid bounds."""
    if counts.size and counts.min() < 0:
        raise InputError(f"a charge cannot be made {int(counts.min())} times. Counts are 0 or more.")
    touched = np.flatnonzero(counts.any(axis=0))
    if not touched.size:
        return 0.0, claim.accountant
    charges, counts = [charges[column] for column in touched.tolist()], counts[:, touched]
    if claim.accountant == "rdp":
        return _worst_renyi(charges, counts, claim), "rdp"
    if not any(charge.discrete for charge in charges):
        return _worst_loss(charges, counts, claim), "pld"
    tight = _worst_discrete(charges, counts, claim)
    if tight is not None and claim.adjacency == "replace-one" and any(charge.sampling < 1 for charge in charges):
        return tight, "pld"
    looser = _worst_renyi(charges, counts, claim)
    return (looser, "rdp") if tight is None or looser < tight else (tight, "pld")


def _worst_discrete(charges: Sequence[Charge], counts: "NDArray[np.int64]", claim: Claim) -> float | None:
    """ε of discrete noise by privacy losses, the least of several valid bounds. None if there is none.

    Fine noise is as good as the continuous noise from which it is rounded. Coarse noise loses some of it there: a larger slack
    loses less, and where a unit can add few different vectors, their privacy loss is counted instead.
    """
    replace_one = claim.adjacency == "replace-one"
    bounds = [_worst_rounded([_rounded(charge, replace_one, LITTLE_SLACK) for charge in charges], counts, claim)]
    if any(charge.deviation is not None and charge.deviation < _COARSE for charge in charges):
        releases = int((counts @ np.array([charge.steps for charge in charges])).max())
        loose = [_rounded(charge, replace_one, max(_COARSE_SLACK / releases, LITTLE_SLACK)) for charge in charges]
        bounds.append(_worst_rounded(loose, counts, claim))
        counted = [_counted(charge, replace_one) or each for charge, each in zip(charges, loose, strict=True)]
        few = sum(one is not None and one[0].discrete for one in counted) <= _LEVELS
        if few and counted != loose and claim.delta >= LEAST_DELTA:
            bounds.append(_worst_rounded(counted, counts, claim))
    return min((bound for bound in bounds if bound is not None), default=None)


def _worst_rounded(found: Sequence[tuple[Charge, float] | None], counts: "NDArray[np.int64]", claim: Claim) -> float | None:
    """ε of the charges that stand for those that were made, each with its slack. None if that says nothing.

    Where M is what was released, M' what stands for it, and |ln M − ln M'| ≤ s for every outcome (s adds up
    over releases), P_M(E) − e^ε·Q_M(E) ≤ e^s·(P_M'(E) − e^(ε − 2s)·Q_M'(E)) for neighbours P and Q. So M keeps ε at δ
    if M' keeps ε − 2s at δ·e^−s.
    """
    alike = [one for one in found if one is not None]
    if len(alike) < len(found):
        return None
    slack = float((counts @ np.array([each for _, each in alike])).max())
    delta = claim.delta * math.exp(-slack)
    if slack > 1 or (delta < LEAST_DELTA and any(charge.sampling < 1 or charge.discrete for charge, _ in alike)):
        return None
    return _worst_loss(_levelled([charge for charge, _ in alike]), counts, replace(claim, delta=delta)) + 2 * slack


def _levelled(charges: Sequence[Charge]) -> Sequence[Charge]:
    """Return the same charges with fewer different multipliers, if they are sampled. Some have slightly less noise than before.

    Each different multiplier needs its own privacy loss distribution. The levels are as fine as their number allows: if 0.7 to
    1 of a cohort survives, 1 % of the noise is lost on average.
    """
    sampled = sorted({charge.multiplier for charge in charges if charge.sampling < 1}, reverse=True)
    fineness, levels = 1024.0, dict(zip(sampled, sampled, strict=True))
    while len(set(levels.values())) > _LEVELS:
        fineness /= 2
        least = {math.floor(math.log2(each) * fineness): each for each in sampled}
        levels = {each: least[math.floor(math.log2(each) * fineness)] for each in sampled}
    return [replace(charge, multiplier=levels.get(charge.multiplier, charge.multiplier)) for charge in charges]


def _rounded(charge: Charge, replace_one: bool, most_slack: float) -> tuple[Charge, float] | None:
    """The continuous charge that stands for one of either kind, and how far all its releases are from it.

    Only numbers that the unit moves can be far: its vector has integers and a bounded length, so it has few that are not 0.
    """
    if not charge.discrete:
        return charge, 0.0
    if charge.deviation is None or charge.size is None:
        return None
    moved = _moved(charge.deviation, charge.multiplier, charge.size, replace_one)
    found = rounded_from(charge.deviation, moved, most_slack)
    if found is None:
        return None
    rest, slack = found
    less = charge.multiplier * (rest / charge.deviation)
    shares = charge.slack * (moved / charge.size)
    return Charge(multiplier=less, sampling=charge.sampling, steps=charge.steps), charge.steps * (slack + shares)


def _counted(charge: Charge, replace_one: bool) -> tuple[Charge, float] | None:
    """The same charge without slack if its privacy loss can be counted, and how far its releases are from one Gaussian each."""
    if charge.deviation is None or charge.size is None or charge.deviation >= _COARSE or charge.multiplier < _LEAST_COUNTED:
        return None
    square = largest_square(charge.deviation, charge.multiplier) * (4 if replace_one else 1)
    if square > MOST_SQUARE or (replace_one and charge.sampling < 1):
        return None
    moved = _moved(charge.deviation, charge.multiplier, charge.size, replace_one)
    return replace(charge, slack=0.0), charge.steps * charge.slack * (moved / charge.size)


def _moved(deviation: float, multiplier: float, size: int, replace_one: bool) -> int:
    """How many of `size` integers one unit can change: a vector v has at most |v|² that are not 0, and two have twice that."""
    return min(size, largest_square(deviation, multiplier) * (2 if replace_one else 1))


def _worst_loss(charges: Sequence[Charge], counts: "NDArray[np.int64]", claim: Claim) -> float:
    """By privacy losses. Charges that are still discrete are counted."""
    charges = [
        replace(charge, sampling=1.0) if charge.sampling < 1 and _hopeless(charge, int(times)) else charge
        for charge, times in zip(charges, counts.max(axis=0), strict=True)
    ]
    plain = np.array([charge.sampling == 1 and not charge.discrete for charge in charges])
    pulls = np.array(
        [charge.steps / charge.multiplier**2 if known else 0.0 for charge, known in zip(charges, plain, strict=True)]
    )
    if plain.all():
        return _gaussian_epsilon(float((counts @ pulls).max()), claim.adjacency == "replace-one", claim.delta)
    return _worst_composed(charges, counts, plain, pulls, claim)


def _hopeless(charge: Charge, times: int) -> bool:
    """Whether sampled noise is so weak, or released so often, that it is charged like unsampled noise. This is never less."""
    whole = charge.multiplier**-2
    pull = times * charge.steps * min(whole, charge.sampling**2 * math.expm1(min(whole, 100.0)))
    return charge.multiplier < _LEAST_SAMPLED or charge.sampling > 1 - 1e-9 or pull > _MOST_PULL


def _gaussian_epsilon(pull: float, replace_one: bool, delta: float) -> float:
    """Gaussians compose to one Gaussian: 1/z² adds up to `pull`. Replacing a unit moves a sum twice as far as removing it."""
    return gaussian_epsilon((0.5 if replace_one else 1.0) / math.sqrt(pull), delta)


def _worst_renyi(charges: Sequence[Charge], counts: "NDArray[np.int64]", claim: Claim) -> float:
    """By Rényi divergences, which add up order by order.

    At whole orders those of the sampled discrete Gaussian are those of the sampled Gaussian: E[(p_v/p_0)^k] is a lattice sum
    that shifts by whole vectors leave as it is. At other orders that is not so, and they are left out. A density ratio within
    e^±slack adds (2α − 1)/(α − 1)·slack.
    """
    sampled = [charge for charge in charges if charge.sampling < 1]
    if sampled and claim.adjacency == "replace-one":
        raise InputError(
            f"adjacency replace-one with sampling {sampled[0].sampling:g} has no known bound on Rényi divergences. "
            "Use adjacency add-remove or zero-out, or continuous noise with accountant pld."
        )
    orders = tuple(map(float, WHOLE_ORDERS)) if any(charge.discrete for charge in sampled) else ALL_ORDERS
    at, halved = np.asarray(orders), 0.5 if claim.adjacency == "replace-one" else 1.0
    each = np.stack(
        [
            charge.steps * (renyi(charge.multiplier * halved, charge.sampling, orders) + (2 * at - 1) / (at - 1) * charge.slack)
            for charge in charges
        ]
    )
    totals = counts.astype(np.float64) @ np.minimum(each, 1e200)  # an order that did not converge must not make 0·∞
    return float(renyi_epsilons(totals, orders, claim.delta).max())


def _worst_composed(
    charges: Sequence[Charge],
    counts: "NDArray[np.int64]",
    plain: "NDArray[np.bool_]",
    pulls: "NDArray[np.float64]",
    claim: Claim,
) -> float:
    """Use privacy loss distributions, for one unit after the other, starting with the one with the largest Rényi bound."""
    if claim.delta < LEAST_DELTA:
        raise InputError(
            f"delta {claim.delta:g} is below {LEAST_DELTA:g}, where a discretised privacy loss says nothing sure about "
            "sampled noise. Use accountant rdp, or a larger delta."
        )
    rows = undominated(counts)
    if len(rows) > 1 and claim.adjacency != "replace-one":
        orders = tuple(map(float, WHOLE_ORDERS))
        each = np.stack([charge.steps * renyi(charge.multiplier, charge.sampling, orders) for charge in charges])
        bounds = renyi_epsilons(rows.astype(np.float64) @ np.minimum(each, 1e200), orders, claim.delta)
    else:
        bounds = np.full(len(rows), math.inf)
    worst = 0.0
    for done, row in enumerate(np.argsort(-bounds, kind="stable")):
        if bounds[row] <= worst:
            break
        if done >= _PROFILES and bounds[row] < math.inf:
            return float(max(worst, bounds[row]))
        parts: dict[Charge, int] = {}
        for charge, known, times in zip(charges, plain.tolist(), rows[row].tolist(), strict=True):
            if not known and times:
                single = replace(charge, steps=1)
                parts[single] = parts.get(single, 0) + times * charge.steps
        pull = float(rows[row][plain] @ pulls[plain])
        worst = max(worst, _loss_epsilon(frozenset(parts.items()), pull, claim.adjacency == "replace-one", claim.delta))
    return worst


@cached(maxsize=4096)
def _loss_epsilon(parts: frozenset[tuple[Charge, int]], pull: float, replace_one: bool, delta: float) -> float:
    """ε of sampled or counted charges, each with its number of repetitions, and of Gaussians whose 1/z² add up to `pull`."""
    if not parts:
        return _gaussian_epsilon(pull, replace_one, delta)
    grids = [interval(charge.multiplier, charge.sampling) for charge, _ in parts]
    step = max(*grids, interval(1 / math.sqrt(pull), 1.0) if pull else 0.0)
    total: Any = None
    for charge, times in sorted(parts, key=repr):
        made = _loss(charge, replace_one, step).self_compose(times)
        total = made if total is None else total.compose(made)
    if pull:
        total = total.compose(sampled_loss(1 / math.sqrt(pull), 1.0, replace_one, step))
    return float(total.get_epsilon_for_delta(delta))


def _loss(charge: Charge, replace_one: bool, step: float) -> Any:
    if charge.deviation is None or charge.size is None:
        return sampled_loss(charge.multiplier, charge.sampling, replace_one, step)
    square = largest_square(charge.deviation, charge.multiplier) * (4 if replace_one else 1)
    return counted_loss(charge.deviation, square, min(charge.size, square), charge.sampling, step)


def calibrated(claim: Claim, epsilon: float, charges: Callable[[float], Mapping[Charge, int]]) -> float:
    """The smallest noise multiplier, to one part in ten thousand, whose charges stay within ε.

    `charges(multiplier)` returns all charges for a multiplier. The result has been checked with `epsilon_of`.
    """
    check_epsilon(epsilon)

    def overshoot(multiplier: float) -> float:
        return math.log(max(epsilon_of(charges(multiplier), claim), 1e-300) / epsilon)

    at, low, high = 1.0, None, None
    while low is None or high is None:
        value = overshoot(at)
        if value > 0:
            low = (at, value)
        else:
            high = (at, value)
        if low is None and at <= _SMALLEST:
            return at
        if high is None and at >= _LARGEST:
            raise InputError(
                f"no noise keeps epsilon {epsilon:g} {claim.text}: even with a multiplier of {at:g} it is "
                f"{epsilon * math.exp(value):.3g}. Allow a larger epsilon or delta, fewer rounds, or noise with less slack."
            )
        at *= math.exp(max(-1.5, min(1.5, value + math.copysign(0.05, value))))  # ε falls about as 1/z
        at = min(max(at, _SMALLEST), _LARGEST)
    turn = 0
    while (width := math.log(high[0] / low[0])) > math.log(_FACTOR):
        turn += 1
        # Where ln ε meets its aim if it is a line in ln z, and a little on towards the farther end, so that both ends close in.
        share = 0.5 if turn % 4 == 0 else low[1] / (low[1] - max(high[1], -1.5)) if low[1] < 1.5 else 0.5
        nudge = min(0.45, math.log(_FACTOR) / (2.5 * width))
        share += nudge if share < 0.5 else -nudge
        at = low[0] * math.exp(width * share)
        value = overshoot(at)
        low, high = ((at, value), high) if value > 0 else (low, (at, value))
    return high[0]
