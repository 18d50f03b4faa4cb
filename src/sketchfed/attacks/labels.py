"""Labels from the gradient of the last layer."""

import torch
from torch import Tensor

from sketchfed.attacks.observation import Observed
from sketchfed.errors import InputError
from sketchfed.vectors import Layout


def inferred(observation: Observed, *, count: int) -> Tensor:
    """Infer the labels of `count` examples, `(count,)`, in no particular order, from one step with softmax and cross-entropy.

    For one example, the gradient of the last bias is p − e_y, which is negative in y alone (Zhao, Mopuri & Bilen 2020, "iDLG").
    Over a batch, each example of a class lowers it by 1/count. So the class with the lowest value is taken, its share is added
    back, and this is repeated. If the last layer has no bias, sums over the rows of its weight take its place: its inputs come
    from a ReLU and are not negative. If the gradient was seen through a sketch, it is only an estimate, and so are the labels.
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
