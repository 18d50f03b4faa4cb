"""The server's step of an algorithm, and a look at what it returns: anybody may have written the algorithm."""

from collections.abc import Sequence

from torch import Tensor

from sketchfed.algorithms import Algorithm, State
from sketchfed.errors import DivergedError, FaultyPartError, SketchfedError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet

_MODERATE = 1e15
"""Numbers below this are far from what float32 holds: a step from them does not overflow."""


def checked_step(
    algorithm: Algorithm, state: State, packets: list[Packet], seed: PublicSeed, *, noise: float
) -> tuple[State, Packet | None]:
    """Return the state after a round and the update to broadcast.

    A step that raises, or that returns something else, is the algorithm's fault. Weights that are not finite are its fault, or
    its codec's, if all numbers that it was given are moderate. Otherwise training has diverged.
    """
    number, kind = state.replica.round + 1, "algorithm"
    where = f"in the server's step of round {number}"
    try:
        found = algorithm.server(state, packets, seed, noise=noise)
    except SketchfedError:
        raise
    except Exception as error:
        raise FaultyPartError(algorithm, kind, f"raised {type(error).__name__}: {error} {where}") from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise FaultyPartError(algorithm, kind, f"returned {type(found).__name__} {where}, not a state and an update")
    after, update = found
    if not isinstance(after, State) or not isinstance(update, Packet | None):
        given = f"{type(after).__name__} and {type(update).__name__}"
        raise FaultyPartError(algorithm, kind, f"returned a pair of {given} {where}, not of State and Packet or None")
    before, weights = state.replica.weights, after.replica.weights
    if after.replica.round != number:
        raise FaultyPartError(
            algorithm, kind, f"returned a replica of round {after.replica.round} where {number} should follow"
        )
    if weights.shape != before.shape or weights.dtype != before.dtype:
        given = f"shape {tuple(weights.shape)} and {weights.dtype}, not {tuple(before.shape)} and {before.dtype}"
        raise FaultyPartError(algorithm, kind, f"returned weights of {given} {where}")
    if not all_finite(weights):
        if (algorithm.global_rate or 0.0) * _largest(before, packets) < _MODERATE:
            fault = f"returned weights that are not finite {where}, although all weights and replies before it are moderate"
            raise FaultyPartError(algorithm, kind, f"or its codec, sketch or rule {fault}")
        raise DivergedError(f"the weights after round {number} are no longer finite")
    return after, update


def _largest(weights: Tensor, packets: Sequence[Packet]) -> float:
    """The largest absolute value among the weights and the numbers of the packets, at least 1."""
    arrays = [weights, *(array for packet in packets for array in packet.arrays.values() if isinstance(array, Tensor))]
    largest = [float(array.abs().max()) for array in arrays if array.is_floating_point() and array.numel()]
    scalars = [abs(value) for packet in packets for value in packet.scalars.values() if isinstance(value, int | float)]
    return max(1.0, *largest, *scalars)
