"""Has a kernel that several test workers need at the same time compiled by one of them, and read from disk by the others."""

import fcntl
import time
from pathlib import Path

from numba.core.caching import Cache

PATIENCE = 120.0
"""Seconds after which a worker compiles for itself: the other one may have been interrupted."""


def share(folder: Path) -> None:
    """Lock, below `folder`, what numba does not find on disk, until it is there.

    In a fresh clone nothing is compiled yet. Without this, three workers would spend a minute of CPU each on the same kernels.
    """
    load, save = Cache.load_overload, Cache.save_overload
    held = {}

    def loaded(cache, signature, target):
        found = load(cache, signature, target)
        name = cache._cache_file._index_path
        if found is not None or name in held:
            return found
        held[name] = file = (folder / name.replace("/", "-")).with_suffix(".lock").open("w")
        until = time.monotonic() + PATIENCE
        while not _locked(file) and time.monotonic() < until:
            time.sleep(0.02)
        found = load(cache, signature, target)
        if found is not None:
            held.pop(name).close()
        return found

    def saved(cache, signature, data):
        save(cache, signature, data)
        if file := held.pop(cache._cache_file._index_path, None):
            file.close()

    Cache.load_overload, Cache.save_overload = loaded, saved


def _locked(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
