"""The discrete Gaussian, exactly, from a buffer of secret words and in integers only.

Canonne, Kamath & Steinke 2020, Algorithms 1 to 3. Their uniform integers are compared with fractions digit by digit: a word
of 32 bits is the next digit of a uniform real number U, and `U < fraction` is decided by that word except with probability
2^-32, when the next word is read. So no word is thrown away, and nothing is rounded.

Words beyond the end of the buffer read as all ones, and a sample that touched them is not finished: it begins again, with the
same words and more behind them. Keeping what was begun, or leaving those words out, would favour samples that need few words.
"""

import numpy as np

from sketchfed.kernels.jit import kernel

_WORD = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_NOTHING = np.uint64(0)
_ONE = np.uint64(1)


@kernel
def _next(words, at):
    """The word at the cursor, which moves on; all ones beyond the end, where every loop below stops."""
    place = at[0]
    at[0] = place + 1
    return np.uint64(words[place]) if place < words.size else _LOW


@kernel
def _below(part, whole, words, at):
    """True with probability part/whole, for 0 ≤ part < whole < 2^32."""
    while True:
        scaled, reached = part << _WORD, _next(words, at) * whole
        if reached >= scaled:
            return False
        if reached + whole <= scaled:
            return True
        if at[0] > words.size:
            return False
        part = scaled - reached


@kernel
def _wide_below(high, low, whole_high, whole_low, words, at):
    """The same for two numbers of up to 96 bits, each as an upper and a lower word of 64 bits."""
    while True:
        word = _next(words, at)
        first = word * (whole_low & _LOW)
        second = word * (whole_low >> _WORD) + (first >> _WORD)
        reached_low = second << _WORD | first & _LOW
        reached_high = word * whole_high + (second >> _WORD)
        scaled_high, scaled_low = high << _WORD | low >> _WORD, low << _WORD
        if reached_high > scaled_high or (reached_high == scaled_high and reached_low >= scaled_low):
            return False
        low = scaled_low - reached_low
        high = scaled_high - reached_high - (_ONE if scaled_low < reached_low else _NOTHING)
        if high > whole_high or (high == whole_high and low >= whole_low):
            return True
        if at[0] > words.size:
            return False


@kernel
def _heads(part, whole, words, at):
    """True with probability exp(−γ) for γ = part/whole and 0 ≤ part < whole < 2^32 (Alg. 1).

    k goes up with probability γ/k, and its parity is the answer. Comparing with 1/k and with γ, independently, keeps numbers
    small.
    """
    k = _ONE
    while (k == _ONE or _below(_ONE, k, words, at)) and _below(part, whole, words, at):
        k += _ONE
    return k & _ONE == _ONE


@kernel
def _heads_of_one(words, at):
    """True with probability 1/e: Alg. 1 with γ = 1, whose first comparison, with 1/1, always holds."""
    k = np.uint64(2)
    while _below(_ONE, k, words, at):
        k += _ONE
    return k & _ONE == _ONE


@kernel
def _wide_heads(high, low, whole_high, whole_low, words, at):
    """True with probability exp(−x/whole) for wide x and whole: a coin for every 1 in the quotient, one for the rest."""
    while high > whole_high or (high == whole_high and low >= whole_low):
        if not _heads_of_one(words, at):
            return False
        high -= whole_high + (_ONE if low < whole_low else _NOTHING)
        low -= whole_low
    k = _ONE
    while (k == _ONE or _below(_ONE, k, words, at)) and _wide_below(high, low, whole_high, whole_low, words, at):
        k += _ONE
    return k & _ONE == _ONE


@kernel
def wide_product(a, b):
    """The product of two words of 64 bits, as an upper and a lower one."""
    a0, a1, b0, b1 = a & _LOW, a >> _WORD, b & _LOW, b >> _WORD
    middle = a1 * b0 + (a0 * b0 >> _WORD)
    other = a0 * b1 + (middle & _LOW)
    return a1 * b1 + (middle >> _WORD) + (other >> _WORD), a * b


@kernel
def _sample(scale_log, u, v, whole_high, whole_low, words, at):
    """One sample, or anything if the words do not reach."""
    scale = _ONE << np.uint64(scale_log)
    while at[0] <= words.size:
        # Alg. 2: |Y| is t·V + R with R < t and V geometric, both weighed by exp(−·/t).
        rest = _next(words, at) & (scale - _ONE)
        if not _heads(rest, scale, words, at):
            continue
        height = rest
        while _heads_of_one(words, at):
            height += scale
        negative = _next(words, at) & _ONE == _ONE
        if negative and height == _NOTHING:
            continue
        # Alg. 3: kept with probability exp(−(|Y| − σ²/t)²/(2σ²)) = exp(−(v·|Y| − u)²/(2tuv)).
        reach = v * height
        gap = reach - u if reach > u else u - reach
        high, low = wide_product(gap, gap)
        if _wide_heads(high, low, whole_high, whole_low, words, at):
            return -np.int64(height) if negative else np.int64(height)
    return np.int64(0)


@kernel
def fill(scale_log, u, v, words, out):
    """out ← samples of variance t·u/v with t = 2^scale_log, as many as the words reach for; how many, and the words they took.

    u and v·t must be below 2^46: then 2tuv has at most 93 bits, and v·|Y| fits a word unless |Y| exceeds 2^17 times t.
    """
    u, v = np.uint64(u), np.uint64(v)
    whole_high, whole_low = wide_product(u, v << np.uint64(scale_log + 1))
    at = np.zeros(1, np.int64)
    for done in range(out.size):
        begun = at[0]
        value = _sample(scale_log, u, v, whole_high, whole_low, words, at)
        if at[0] > words.size:
            return done, begun
        out[done] = value
    return out.size, at[0]


@kernel
def normals(words, out):
    """out ← standard normals by Box and Muller, two from four words: 53 bits for the radius, 53 for the angle."""
    for pair in range((out.size + 1) // 2):
        a = np.uint64(words[4 * pair]) << _WORD | np.uint64(words[4 * pair + 1])
        b = np.uint64(words[4 * pair + 2]) << _WORD | np.uint64(words[4 * pair + 3])
        radius = np.sqrt(-2.0 * np.log(np.float64((a >> np.uint64(11)) + _ONE) * 2.0**-53))
        angle = np.float64(b >> np.uint64(11)) * (2.0**-52 * np.pi)
        out[2 * pair] = radius * np.cos(angle)
        if 2 * pair + 1 < out.size:
            out[2 * pair + 1] = radius * np.sin(angle)
