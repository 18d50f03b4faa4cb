"""How fast the prediction of the next mean follows the decoded means."""

from dataclasses import replace

from sketchfed.codecs.base import Codec


def prediction_gain(codec: Codec, *, clients: int, error_feedback: bool) -> float:
    """The gain γ in p ← p + γ·decoded, where clients encode x − p and the server adds p back.

    Whatever stays the same from round to round then causes no error. With γ = 1 the prediction is the last decoded mean, as in
    Rand-k-Temporal (Jhunjhunwala et al. 2021). But an unbiased codec with variance ω around the mean of equal vectors then
    multiplies an old error of p by ω. If ω is above 1, the error grows without bound: Rand-k at a hundredth with ten clients
    has ω = 9.9. With γ = 1/(1 + ω) the error shrinks fastest, as for the shifts of DIANA (Mishchenko et al. 2019). If there is
    no formula for ω, the value for a single client is an upper bound. Under error feedback γ is 1, because decoded vectors
    are already shrunk. It is also 1 for biased codecs, which are contractions.
    """
    if error_feedback or not codec.unbiased:
        return 1.0
    # All clients share an error of p, but a joint decoder may assume otherwise: take the worse of equal and orthogonal vectors.
    variances = [replace(codec, clients=clients).mse(total_square=clients, correlation=belief) for belief in (0, clients - 1)]
    known = [variance for variance in variances if variance is not None]
    return 1 / (1 + max(known)) if known else codec.shrinkage
