"""Digests of values and of code."""

import collections
import datetime
import os
import pathlib
import random
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sketchfed.runs.fingerprints import Doubts, fingerprint

LEVEL, SHIFT, NAMES = 3, 0.5, ("a", "b")
stop = 1


class Pieces:
    """Data of one's own: several functions that refer to values of their module."""

    def __init__(self, seed: int) -> None:
        self.values = torch.full((LEVEL,), seed + SHIFT)

    def __len__(self):
        return LEVEL

    def __getitem__(self, place):
        return dict.fromkeys(NAMES, self.values[place])


def test_a_digest_does_not_depend_on_where_python_places_its_objects():
    draw, found = random.Random(0), set()
    for _ in range(1_000):
        scattered = [[[] for _ in range(draw.randrange(5))] for _ in range(draw.randrange(40))]
        del scattered[::2]
        found.add(fingerprint(Pieces(1)))
    assert len(found) == 1


def test_a_digest_ends_on_values_that_hold_themselves_and_tells_others_apart():
    ring: list = [1, 2]
    ring.append(ring)
    assert fingerprint(ring) != fingerprint([1, 2])
    assert fingerprint([Pieces(1), Pieces(2)]) != fingerprint([Pieces(1), Pieces(1)])


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Reduced:
    """An object that says itself what it holds."""

    def __init__(self, value):
        self.value, self.handle = value, threading.Lock()

    def __getstate__(self):
        return {"value": self.value}


def recorded(value):
    array = np.zeros(2, dtype=[("text", object), ("number", np.int64)])
    array["text"] = value
    return array


VALUES = {
    "np.int64": np.int64,
    "np.float32": np.float32,
    "np.datetime64": lambda value: np.datetime64(value, "D"),
    "a path": lambda value: pathlib.Path(str(value)),
    "a bytearray": lambda value: bytearray([value]),
    "a memoryview": lambda value: memoryview(bytes([value])),
    "a deque": lambda value: collections.deque([value]),
    "a range": range,
    "a date": lambda value: datetime.date(2020, 1, value),
    "an image": lambda value: pytest.importorskip("PIL.Image").new("L", (4, 4), value),
    "an array of texts": lambda value: np.array([f"word {value}", None], dtype=object),
    "an array of records": recorded,
    "a sparse tensor": lambda value: torch.eye(3).mul(value).to_sparse(),
    "slots": Slotted,
    "a pattern": lambda value: re.compile(f"word {value}"),
    "what an object says of itself": Reduced,
    "a set of tuples": lambda value: {(value, frozenset({"a"}))},
    "lists in lists": lambda value: [[1], 2] if value == 1 else [[1, 2]],
}


@pytest.mark.parametrize("kind", VALUES)
def test_equal_values_have_equal_digests_and_others_have_others(kind):
    made, doubts = VALUES[kind], Doubts()
    assert fingerprint([made(1)], doubts) == fingerprint([made(1)], doubts) != fingerprint([made(2)], doubts)
    assert not doubts


IN_A_PROCESS_OF_ITS_OWN = """
import numpy as np
from sketchfed.runs.fingerprints import fingerprint

class Tag:
    pass

scattered = [[] for _ in range(int(__import__("sys").argv[1]))]
print(fingerprint([
    np.array([f"word {i}" for i in range(9)], dtype=object),
    {("word", frozenset({"a", "b", "c", "d"}))},
    {Tag() for _ in range(3)},
    frozenset({"a", "b", "c"}),
]))
"""


def test_a_digest_is_the_same_in_another_process():
    """Neither addresses nor the order in which Python keeps sets matter."""
    found = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, seed * 3]
        found.add(subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout)
    assert len(found) == 1


def test_what_cannot_be_compared_is_said_to_be_so(caplog):
    first, other = ((number for number in range(count)) for count in (1, 2))
    assert fingerprint([first]) == fingerprint([other])
    assert "of type builtins.generator" in caplog.text
    assert "cannot be compared" in caplog.text


def test_locks_and_the_states_of_generators_do_not_count(caplog):
    first, later = ([threading.Lock(), torch.Generator(), np.random.default_rng(0), random.Random(0)] for _ in range(2))
    later[1].manual_seed(7)
    later[2].random()
    later[3].random()
    assert fingerprint(first) == fingerprint(later)
    assert not caplog.text


class Memo(Dataset):
    """A Dataset that remembers what it has read, opens files late, and counts."""

    def __init__(self, values):
        self.values, self.memo, self.more = values, {}, {}
        self.file, self.count = None, 0

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        self.count += 1
        if self.file is None:
            self.file = (line for line in ())
        if index not in self.memo:
            self.memo[index] = self.values[index]
        return self._more(index)

    def _more(self, index):
        memo = self.more
        return memo.setdefault(index, self.memo[index])


class InPlace(Memo):
    """A Dataset that converts what it holds when it is read first."""

    def __getitem__(self, index):
        self.values[index] = int(self.values[index])
        return self.values[index]


@pytest.mark.parametrize("made", [Memo, lambda values: DataLoader(Memo(values), batch_size=2)], ids=["Dataset", "loader"])
def test_what_a_dataset_remembers_of_reading_does_not_count(made):
    data, other = made([1, 2, 3]), made([1, 2, 4])
    before = fingerprint(data)
    assert before == fingerprint(data)
    for source in (data, getattr(data, "dataset", data)):
        for _ in range(len(source)):
            next(iter(source))
    assert before == fingerprint(data) != fingerprint(other)


def test_examples_that_are_converted_in_place_are_read_and_compared():
    data = InPlace(["1", "2"])
    before = fingerprint(data)
    assert data[0] == 1
    assert before == fingerprint(data) != fingerprint(InPlace(["1", "3"]))
    assert data.values == [1, "2"], "a digest changes nothing"


class Stopped:
    def __init__(self):
        self.stop = 0


def test_an_attribute_is_not_the_global_value_of_the_same_name(monkeypatch):
    before = fingerprint(Stopped)
    monkeypatch.setattr(sys.modules[__name__], "stop", 2)
    assert fingerprint(Stopped) == before
