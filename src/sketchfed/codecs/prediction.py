"""How far a prediction of the next mean follows the last decoded one."""

from dataclasses import replace

from sketchfed.codecs.base import Codec


def prediction_gain(codec: Codec, *, clients: int, error_feedback: bool) -> float:
    """γ in p ← p + γ·decoded, where clients encode x − p and the server adds p back: what stays the same costs no error.

    With γ = 1 the prediction is the last decoded mean, as in Rand-k-Temporal (Jhunjhunwala et al. 2021). But an unbiased
    codec with variance ω around the mean of equal vectors then multiplies an old error of p by ω, and what is above 1 grows
    without bound: Rand-k at a hundredth with ten clients has ω = 9.9. γ = 1/(1 + ω) is the gain at which it shrinks fastest,
    as for the shifts of DIANA (Mishchenko et al. 2019). Where no formula tells ω, that of a single client bounds it. Under
    error feedback what is decoded was shrunk already, and biased codecs are contractions.
    """
    if error_feedback or not codec.unbiased:
        return 1.0
    # An error of p is common to all clients, but a joint decoder may not believe that: so the worse of equal and of orthogonal.
    variances = [replace(codec, clients=clients).mse(total_square=clients, correlation=belief) for belief in (0, clients - 1)]
    known = [variance for variance in variances if variance is not None]
    return 1 / (1 + max(known)) if known else codec.shrinkage
