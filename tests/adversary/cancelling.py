"""Which combinations of rows cancel: the linear algebra of what an adversary learns."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

PRIME = 2**61 - 1
"""Combinations are computed modulo this prime, in place of fractions: their coefficients are near zero, so none is mistaken."""

Sparse = dict[Hashable, int]


def cancelling(rows: Sequence[Mapping[Hashable, int]]) -> list[dict[int, int]]:
    """The basis, in reduced echelon form, of the combinations of rows, by place, in which every column cancels.

    Sums are modulo a power of two. They have no further combinations if there are no more modulo 2, which is checked.
    """
    left = _without_lonely(rows)
    found = _null_space(rows, left, PRIME)
    assert len(_null_space(rows, left, 2)) == len(found), "some masks cancel modulo 2 and not in whole numbers"
    return [{place: own if own < PRIME // 2 else own - PRIME for place, own in sorted(parts.items())} for parts in found]


def _without_lonely(rows: Sequence[Mapping[Hashable, int]]) -> list[int]:
    """The rows that may take part in a combination. A mask that is in one row only never cancels."""
    left = set(range(len(rows)))
    while True:
        holders: defaultdict[Hashable, list[int]] = defaultdict(list)
        for place in left:
            for column in rows[place]:
                holders[column].append(place)
        lonely = {places[0] for places in holders.values() if len(places) == 1}
        if not lonely:
            return sorted(left)
        left -= lonely


def _null_space(rows: Sequence[Mapping[Hashable, int]], places: Sequence[int], prime: int) -> list[Sparse]:
    pivots: dict[Hashable, tuple[Sparse, Sparse]] = {}
    found: dict[Hashable, Sparse] = {}
    for place in places:
        entries, parts = _plus({}, 1, rows[place], prime), {place: 1}
        for column, (other, made_of) in pivots.items():
            if factor := entries.get(column, 0):
                entries, parts = _plus(entries, -factor, other, prime), _plus(parts, -factor, made_of, prime)
        if entries:
            column, first = next(iter(entries.items()))
            scale = pow(first, -1, prime)
            pivots[column] = _plus({}, scale, entries, prime), _plus({}, scale, parts, prime)
        else:
            _add(found, parts, prime)
    return list(found.values())


def _add(basis: dict[Hashable, Sparse], parts: Sparse, prime: int) -> None:
    """Add a combination to a reduced basis, which is kept by the first place of each."""
    for lead, other in basis.items():
        parts = _plus(parts, -parts.get(lead, 0), other, prime)
    lead = min(parts)
    parts = _plus({}, pow(parts[lead], -1, prime), parts, prime)
    for before, other in basis.items():
        basis[before] = _plus(other, -other.get(lead, 0), parts, prime)
    basis[lead] = parts


def _plus(first: Mapping[Hashable, int], factor: int, second: Mapping[Hashable, int], prime: int) -> Sparse:
    total = dict(first)
    for key, value in second.items():
        total[key] = (total.get(key, 0) + factor * value) % prime
    return {key: value for key, value in total.items() if value}
