"""Choosing a codec that sends as many numbers as possible within a byte budget."""

import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields

import numpy as np
import torch
from torch import Tensor

from sketchfed.caches import cached
from sketchfed.codecs import CODECS, make_codec
from sketchfed.codecs.base import Codec
from sketchfed.errors import InputError
from sketchfed.kernels import normals
from sketchfed.seeds import PublicSeed
from sketchfed.wire import pack

_ENCODINGS = 8  # the number of packets over which a random packet length is averaged
_PROBE = 64  # the second size that is tried has this many more numbers, to measure the cost of one number
_SECANTS = 8  # after this many secant steps, the search bisects
_WIDEST = 32


class BudgetError(InputError):
    """The budget is smaller than the smallest packet, which takes `needed` bytes."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


def fit(
    name: str, *, dim: int, budget: int, clients: int | None = None, like: Tensor | None = None, **options: object
) -> Codec:
    """Return the codec with this name whose packets carry the most numbers in at most `budget` bytes.

    The function encodes, packs and measures packets, without what the envelope already contains (`Codec.bare`). If the length
    of a packet is random (`wangni`), its mean must fit. Quantisers, which by default send every coordinate in few bits, start
    with the fewest bits. If all coordinates fit, they get the largest `bits` that still fit. Other codecs keep their `bits`.
    The measured vector is standard normal and comes from a public seed, so all parties choose the same codec. The length of
    some packets depends on their contents: for these, pass a vector `like` those that will be sent.

    >>> fit("sketched", dim=1024, budget=500).size
    113
    """
    if type(budget) is not int or budget < 1:
        raise InputError(f"a budget must be a positive number of bytes per packet, got {budget!r}.")
    if "size" in options:
        raise InputError("a budget decides how many numbers are sent. Leave out size, or make the codec with make_codec.")
    defaults = {field.name: field.default for field in fields(CODECS[name])}

    def build(size: int | None = None, bits: int | None = None) -> Codec:
        return make_codec(name, dim=dim, size=size, clients=clients, **options, **({} if bits is None else {"bits": bits}))

    if "size" not in defaults:
        return _refused_above(budget, build(), like)
    fewest = _first(1, dim, lambda size: build(size))
    sends_all = defaults["size"] is not MISSING
    widths = _allowed(range(1, _WIDEST + 1), lambda bits: build(fewest, bits)) if sends_all and "bits" not in options else []
    narrow = widths[0] if widths else None
    # A codec that sends all coordinates does not name them, so all coordinates may fit although slightly fewer do not.
    if not (sends_all and packet_bytes(build(dim, narrow), like) <= budget):
        _refused_above(budget, build(fewest, narrow), like)
        size = _most(fewest, dim, budget, lambda size: packet_bytes(build(size, narrow), like))
        return build(size, narrow)
    return build(dim, next((bits for bits in reversed(widths) if packet_bytes(build(dim, bits), like) <= budget), None))


def packet_bytes(codec: Codec, like: Tensor | None = None) -> float:
    """The length of a bare packet, averaged over a few rounds if it is random. The default vector is standard normal."""
    x = _normal(codec.dim) if like is None else like

    def length(trial: int) -> int:
        return len(pack(codec.bare(codec.encode(x, PublicSeed(trial), client=trial))))

    lengths = [length(0), length(1)]
    if lengths[0] != lengths[1]:
        lengths += [length(trial) for trial in range(2, _ENCODINGS)]
    return sum(lengths) / len(lengths)


def _refused_above(budget: int, smallest: Codec, like: Tensor | None) -> Codec:
    needed = packet_bytes(smallest, like)
    if needed <= budget:
        return smallest
    size, bits = getattr(smallest, "size", None), getattr(smallest, "bits", None)
    numbers = f"all {smallest.dim:,} numbers" if size is None else f"{size:,} number{'s' if size > 1 else ''}"
    width = "" if bits is None else f" of {bits} bit{'s' if bits > 1 else ''}"
    raise BudgetError(
        f"codec '{smallest.name}' cannot send less than {numbers}{width}, which takes {math.ceil(needed):,} bytes; the budget "
        f"is {budget:,}. Raise it, or use another codec.",
        needed=math.ceil(needed),
    )


def _most(fewest: int, dim: int, budget: int, cost: Callable[[int], float]) -> int:
    """The largest size from `fewest` to `dim` that fits. `fewest` must fit.

    If the costs are not monotonic, this is a size that fits while the next one does not. The costs are nearly linear, so the
    line through the last two sizes finds the answer in a few steps.
    """
    fits, too_many = fewest, dim + 1
    tried = [(fewest, cost(fewest))]
    guess = min(fewest + _PROBE, dim)
    while too_many - fits > 1:
        guess = min(max(guess, fits + 1), too_many - 1)
        tried.append((guess, cost(guess)))
        if tried[-1][1] <= budget:
            fits = guess
        else:
            too_many = guess
        (before, paid), (last, pays) = tried[-2:]
        if len(tried) > _SECANTS or pays == paid:
            guess = (fits + too_many) // 2
        else:
            guess = last + math.floor((budget - pays) * (last - before) / (pays - paid))
    return fits


def _first(low: int, high: int, make: Callable[[int], Codec]) -> int:
    """The smallest size that the codec accepts. If it accepts none, its error for the largest size is raised."""
    if _allowed([low], make):
        return low
    make(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _allowed([middle], make) else (middle, high)
    return high


def _allowed(values: Iterable[int], make: Callable[[int], Codec]) -> list[int]:
    """The values that the codec accepts."""
    good = []
    for value in values:
        try:
            make(value)
        except InputError:
            continue
        good.append(value)
    return good


@cached(maxsize=1)
def _normal(dim: int) -> Tensor:
    """A standard normal vector that is the same on every machine. The kernel fills arrays in multiples of four."""
    out = np.empty(dim + -dim % 4, dtype=np.float32)
    normals.fill(PublicSeed(0).child("budget").stream, 0, 0, out)
    return torch.from_numpy(out[:dim])
