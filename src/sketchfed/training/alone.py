"""The gradient of each example by itself."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as trees

from sketchfed.training.base import ClientData, Examples
from sketchfed.training.items import Ready
from sketchfed.training.objective import Objective, loss_at
from sketchfed.vectors import Layout

if (quiet := getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled", None)) is not None:
    quiet(False)  # layers such as attention are then computed one example at a time, which is slower and just as right


def each_gradient(module: nn.Module, objective: Objective, weights: Tensor, examples: ClientData) -> Tensor:
    """The gradient of each example's own loss, `(n, dim)`. An example's loss is that of a batch which holds nothing else.

    `torch.func.vmap` computes examples of one shape together. The module must treat each example separately.
    """
    _refuse_mixing(module)
    layout = Layout.of(module)
    if isinstance(examples, Examples):
        if not examples.size:
            return weights.new_zeros(0, layout.dim)

        def loss_of(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return loss_at(module, objective, layout, flat, Examples(x[None], y[None]))

        gradient = torch.func.grad(loss_of)
        try:
            return torch.func.vmap(gradient, in_dims=(None, 0, 0))(weights, examples.x, examples.y).detach()  # type: ignore[no-any-return]
        except RuntimeError:  # a layer without a rule for many examples, such as a GRU
            return torch.stack([gradient(weights, x, y).detach() for x, y in zip(examples.x, examples.y, strict=True)])
    rows = weights.new_zeros(examples.size, layout.dim)
    for places, batches in _alike(examples):
        rows[places] = _together(module, objective, layout, weights, batches)
    return rows


def _alike(examples: ClientData) -> list[tuple[list[int], list[Any]]]:
    """Examples as batches of one, in groups whose tensors have the same shapes."""
    groups: dict[Any, tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
    for place in range(examples.size):
        content = examples.part(place, place + 1).content()
        leaves, form = trees.tree_flatten(content)
        shapes = tuple((tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else None for leaf in leaves)
        key = (str(form), shapes) if None not in shapes else place  # what holds more than tensors is computed alone
        groups[key][0].append(place)
        groups[key][1].append(content)
    return list(groups.values())


def _together(module: nn.Module, objective: Objective, layout: Layout, weights: Tensor, batches: list[Any]) -> Tensor:
    _, form = trees.tree_flatten(batches[0])

    def loss_of(flat: Tensor, leaves: tuple[Any, ...]) -> Tensor:
        return loss_at(module, objective, layout, flat, Ready(trees.tree_unflatten(leaves, form)))

    columns = list(zip(*(trees.tree_flatten(batch)[0] for batch in batches), strict=True))
    gradient = torch.func.grad(loss_of)
    if len(batches) == 1 or not all(isinstance(leaf, Tensor) for column in columns for leaf in column):
        return _one_by_one(gradient, weights, batches)
    stacked = tuple(torch.stack(column) for column in columns)
    try:
        return torch.func.vmap(gradient, in_dims=(None, 0))(weights, stacked).detach()  # type: ignore[no-any-return]
    except RuntimeError:  # a loss that looks at values, or a layer without a rule for many examples, such as a GRU
        return _one_by_one(gradient, weights, batches)


def _refuse_mixing(module: nn.Module) -> None:
    """Raise an error for layers whose forward pass writes what other examples read."""
    for name, layer in module.named_modules():
        what = f"layer '{name}' ({type(layer).__name__})"
        if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats:
            raise RuntimeError(f"{what} keeps running statistics, which are of many examples")
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise RuntimeError(f"{what} has max_norm, which rescales the weights of the words in a batch besides all gradients")


def _one_by_one(gradient: Callable[..., Tensor], weights: Tensor, batches: list[Any]) -> Tensor:
    return torch.stack([gradient(weights, tuple(trees.tree_flatten(batch)[0])).detach() for batch in batches])
