"""Square roots with the same bits on every processor."""

import numpy as np
import torch
from torch import Tensor


def square_root(x: Tensor) -> Tensor:
    """√x for each number. Numpy's roots are correctly rounded. Torch's come from MKL, and their last bit depends on the CPU."""
    return torch.from_numpy(np.sqrt(x.detach().cpu().numpy())).to(x.device)
