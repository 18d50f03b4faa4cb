"""Reads the inputs of a first dense layer off its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sketchfed.attacks.observation import Observation
from sketchfed.errors import InputError
from sketchfed.nn.model_sketch import bias_of
from sketchfed.sketches import Sketch, dense
from sketchfed.vectors import Layout


def first_inputs(observation: Observation) -> Tensor:
    """Recover the input of the first layer, `(inputs,)`, from a step on one example. It is exact and needs no search.

    The gradient of a dense layer W·x + b is δ·xᵀ and δ (Phong et al. 2017), so x is their quotient in every row with δ ≠ 0.
    Least squares over all rows gives Σ δᵢ·(row i)/Σ δᵢ². For a batch, the result is a mixture of inputs. If clients train
    sketched weights WS (Zhang & Wang 2021), the result is xᵀS, a sketch of the example, and `unsketched` undoes it.
    """
    if observation.map is not None:
        raise InputError(
            "the analytic attack reads single coordinates of a gradient, and this one was seen through a sketch. Use "
            "gradient matching."
        )
    layout = Layout.of(observation.module)
    weight, bias = layout.names[0], bias_of(layout.names[0])
    if len(layout.shapes[0]) != 2 or bias not in layout.names:
        raise InputError(
            f"the analytic attack needs a first dense layer with a bias, and the model begins with '{weight}' of shape "
            f"{layout.shapes[0]}{'' if bias in layout.names else ', without bias'}. Use gradient matching."
        )
    views = layout.views(observation.gradient.double())
    delta = views[bias]
    square = delta.square().sum()
    if not square > 0:
        raise InputError("the gradient of the first bias is zero: no unit of the first layer was active. Try another round.")
    return (delta @ views[weight] / square).float()


def unsketched(seen: Sequence[tuple[Tensor, Sketch]]) -> Tensor:
    """Find the shortest x, `(inputs,)`, with all of these sketches. It is exact if together they have `inputs` numbers."""
    rows = torch.cat([dense(sketch).double() for _, sketch in seen])
    values = torch.cat([sketched.double() for sketched, _ in seen])
    found: Tensor = torch.linalg.lstsq(rows, values[:, None], driver="gelsd").solution[:, 0]
    return found.float()
