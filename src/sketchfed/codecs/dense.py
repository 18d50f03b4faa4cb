"""The vector as it is, in float32 or half as many bits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, count
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, tensor_named

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Dense(Codec):
    """All coordinates: what every other codec is compared with.

    float16 has 11 significant bits from 6e-5 to 65,504 and a grid of 6e-8 below, bfloat16 has 8 over the range of float32.
    Rounding is to the nearest: unbiased only as far as that goes, with an error of at most 2⁻¹² or 2⁻⁹ of a coordinate.
    """

    precision: str = "float32"

    name = "dense"
    summary = "all coordinates"
    source = "—"
    unbiased = True
    personal = False
    spreads = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)

    @property
    def additive(self) -> bool:
        """Sums of halves would be rounded again, and may overflow."""
        return self.precision == "float32"

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        return 0.0 if self.precision == "float32" else None

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        return float(self._values(expect_kind(packet, self.name)).norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        dtype = PRECISIONS[self.precision]
        sent = x.to(dtype)
        if dtype != torch.float32 and all_finite(x.contiguous()) and not bool(sent.isfinite().all()):
            limit = torch.finfo(dtype).max
            raise InputError(f"{self.precision} holds numbers up to {limit:.3g}, this vector has larger ones. Use 'float32'.")
        return Parts({"values": sent}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            total += self._values(packet)
        return total / count(packets)

    def _values(self, packet: Packet) -> Tensor:
        return tensor_named(packet, "values", shape=(self.dim,), dtype=PRECISIONS[self.precision]).to(torch.float32)
