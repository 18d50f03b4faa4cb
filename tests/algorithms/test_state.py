"""What the parties of a run hold between rounds."""

from dataclasses import replace

import pytest
import torch

from sketchfed.algorithms import Replica
from sketchfed.algorithms.replicas import from_tensors


def replica() -> Replica:
    moments = {"mean": torch.zeros(6), "square": torch.ones(6)}
    return Replica(round=3, weights=torch.arange(6.0), velocity=torch.ones(6), moments=moments)


@pytest.mark.parametrize(
    "changed",
    [
        {"round": 4},
        {"weights": torch.arange(6.0).nextafter(torch.tensor(9.0))},
        {"velocity": None},
        {"velocity": None, "prediction": torch.ones(6)},
        {"moments": {"mean": torch.ones(6), "square": torch.zeros(6)}},
        {"weights": torch.arange(6.0).double()},
    ],
    ids=["round", "weights", "no velocity", "other name", "swapped", "type"],
)
def test_replicas_that_differ_in_anything_have_different_digests(changed):
    assert replace(replica(), **changed).digest != replica().digest


def test_a_replica_that_was_saved_and_read_has_the_same_digest():
    assert from_tensors(replica().to_tensors(), round=3).digest == replica().digest
