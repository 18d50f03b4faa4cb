"""Noise from a secret: the discrete Gaussian exactly, and normal numbers as well as floats can."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sketchfed.errors import InputError
from sketchfed.kernels import discrete_gaussian as kernels
from sketchfed.seeds import SecretSeed, SecretStream, secret_bytes

LEAST_DEVIATION, MOST_DEVIATION = 0.25, 2.0**30
_MOST_BITS = 46  # of u and of v·t, below which no product in the kernel overflows
_PRECISE_BITS = 44
_WORDS_EACH = 24  # what a sample takes, about; a buffer may be too short or too long for what is asked
_MOST_WORDS = 1 << 17  # half a megabyte stays in the cache


def discrete_gaussian(secret: SecretSeed, count: int, *, variance: Fraction | int) -> npt.NDArray[np.int64]:
    """`count` independent integers with P(x) ∝ exp(−x²/(2·variance)), exactly.

    Paper: Canonne, Kamath & Steinke 2020, "The Discrete Gaussian for Differential Privacy", Alg. 1 to 3, with a power of two
    near σ as the scale of the Laplace distribution (any integer is right; theirs, ⌊σ⌋ + 1, accepts a little more). Integers
    only: unlike floating-point noise (`secret_normals`) its lowest bits tell nothing. The time it takes does depend on what
    is drawn. The same secret gives the same numbers, so take a child of its own for every use.

    The variance is a fraction p/q with p and q·σ² below about 2^45; `variance_above` finds one for any deviation.

    >>> discrete_gaussian(SecretSeed.insecure(7), 8, variance=Fraction(81, 4)).tolist()
    [0, -1, 8, -1, -2, 5, 1, -6]
    """
    _check_count(count)
    scale_log, u, v = _parameters(variance)
    stream, out, done = SecretStream(secret), np.empty(count, np.int64), 0
    words = np.empty(0, np.uint32)
    while done < count:
        fresh = stream.words(min(_MOST_WORDS, 64 + _WORDS_EACH * (count - done)))
        words = np.concatenate([words, fresh])
        found, used = kernels.fill(scale_log, u, v, words, out[done:])
        done, words = done + found, words[used:]
    return out


def variance_above(deviation: float) -> Fraction:
    """A variance that `discrete_gaussian` takes, at least deviation² and above it by at most a part in 2^40."""
    if not isinstance(deviation, int | float) or not LEAST_DEVIATION <= deviation <= MOST_DEVIATION:
        raise InputError(
            f"discrete noise has a deviation from 1/4 to 2^30 integer steps, got {deviation!r}. Change the scale, which says "
            "how many steps there are to a unit."
        )
    exact = Fraction(deviation) ** 2
    scale_log = _scale_log(exact)
    v = 1 << _PRECISE_BITS - scale_log
    return Fraction(math.ceil(exact * v / (1 << scale_log)) << scale_log, v)


def poisson_sample(secret: SecretSeed, count: int, *, chance: float) -> npt.NDArray[np.int64]:
    """Which of `count` things are chosen, each with the same chance and independent of the others; ascending.

    Chances are multiples of 2⁻⁶⁴, rounded down.
    """
    if chance >= 1:
        return np.arange(count)
    words = np.frombuffer(secret_bytes(secret, 8 * count), "<u8")
    return np.flatnonzero(words < np.uint64(int(chance * 2**64)))


def secret_normals(secret: SecretSeed, count: int) -> npt.NDArray[np.float64]:
    """`count` independent standard normal numbers, from 53-bit uniform ones by Box and Muller.

    What every floating-point normal has, these have too: only some floats can come out, and which ones depends on what the
    noise is added to, so that the lowest bits of a noised value can give the value away (Mironov 2012, "On Significance of
    the Least Significant Bits for Differential Privacy"). None exceeds 8.6. `discrete_gaussian` has neither weakness.
    """
    _check_count(count)
    out = np.empty(count, np.float64)
    kernels.normals(SecretStream(secret).words(4 * ((count + 1) // 2)), out)
    return out


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InputError(f"the count of random numbers is an integer from 0 on, got {count!r}.")


def _scale_log(variance: Fraction) -> int:
    """The logarithm of t: the power of two with σ/√2 ≤ t < √2·σ, or 1 for small σ."""
    log = 0
    while variance >= 2 << 2 * log:
        log += 1
    return log


def _parameters(variance: Fraction | int) -> tuple[int, int, int]:
    """log t, u and v of variance = t·u/v."""
    if not isinstance(variance, Fraction | int) or isinstance(variance, bool) or variance <= 0:
        raise InputError(
            f"the variance of discrete noise is a positive fraction, got {variance!r}. Write Fraction(81, 4), or "
            "variance_above(4.5) for a deviation."
        )
    scale_log = _scale_log(Fraction(variance))
    ratio = Fraction(variance) / (1 << scale_log)
    u, v = ratio.numerator, ratio.denominator
    if u.bit_length() > _MOST_BITS or (v << scale_log).bit_length() > _MOST_BITS or scale_log > 31:
        raise InputError(
            f"the variance {variance} has too many digits for exact comparisons in 128 bits. Round it up: "
            "variance_above(deviation) gives one that fits."
        )
    return scale_log, u, v
