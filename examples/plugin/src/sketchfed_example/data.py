"""A data set that is computed, so that nobody has to download it."""

import torch

from sketchfed import PublicSeed
from sketchfed.data import DataSet
from sketchfed.draws import normals, uniform


def rings(*, examples: int = 1_200, noise: float = 0.15) -> DataSet:
    """Points on three rings in the plane; which ring a point is on is its class."""
    seed = PublicSeed(0)
    ring = torch.arange(examples) % 3
    angle = uniform(seed.child("angle"), (examples,), bound=torch.pi)
    radius = ring + 1 + noise * normals(seed.child("noise"), examples)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    held_out = examples // 4
    return DataSet(
        name="rings",
        x_train=points[held_out:],
        y_train=ring[held_out:],
        x_test=points[:held_out],
        y_test=ring[:held_out],
        outputs=3,
        shape=(2,),
        prepare=lambda x: x,
    )
