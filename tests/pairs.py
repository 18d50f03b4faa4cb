"""Some of all combinations for `make test`; the others are for `make slow`."""

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def thinned(*choices: Collection[Any], every: int, always: Iterable[tuple[Any, ...]] = ()) -> list[Any]:
    """All combinations of choices, of which each choice is in about one of `every`; the others are marked as slow.

    Any two choices of a kind meet different ones of another kind, so all pairs are met if `every` is at most the number of
    choices of the third kind. The combinations in `always` are not slow.
    """
    kept = set(always)
    return [
        pytest.param(*chosen, marks=[] if sum(numbers) % every == 0 or chosen in kept else pytest.mark.slow)
        for numbers, chosen in zip(product(*map(range, map(len, choices))), product(*choices), strict=True)
    ]
