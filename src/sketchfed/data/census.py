"""Adult, the census income data, as its own columns and as LIBSVM's binary features."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.data.dataset import DataSet
from sketchfed.data.files import DataSource, Numbers, described, read_arrays, tensor
from sketchfed.data.one_hot import one_hot

ADULT_CATEGORIES = {
    "workclass": 9,
    "education": 16,
    "marital_status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native_country": 42,
}
"""How many values each categorical column of Adult has; "?" for missing is one of them."""

ADULT_NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
"""The numerical columns of Adult."""

_ADULT_ARRAYS = {
    f"{key}_{part}": numbers
    for part in ("train", "test")
    for key, numbers in {
        "x_num": Numbers(kind="i4", shape=(part, len(ADULT_NUMBERS)), high=2**31 - 1),
        "x_cat": Numbers(kind="u1", shape=(part, len(ADULT_CATEGORIES)), high=max(ADULT_CATEGORIES.values()) - 1),
        "y": Numbers(kind="i8", shape=(part,), high=1),
    }.items()
}
_A9A_ARRAYS = {
    f"{key}_{part}": numbers
    for part in ("train", "test")
    for key, numbers in {
        "x": Numbers(kind="u1", shape=(part, 123), high=1),
        "y": Numbers(kind="i8", shape=(part,), high=1),
    }.items()
}

ADULT = DataSource(
    name="adult",
    file="adult.npz",
    published="'Adult' by B. Becker and R. Kohavi, UCI Machine Learning Repository, data set 2 (adult.data and adult.test)",
    contents=f"{described(_ADULT_ARRAYS)}; the columns of x_num are {', '.join(ADULT_NUMBERS)}, those of x_cat "
    f"{', '.join(ADULT_CATEGORIES)}, as numbers of their sorted values",
)
A9A = DataSource(
    name="a9a",
    file="a9a.npz",
    published="'a9a' of the LIBSVM data sets by C.-C. Chang and C.-J. Lin (a9a and a9a.t)",
    contents=f"{described(_A9A_ARRAYS)}; y is 1 for income over 50K",
)


def adult() -> DataSet:
    """48,842 people: does their income exceed 50K? Six standardised numbers and eight one-hot categories (Kohavi 1996).

    Stored as int32, the numbers first. They are standardised with the statistics of the training part.
    """
    arrays = read_arrays(ADULT, _ADULT_ARRAYS)
    for part in ("train", "test"):
        excess = arrays[f"x_cat_{part}"].max(axis=0) >= np.array(list(ADULT_CATEGORIES.values()))
        if excess.any():
            column = list(ADULT_CATEGORIES)[int(excess.argmax())]
            raise ADULT.wrong(
                ADULT.found(), f"is not usable: x_cat_{part} has codes of {column} above {ADULT_CATEGORIES[column] - 1}"
            )
    numbers = arrays["x_num_train"].astype(np.float64)
    deviation = numbers.std(axis=0)
    prepare = _Columns(
        mean=tuple(numbers.mean(axis=0).tolist()),
        deviation=tuple(np.where(deviation > 0, deviation, 1.0).tolist()),
    )
    x = {part: np.hstack([arrays[f"x_num_{part}"], arrays[f"x_cat_{part}"].astype(np.int32)]) for part in ("train", "test")}
    return DataSet(
        name="adult",
        x_train=tensor(x["train"]),
        y_train=tensor(arrays["y_train"]),
        x_test=tensor(x["test"]),
        y_test=tensor(arrays["y_test"]),
        outputs=2,
        shape=(len(ADULT_NUMBERS) + sum(ADULT_CATEGORIES.values()),),
        prepare=prepare,
    )


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Standardises numbers and spreads out categories."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        count = len(self.mean)
        mean, deviation = torch.tensor(self.mean, device=x.device), torch.tensor(self.deviation, device=x.device)
        numbers = (x[:, :count].to(torch.float32) - mean) / deviation
        return torch.cat([numbers, one_hot(x[:, count:], list(ADULT_CATEGORIES.values()))], dim=1)


def a9a() -> DataSet:
    """Adult as 123 features that are 0 or 1, for convex logistic regression (Platt 1998; Chang and Lin 2011)."""
    tensors = {key: tensor(array) for key, array in read_arrays(A9A, _A9A_ARRAYS).items()}
    return DataSet(name="a9a", outputs=2, shape=(123,), prepare=_as_float, **tensors)  # type: ignore[arg-type]


def _as_float(x: Tensor) -> Tensor:
    return x.to(torch.float32)
