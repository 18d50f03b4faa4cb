"""What the parties of a run hold between rounds."""

from dataclasses import replace

import pytest
import torch

from sketchfed.algorithms import Dome, Replica, SubspaceSettings
from sketchfed.algorithms.replicas import from_tensors
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


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


def with_a_subspace() -> Replica:
    algorithm = Dome(rounds=5, subspace=SubspaceSettings(size=4)).resolved(12)
    update = Packet(kind="sensed", arrays={"values": torch.arange(4.0)}, scalars={"noise": 0.1}, clients=3)
    return algorithm.follow(algorithm.begin(torch.zeros(12)).replica, update, PublicSeed(1))


@pytest.mark.parametrize("made", [replica, with_a_subspace])
def test_a_replica_that_was_saved_and_read_has_the_same_digest(made):
    assert from_tensors(made().to_tensors(), round=made().round).digest == made().digest


def test_replicas_with_different_subspaces_have_different_digests():
    made = with_a_subspace()
    tensors = made.to_tensors()
    assert any(name.startswith("subspace.") for name in tensors)
    for name in (name for name, tensor in tensors.items() if tensor.numel()):
        changed = {other: tensor.clone() for other, tensor in tensors.items()}
        changed[name].view(-1)[0] += 1
        assert from_tensors(changed, round=made.round).digest != made.digest, name
