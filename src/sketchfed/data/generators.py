"""Random generators that are seeded for a while and then put back: torch's, numpy's and Python's, and those that data holds."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sketchfed.seeds import PublicSeed

_lock = threading.RLock()  # the generators are shared by all threads

_LOOKED_AT = 2_000
"""How many objects are looked at, to find the generators that data holds."""
_OF_EACH = 100
"""How many members of a list or a dict."""
_OPAQUE = (str, bytes, int, float, Tensor, np.ndarray, type, ModuleType)


@contextmanager
def drawing_from(seed: PublicSeed, *holders: object) -> Iterator[None]:
    """Code in this block draws from `seed`, whatever was drawn before it. Afterwards the generators are as they were.

    This holds for the global generators, and for those that the `holders` hold, such as a DataLoader, its sampler and its
    Dataset. One thread at a time: what a block draws does not depend on how many threads there are.
    """
    first, *rest = (int(word) for word in seed.child("generators").words(6))
    with _lock, ExitStack() as after:
        for place, held in enumerate(generators_in(*holders)):
            after.callback(_seeded(held, seed.child("held", place)))
        before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
        random.seed(first << 32 | rest[0])
        np.random.seed(rest[1:3])  # noqa: NPY002
        torch.default_generator.manual_seed(rest[3] << 32 | rest[4])
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            torch.default_generator.set_state(before[2])


_BITS = (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
"""The sources of random bits that numpy's generators draw from."""


def generators_in(*holders: object) -> list[Any]:
    """The generators that objects hold: in their attributes, in lists and dicts, and in what their functions close over.

    Long lists are not searched to their end.
    """
    found: list[Any] = []
    left, seen = list(holders), dict[int, object]()
    while left and len(seen) < _LOOKED_AT:
        value = left.pop()
        if isinstance(value, _OPAQUE) or value is None or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, np.random.Generator):
            left.append(value.bit_generator)
        elif isinstance(value, (torch.Generator, random.Random, np.random.RandomState, *_BITS)):
            found.append(value)
        else:
            left.extend(_members(value))
    return [each for each in found if not isinstance(each, random.SystemRandom)]


def _members(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value[:_OF_EACH])
    if isinstance(value, Mapping):
        return [value[key] for key, _ in zip(value, range(_OF_EACH), strict=False)]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    own = getattr(value, "__dict__", None)
    return [part for name, part in own.items() if name != "_iterator"] if isinstance(own, dict) else []


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _seeded(held: Any, seed: PublicSeed) -> Callable[[], object]:
    """Seed a generator. Return what puts it back."""
    high, low = (int(word) for word in seed.words(2))
    number = high << 32 | low
    if isinstance(held, torch.Generator):
        tensor = held.get_state()
        held.manual_seed(number)
        return lambda: held.set_state(tensor)
    if isinstance(held, random.Random):
        state = held.getstate()
        held.seed(number)
        return lambda: held.setstate(state)
    if isinstance(held, np.random.RandomState):
        known = held.get_state()
        held.seed([high, low])
        return lambda: held.set_state(known)
    before = held.state
    held.state = type(held)(number).state
    return lambda: setattr(held, "state", before)
