"""One bit per coordinate: its sign."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchfed.codecs.quantiser import LARGEST, Floats, Quantiser
from sketchfed.codecs.rounding import Parts
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Bits, Packet, bits_named, number_named


@dataclass(frozen=True, kw_only=True)
class Sign(Quantiser):
    """Sends the sign of each number and one common scale, the mean magnitude: (‖x‖₁/dim)·sign(x). Zero counts as positive.

    Paper: Karimireddy et al. 2019, Alg. 1. Biased: small numbers arrive as large as all others. The error is smaller than the
    vector, ‖C(x) − x‖² = ‖x‖² − ‖x‖₁²/dim, so with error feedback everything arrives eventually. Without error feedback it
    may not. The decoded mean is the mean of the scaled signs, not a majority vote.
    """

    blind = True
    name = "sign"
    summary = "signs, and the mean magnitude"
    source = "Karimireddy et al. 2019"
    unbiased = False

    @property
    def shrinkage(self) -> float:
        """size/dim: without the factor dim/size, the decoded vector is closer to the original."""
        return 1 / self.gain

    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        negative = bits_named(packet, "values", shape=(self.sent,), bits=1).numpy()
        scale = np.float32(number_named(packet, "scale", least=0.0, most=LARGEST))
        return np.where(negative, -scale, scale)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        numbers = self._drawn(x, seed, client)
        scale = float(np.abs(numbers).mean(dtype=np.float64))
        return Parts({"values": Bits(torch.from_numpy(numbers < 0), bits=1)}, {"scale": scale})
