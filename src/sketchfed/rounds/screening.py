"""Finds replies that are far longer than those of the other clients."""

import math
from collections.abc import Mapping
from statistics import median


def wild(norms: Mapping[int, float], ratio: float) -> dict[int, str]:
    """Find clients whose norm is not finite, or exceeds `ratio` times the median of at least three, and say why.

    One reply of 1e30 makes the mean worthless. No bound suits all runs, because the norm of an update depends on the model and
    shrinks as the model learns. So the replies of a round are compared with each other, which works as long as most clients
    are honest. If the median is zero, the comparison says nothing.
    """
    reasons = {client: "the norm of what it sent is not finite." for client, norm in norms.items() if not math.isfinite(norm)}
    finite = {client: norm for client, norm in norms.items() if client not in reasons}
    middle = median([*finite.values(), *(math.inf for _ in reasons)]) if len(norms) >= 3 else 0.0
    if ratio and 0 < middle < math.inf:
        reasons |= {
            client: f"what it sent has norm {norm:.3g}, more than {ratio:g} times the median {middle:.3g} of this round."
            for client, norm in finite.items()
            if norm > ratio * middle
        }
    return reasons
