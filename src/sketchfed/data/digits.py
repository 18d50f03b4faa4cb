"""The data set that needs no file: it comes inside scikit-learn."""

import numpy as np
import torch
from torch import Tensor

from sketchfed.caches import cached
from sketchfed.data.dataset import DataSet
from sketchfed.kernels import draws
from sketchfed.seeds import PublicSeed

_TEST = PublicSeed(0).child("digits").child("test")  # fixed: everybody tests on the same fifth


def digits() -> DataSet:
    """1,797 handwritten digits of 8 by 8 pixels as 64 numbers from 0 to 1; a fixed random fifth is the test set.

    Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI, 1998 (its test part), as scikit-learn carries it.
    """
    x, y = _stored()
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


@cached(maxsize=1)
def _stored() -> tuple[Tensor, Tensor]:
    """All pixels and labels. Scikit-learn parses a text file for them, which takes longer than some runs."""
    from sklearn.datasets import load_digits  # a second to import

    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).to(torch.uint8), torch.from_numpy(labels).to(torch.int64)


def _sixteenths(x: Tensor) -> Tensor:
    return x.to(torch.float32) / 16
