"""Standard normal numbers with the same bits on every platform and device.

Box–Muller, in float32, from additions, multiplications and correctly rounded square roots only: the logarithm and the
sines are polynomials evaluated in a fixed order, so neither a maths library nor a fused multiply-add can change a result.
Column j of row r takes its word from block (j // 4, r) of a Philox stream.
"""

import numpy as np
import torch
from torch import Tensor

from sketchfed.kernels.jit import inlined, kernel
from sketchfed.kernels.philox import philox, words_twin
from sketchfed.kernels.roots import square_root
from sketchfed.seeds import Words

_LOG = np.array(
    [0.99999997, -0.49999987, 0.33334183, -0.25002153, 0.19956977, -0.16560696, 0.14949095, -0.14377331, 0.08743945], np.float32
)
"""ln(1 + s)/s on √½ − 1 ≤ s < √2 − 1, lowest power first; relative error 3e-8."""
_SINE = np.array([1.57079633, -0.645964096, 0.0796925827, -0.00468126637, 0.000158206523], np.float32)
"""sin(πt/2)/t as a polynomial in t², |t| ≤ ½."""
_COSINE = np.array([1.0, -1.23370054, 0.253669204, -0.0208600704, 0.000903629883], np.float32)
"""cos(πt/2) as a polynomial in t², |t| ≤ ½."""
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8 = _LOG
_S0, _S1, _S2, _S3, _S4 = _SINE
_C0, _C1, _C2, _C3, _C4 = _COSINE
_LN2 = np.float32(0.6931471805599453)
_ROOT_HALF = 0x3F3504F3  # the bits of √½


@inlined
def _radius(word):
    """√(−2 ln u) for u = (word + ½)/2^32, split as 2^e·m with √½ ≤ m < √2."""
    bits = np.float32(np.float32(word) + np.float32(0.5)).view(np.int32)
    exponent = np.int32(bits - np.int32(_ROOT_HALF)) >> np.int32(23)
    s = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - np.float32(1)
    log = s * _L8 + _L7
    log = log * s + _L6
    log = log * s + _L5
    log = log * s + _L4
    log = log * s + _L3
    log = log * s + _L2
    log = log * s + _L1
    log = log * s + _L0
    log = log * s + np.float32(exponent - np.int32(32)) * _LN2
    return np.sqrt(max(np.float32(-2) * log, np.float32(0)))


@inlined
def _direction(word):
    """(cos, sin) of 2π·word/2^32: the nearest quarter turn, and a polynomial for the rest."""
    angle = np.int64(word)
    quarter = angle + (1 << 29) >> 30
    t = np.float32(angle - (quarter << 30)) * np.float32(2.0**-30)
    square = t * t
    sine = square * _S4 + _S3
    sine = sine * square + _S2
    sine = sine * square + _S1
    sine = (sine * square + _S0) * t
    cosine = square * _C4 + _C3
    cosine = cosine * square + _C2
    cosine = cosine * square + _C1
    cosine = cosine * square + _C0
    odd = quarter & 1
    x, y = (sine if odd else cosine), (cosine if odd else sine)
    return (-x if quarter + 1 & 2 else x), (-y if quarter & 2 else y)


@kernel
def fill(stream, row, first, out):
    """out ← the normals of columns `first` on of a row; first and the length are multiples of four."""
    k0, k1, c2, c3 = np.uint64(stream[0]), np.uint64(stream[1]), np.uint64(stream[2]), np.uint64(stream[3])
    for block in range(out.size // 4):
        a, b, c, d = philox(np.uint64((first >> 2) + block), np.uint64(row), c2, c3, k0, k1)
        left, right = _radius(a), _radius(c)
        x0, y0 = _direction(b)
        x1, y1 = _direction(d)
        out[4 * block], out[4 * block + 1] = left * x0, left * y0
        out[4 * block + 2], out[4 * block + 3] = right * x1, right * y1


def _horner(polynomial: "np.ndarray[tuple[int], np.dtype[np.float32]]", x: Tensor) -> Tensor:
    value = x * float(polynomial[-1]) + float(polynomial[-2])
    for coefficient in polynomial[-3::-1]:
        value = value * x + float(coefficient)
    return value


def _root(x: Tensor) -> Tensor:
    """The correctly rounded root, which torch's own in float32 is not. Some devices have no float64."""
    return x.double().sqrt().float() if x.device.type in ("cpu", "cuda") else square_root(x)


def normals_twin(stream: Words, *, rows: Tensor, columns: int) -> Tensor:
    """The normals of these rows (int64), `(rows, columns)` in float32, on the tensor's device: the same bits as `fill`."""
    blocks = torch.arange(-(-columns // 4), device=rows.device).expand(len(rows), -1)
    words = words_twin(stream, blocks, rows[:, None])
    bits = (words[..., 0::2].to(torch.float32) + 0.5).view(torch.int32)
    exponent = (bits - _ROOT_HALF) >> 23
    s = (bits - (exponent << 23)).view(torch.float32) - 1
    log = _horner(_LOG, s) * s + (exponent - 32).to(torch.float32) * float(_LN2)
    radius = _root((-2 * log).clamp(min=0))
    angle = words[..., 1::2]
    quarter = (angle + (1 << 29)) >> 30
    t = (angle - (quarter << 30)).to(torch.float32) * 2.0**-30
    sine, cosine = _horner(_SINE, t * t) * t, _horner(_COSINE, t * t)
    odd = (quarter & 1).bool()
    x, y = torch.where(odd, sine, cosine), torch.where(odd, cosine, sine)
    x, y = torch.where((quarter + 1 & 2).bool(), -x, x), torch.where((quarter & 2).bool(), -y, y)
    return (radius[..., None] * torch.stack([x, y], dim=-1)).reshape(len(rows), -1)[:, :columns]
