"""Pairs of inputs and targets that clients hold in any form, for a loss of outputs and targets.

Pairs of tensors with one class or some numbers for each example become one data set, for which there are fast kernels.
Everything else is read batch by batch: lists, loaders, classes for each position, several labels, and inputs that must stay
integers.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sketchfed.data.generators import drawing_from
from sketchfed.data.reading import FIRST
from sketchfed.errors import UnknownNameError
from sketchfed.training import Collate, Loss, OfPairs, examples_in
from sketchfed.training.positions import dims_of_classes

_TRIED = 5  # number of clients whose batches are looked at
TASKS = ("classification", "regression", "labels")


def task_of(loss: Loss | str | None, task: str) -> str:
    """What the targets are: one class, numbers, or several labels, which a loss alone can say."""
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    return "labels" if loss == "binary_cross_entropy" and task == "classification" else task


def as_tensors(data: Any) -> Any:
    """A pair of numpy arrays as a pair of tensors, and everything else as it is."""
    arrays = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in data)
    if not arrays or not any(isinstance(part, np.ndarray) and part.dtype.kind in "biufc" for part in data):
        return data
    return tuple(_as_tensor(part) if isinstance(part, np.ndarray) else part for part in data)


def _as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.as_tensor(array.astype(np.float32) if array.dtype == np.float64 else array)


def is_plain(data: Any, task: str) -> bool:
    """Whether this can be part of a data set: a pair of tensors or a map-style Dataset, with one target for each example.

    What can be nothing at all counts as plain too, so that it is refused in the usual words.
    """
    if isinstance(data, Dataset):
        return not isinstance(data, IterableDataset) and _one_target(_first(data), task)
    if isinstance(data, DataLoader | dict):
        return False
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        x, y = data
        return not y.ndim or len(x) != len(y) or not len(y) or _one_target(y[0], task)
    return not isinstance(data, list) or not data or not isinstance(data[0], tuple | list | dict)


def _first(dataset: Dataset[Any]) -> Any:
    """The target of the first example. None if it cannot be read, which is the business of the rounds."""
    try:
        with drawing_from(FIRST, dataset):
            return dataset[0][1]
    except Exception:  # of the Dataset's own
        return None


def _one_target(target: Any, task: str) -> bool:
    if task == "labels":
        return False
    return task == "regression" or not isinstance(target, Tensor | np.ndarray) or not target.ndim or _floats(target)


def _floats(target: Any) -> bool:
    """Floats for classes are refused in the usual words."""
    return bool(torch.as_tensor(target).is_floating_point())


def keeps_integers(module: nn.Module, data: Any) -> bool:
    """Whether a model takes integers as inputs, and not the same numbers as floats, as an embedding does."""
    pair = isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor)
    if not pair or not data[0].ndim or not len(data[0]):
        return False
    x = data[0][:2]
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        return False
    return not _takes(module, x.to(torch.float32)) and _takes(module, x)


def objective_for(module: nn.Module, clients: Sequence[Any], collate: Collate | None, loss: str | Loss, task: str) -> OfPairs:
    """The loss of pairs in any form, after a look at some batches of the first clients.

    Integers become floats if the model takes nothing else. If there are classes for each position, the look says in which
    dimension of the outputs they are. The model says so in each batch, unless there are as many positions as classes.
    """
    objective = OfPairs(loss, task)
    for client, data in enumerate(clients[:_TRIED]):
        for size in (2, 1, 7):
            try:
                inputs, targets = objective.pair(examples_in(data, collate, owner=f"client {client}").part(0, size))
            except Exception:  # the trial before round 1 reports it
                break
            if isinstance(inputs, Tensor) and not inputs.is_floating_point() and not _takes(module, inputs):
                objective = replace(objective, floats=_takes(module, inputs.to(torch.float32)))
                inputs, targets = objective.pair(examples_in(data, collate, owner=f"client {client}").part(0, size))
            if task != "classification" or targets.ndim < 2:
                return objective
            outputs = _outputs(module, inputs)
            known = None if outputs is None else dims_of_classes(outputs, targets)
            if known is None:  # the trial reports this too
                return objective
            if len(known) == 1:
                return replace(objective, dim=known[0])
    return objective


def _outputs(module: nn.Module, inputs: Any) -> Tensor | None:
    try:
        with torch.no_grad(), drawing_from(FIRST):
            found = deepcopy(module).eval()(inputs)
    except Exception:  # of the model's own
        return None
    return found if isinstance(found, Tensor) else None


def _takes(module: nn.Module, x: Tensor) -> bool:
    """Whether the model has outputs for these inputs."""
    return _outputs(module, x) is not None
