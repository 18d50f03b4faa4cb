"""The global random generators of torch, numpy and Python, seeded for a while and then put back."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from sketchfed.seeds import PublicSeed

_lock = threading.RLock()  # the generators are shared by all threads


@contextmanager
def drawing_from(seed: PublicSeed) -> Iterator[None]:
    """Code in this block draws from `seed`, whatever was drawn before it. Afterwards the generators are as they were.

    One thread at a time: what a block draws does not depend on how many threads there are.
    """
    first, *rest = (int(word) for word in seed.child("generators").words(6))
    with _lock:
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
