"""Digests of values and of code."""

import random

import torch

from sketchfed.runs.fingerprints import fingerprint

LEVEL, SHIFT, NAMES = 3, 0.5, ("a", "b")


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
