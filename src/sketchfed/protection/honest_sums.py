"""The largest norm of a sum of honest clients, to which the server clips a sum that it cannot look into.

Under secure sums, one client can send any integers, and the server cannot tell whose they were. Uniform integers modulo 2^bits
make a sum of norm 2^bits/scale·√(size/12), far beyond what any honest clients can add up to. A sum that is clipped to the
largest honest norm costs one round, not the model.
"""

import math

from torch import Tensor

from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.rounded import Rounded

CHANGED_ODDS = 1e-12
"""The probability, at most, that the norm of an honest sum exceeds its bound."""
_LOG = math.log(2 / CHANGED_ODDS)  # half of the odds for the number of units, half for the noise
_ROOM = 1e-4  # relative, for float32


def honest_norm(mechanism: Rounded | DiscreteGaussian, *, clients: int, batch: int | None = None) -> float:
    """The norm that a sum of this many honest clients exceeds with probability `CHANGED_ODDS` at most.

    Each unit adds at most `clip`, or what rounding makes of it. A client is one unit, or its batch has `batch` units on
    average, each drawn independently. Then the number of units of all clients has mean m = clients·batch and exceeds
    m + log/3 + √(log²/9 + 2·m·log) with probability exp(−log) at most (Bernstein's inequality). Noise and rounding are
    independent and sub-Gaussian in each of `size` numbers, with a variance v. Their norm exceeds
    √(v·(size + 2·√(size·log) + 2·log)) with probability exp(−log) at most (Hsu, Kakade & Zhang 2012, Thm 2.1).

    The bound does not cover sums that wrapped around, which the mechanism makes rare (`DiscreteGaussian.wrap_odds`) or
    impossible (`Rounded`).
    """
    units = float(clients)
    if batch is not None:
        units = clients * batch + _LOG / 3 + math.sqrt(_LOG**2 / 9 + 2 * clients * batch * _LOG)
    if isinstance(mechanism, DiscreteGaussian):
        longest, variance = mechanism.sensitivity / mechanism.scale, clients * mechanism.deviation**2
    else:
        longest, variance = mechanism.clip, units / 4
    size = mechanism.size
    spread = math.sqrt(variance * (size + 2 * math.sqrt(size * _LOG) + 2 * _LOG)) / mechanism.scale
    return (units * longest + spread) * (1 + _ROOM)


def clipped_to(values: Tensor, norm: float) -> Tensor:
    """Scale a vector down to a norm. A vector that is not longer is returned as it is."""
    length = float(values.double().norm())
    return values if length <= norm else (values.double() * (norm / length)).to(values.dtype)
