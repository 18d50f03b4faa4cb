"""The data set that needs no file: it comes inside scikit-learn."""

import numpy as np
import torch
from torch import Tensor

from sketchfed.data.dataset import DataSet
from sketchfed.kernels import draws
from sketchfed.seeds import PublicSeed

_TEST = PublicSeed(0).child("digits").child("test")  # fixed: everybody tests on the same fifth


def digits() -> DataSet:
    """1,797 handwritten digits of 8 by 8 pixels as 64 numbers from 0 to 1; a fixed random fifth is the test set.

    Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI, 1998 (its test part), as scikit-learn carries it.
    """
    from sklearn.datasets import load_digits  # a second to import

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels).to(torch.uint8), torch.from_numpy(labels).to(torch.int64)
    test = torch.zeros(len(x), dtype=torch.bool)
    test[torch.from_numpy(draws.subset(_TEST.stream, dim=len(x), size=len(x) // 5).astype(np.int64))] = True
    return DataSet(
        name="digits",
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test],
        y_test=y[test],
        outputs=10,
        shape=(64,),
        prepare=_sixteenths,
    )


def _sixteenths(x: Tensor) -> Tensor:
    return x.to(torch.float32) / 16
