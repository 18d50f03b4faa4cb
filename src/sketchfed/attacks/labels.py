"""Labels from the gradient of the last layer."""

import torch
from torch import Tensor

from sketchfed.attacks.observation import Observed
from sketchfed.errors import InputError
from sketchfed.vectors import Layout


def inferred(observation: Observed, *, count: int) -> Tensor:
    """The labels of `count` examples, `(count,)`, in no particular order, from one step with softmax and cross-entropy.

    For one example the gradient of the last bias is p − e_y, negative in y alone (Zhao, Mopuri & Bilen 2020, "iDLG"). Over a
    batch it is lower by 1/count for every example of a class: the lowest class is taken, what it explains is given back, and
    so on. Where the last layer has no bias, sums over the rows of its weight serve, for inputs behind a ReLU are not negative.
    A gradient that was seen through a sketch is only estimated, and so are its labels.
    """
    layout = Layout.of(observation.module)
    name, shape = layout.names[-1], layout.shapes[-1]
    if len(shape) > 2:
        raise InputError(
            f"labels are inferred from a last dense layer, and the last parameter '{name}' has shape {shape}. Give the labels, "
            'or search for them: labels = "searched".'
        )
    last = layout.views(observation.gradient)[name]
    rows = last.clone() if len(shape) == 1 else last.sum(1)
    explained = 1 / count if len(shape) == 1 else float(rows.clamp(max=0).sum()) / -count
    found = []
    for _ in range(count):
        found.append(int(rows.argmin()))
        rows[found[-1]] += explained
    return torch.tensor(found)
