"""The rank of integer matrices without rounding: elimination over the field of 2^31 − 1 elements.

A rank over a finite field never exceeds the rank over the rationals, so a full one is proved; a deficient one could be an
accident of the prime, with a chance of about rows/2^31.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

_PRIME = 2**31 - 1

Function = Callable[..., Any]


def _inlined(function: Function) -> Function:
    return numba.njit(inline="always", error_model="numpy")(function)


def _kernel(function: Function) -> Function:
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)


@_inlined
def _folded(x):
    """A number below 2^63 as one of at most 2^31 + 1 that is the same modulo the prime: upper bits count like lower ones."""
    x = (x & np.uint64(_PRIME)) + (x >> np.uint64(31))
    return (x & np.uint64(_PRIME)) + (x >> np.uint64(31))


@_inlined
def _residue(x):
    """A folded number from 0 to the prime minus one."""
    return x - np.uint64(_PRIME) if x >= np.uint64(_PRIME) else x


@_kernel
def _inverse(x):
    """x^(p − 2)."""
    result, power, exponent = np.uint64(1), x, _PRIME - 2
    while exponent:
        if exponent & 1:
            result = _residue(_folded(result * power))
        power = _residue(_folded(power * power))
        exponent >>= 1
    return result


@_kernel
def _subtract(target, factor, row):
    """target ← target + factor·row; numbers stay folded, which vectorises."""
    for j in range(target.size):
        target[j] = np.uint32(_folded(np.uint64(target[j]) + np.uint64(factor) * np.uint64(row[j])))


@_kernel
def _eliminate(a):
    """The rank of a matrix of folded numbers, which is overwritten."""
    rows, columns = a.shape
    rank = 0
    for column in range(columns):
        pivot = rank
        while pivot < rows and _residue(np.uint64(a[pivot, column])) == 0:
            pivot += 1
        if pivot == rows:
            continue
        if pivot != rank:
            for j in range(column, columns):
                a[pivot, j], a[rank, j] = a[rank, j], a[pivot, j]
        inverse = _inverse(_residue(np.uint64(a[rank, column])))
        for i in range(rank + 1, rows):
            factor = _residue(_folded(np.uint64(a[i, column]) * inverse))
            if factor:
                _subtract(a[i, column:], np.uint32(np.uint64(_PRIME) - factor), a[rank, column:])
        rank += 1
        if rank == rows:
            break
    return rank


def rank(matrix: npt.NDArray[np.int64]) -> int:
    """The rank of a matrix of integers.

    >>> rank(np.array([[1, 2, 3], [4, 5, 6], [5, 7, 9]]))
    2
    """
    return int(_eliminate((matrix % _PRIME).astype(np.uint32)))
