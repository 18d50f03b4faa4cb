"""From a data set and its clients to a convex problem with known constants."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sketchfed.data import DataSet
from sketchfed.errors import InputError
from sketchfed.planner.regression import LinearRegression, LogisticRegression, Regression


def regression_on(data: DataSet, clients: Sequence[Tensor], *, regularisation: float = 0.0) -> Regression:
    """Logistic regression on a data set of two classes, or linear regression on one with one number to predict.

    `clients` says which training examples each client has, as `sketchfed.data.partition` does.

    >>> from sketchfed.data import from_clients
    >>> examples = torch.eye(2), torch.tensor([0, 1])
    >>> data, clients = from_clients([examples, examples], test=examples)
    >>> regression_on(data, clients, regularisation=0.5).measure().smoothness
    0.625
    """
    if (data.task, data.outputs) not in (("classification", 2), ("regression", 1)):
        raise InputError(
            f"data set '{data.name}' is a {data.task} with {data.outputs} outputs; constants are measured for two classes or "
            "for one number to predict. Use a data set such as 'a9a' or 'adult', or give the constants yourself."
        )
    features = [data.prepare(data.x_train[part]).to(torch.float64).flatten(1) for part in clients]
    labels = [data.y_train[part].flatten() for part in clients]
    family = LogisticRegression if data.task == "classification" else LinearRegression
    return family(features=features, labels=labels, regularisation=regularisation)
