"""Codes as vectors of zeros and ones."""

from collections.abc import Sequence

import torch
from torch import Tensor


def one_hot(codes: Tensor, sizes: Sequence[int]) -> Tensor:
    """Integer codes `(rows, columns)`, those of column k below `sizes[k]`, as float32 `(rows, sum(sizes))`.

    >>> one_hot(torch.tensor([[1, 0], [0, 2]]), [2, 3])
    tensor([[0., 1., 1., 0., 0.],
            [1., 0., 0., 0., 1.]])
    """
    widths = torch.tensor(sizes, device=codes.device)
    places = codes.to(torch.int64) + (widths.cumsum(0) - widths)
    return torch.zeros(len(codes), sum(sizes), device=codes.device).scatter_(1, places, 1.0)
