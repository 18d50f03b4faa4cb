"""UJIIndoorLoc: where in three university buildings a phone is, from the Wi-Fi it hears."""

import numpy as np
import torch
from torch import Tensor

from sketchfed.data.dataset import DataSet
from sketchfed.data.files import AnyArray, DataSource, Numbers, described, read_arrays, tensor
from sketchfed.errors import UnknownNameError

NOT_HEARD = 100
WEAKEST = -104
FLOORS = 5
TARGETS = ("floor", "position")
OWNERS = ("user", "phone")

_ARRAYS = {
    f"{key}_{part}": numbers
    for part in ("train", "test")
    for key, numbers in {
        "x": Numbers(kind="i1", shape=(part, 520), low=WEAKEST, high=NOT_HEARD),
        "longitude": Numbers(kind="f8", shape=(part,)),
        "latitude": Numbers(kind="f8", shape=(part,)),
        "building": Numbers(kind="i8", shape=(part,), high=2),
        "floor": Numbers(kind="i8", shape=(part,), high=FLOORS - 1),
        "user": Numbers(kind="i8", shape=(part,), high=18),
        "phone": Numbers(kind="i8", shape=(part,), high=24),
    }.items()
    if part == "train" or key not in OWNERS
}

SOURCE = DataSource(
    name="ujiindoorloc",
    file="ujiindoorloc.npz",
    published="'UJIIndoorLoc' by J. Torres-Sospedra and others, UCI Machine Learning Repository, data set 310 "
    "(trainingData.csv, and validationData.csv as the test part)",
    contents=f"{described(_ARRAYS)}; x is in dBm, with 100 for an access point that was not heard",
)


def ujiindoorloc(*, target: str = "floor", by: str = "user") -> DataSet:
    """21,048 Wi-Fi fingerprints of 520 access points; those for training are by 18 users with 16 phones.

    Torres-Sospedra et al., "UJIIndoorLoc: a new multi-building and multi-floor database for WLAN fingerprint-based indoor
    localization problems", IPIN 2014.

    `target` is "floor", the class 5·building + floor, or "position", a regression of longitude and latitude, each
    standardised by the training part. `by` says who owns an example, its "user" or its "phone". Signals go from 0, as
    for access points that were not heard, to 1.
    """
    if target not in TARGETS:
        raise UnknownNameError("target of 'ujiindoorloc'", target, TARGETS)
    if by not in OWNERS:
        raise UnknownNameError("owner of 'ujiindoorloc'", by, OWNERS)
    arrays = read_arrays(SOURCE, _ARRAYS)
    for key in ("x_train", "x_test"):
        if ((arrays[key] > 0) & (arrays[key] != NOT_HEARD)).any():
            raise SOURCE.wrong(SOURCE.found(), f"is not usable: {key} has signals above 0 dBm that are not {NOT_HEARD}")
    classes = target == "floor"
    y_train, y_test = _floors(arrays) if classes else _positions(arrays)
    return DataSet(
        name="ujiindoorloc",
        x_train=tensor(arrays["x_train"]),
        y_train=tensor(y_train),
        x_test=tensor(arrays["x_test"]),
        y_test=tensor(y_test),
        task="classification" if classes else "regression",
        outputs=3 * FLOORS if classes else 2,
        shape=(520,),
        groups=tensor(np.unique(arrays[f"{by}_train"], return_inverse=True)[1].astype(np.int64)),
        prepare=_signals,
    )


def _floors(arrays: dict[str, AnyArray]) -> tuple[AnyArray, AnyArray]:
    train, test = (FLOORS * arrays[f"building_{part}"] + arrays[f"floor_{part}"] for part in ("train", "test"))
    return train, test


def _positions(arrays: dict[str, AnyArray]) -> tuple[AnyArray, AnyArray]:
    train, test = (np.stack([arrays[f"longitude_{part}"], arrays[f"latitude_{part}"]], axis=1) for part in ("train", "test"))
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    deviation[deviation == 0] = 1
    return ((train - mean) / deviation).astype(np.float32), ((test - mean) / deviation).astype(np.float32)


def _signals(x: Tensor) -> Tensor:
    return torch.where(x == NOT_HEARD, 0.0, (x.to(torch.float32) - WEAKEST) / -WEAKEST)
