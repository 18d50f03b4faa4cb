"""Normal noise on a sum of clipped vectors."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.errors import InputError
from sketchfed.kernels import clipping
from sketchfed.privacy.base import Mechanism
from sketchfed.privacy.sampling import secret_normals
from sketchfed.seeds import SecretSeed


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Mechanism):
    """Scales each row to a norm of at most `clip`, adds the rows up, and adds normal noise of standard deviation `deviation`.

    Paper: Dwork et al. 2006, "Our Data, Ourselves"; clipped sums: Abadi et al. 2016, Alg. 1. Noise is added in float64, and the
    sum is then rounded to float32. The known weakness of floating-point noise remains (`secret_normals`).

    A subclass may clip in another way, or draw the noise from another source. It is charged like this class, so it must promise
    the same: one unit adds a norm of at most `clip` to a sum, and the noise is normal with this `deviation`.
    """

    deviation: float
    """The standard deviation of the noise, in the vector's units. With 0 there is no noise and no ε."""

    name = "gaussian"
    summary = "normal noise on a sum of clipped vectors"
    source = "Dwork et al. 2006; Abadi et al. 2016"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.deviation, int | float) or not 0 <= self.deviation < math.inf:
            raise InputError(f"the deviation of noise is a number from 0 on, got {self.deviation!r}.")

    def clipped_sum(self, rows: Tensor) -> Tensor:
        """Scale each of the rows `(units, size)` to a norm of at most `clip`, and add them up: `(size,)` of float32."""
        values, total = self._checked(rows), np.zeros(self.size, np.float64)
        clipping.add_clipped(values, self._lengths(values), float(self.clip), total)
        return torch.from_numpy(total.astype(np.float32))

    def noised(self, total: Tensor, secret: SecretSeed) -> Tensor:
        """Add noise to a sum `(size,)`, in float32. Never use a secret twice."""
        if tuple(total.shape) != (self.size,):
            raise InputError(f"the mechanism was made for sums of {self.size:,} numbers, got shape {tuple(total.shape)}.")
        noise = torch.from_numpy(self.deviation * secret_normals(secret.child("noise"), self.size))
        return (total.detach().cpu().to(torch.float64) + noise).to(torch.float32)

    @property
    def multiplier(self) -> float:
        """The deviation divided by the largest contribution of one unit: the z of an accountant."""
        return self.deviation / self.clip
