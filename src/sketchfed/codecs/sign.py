"""One bit a coordinate: its sign."""

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
    """The sign of each number and one scale for all, the mean of their magnitudes: (‖x‖₁/dim)·sign(x). Zero counts as positive.

    Paper: Karimireddy et al. 2019, Alg. 1. Biased: small numbers arrive as large as all others. Less is lost than was sent,
    ‖C(x) − x‖² = ‖x‖² − ‖x‖₁²/dim, so with error feedback it gets across in the end; without, it need not.
    The mean is that of the scaled signs, not their majority.
    """

    name = "sign"
    summary = "signs, and the mean magnitude"
    source = "Karimireddy et al. 2019"
    unbiased = False

    @property
    def shrinkage(self) -> float:
        """It undoes the factor dim/size: signs of the coordinates that were drawn, and nothing for the others, lose less."""
        return 1 / self.gain

    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        negative = bits_named(packet, "values", shape=(self.sent,), bits=1).numpy()
        scale = np.float32(number_named(packet, "scale", least=0.0, most=LARGEST))
        return np.where(negative, -scale, scale)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        numbers = self._drawn(x, seed, client)
        scale = float(np.abs(numbers).mean(dtype=np.float64))
        return Parts({"values": Bits(torch.from_numpy(numbers < 0), bits=1)}, {"scale": scale})
