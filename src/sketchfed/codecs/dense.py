"""The vector as it is, in float32 or half as many bits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, count
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, tensor_named

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Dense(Codec):
    """All coordinates: what every other codec is compared with.

    float16 has 11 significant bits up to 65,504, bfloat16 has 8 over the range of float32. Rounding is to the nearest, so
    neither is unbiased in the strict sense; the error of a coordinate is at most 2⁻¹¹ or 2⁻⁸ of it.
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
        limit = torch.finfo(dtype).max
        if dtype != torch.float32 and float(x.abs().max()) > limit:
            raise InputError(f"{self.precision} holds numbers up to {limit:,.0f}, this vector has larger ones. Use 'bfloat16'.")
        return Parts({"values": x.to(dtype)}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            total += self._values(packet)
        return total / count(packets)

    def _values(self, packet: Packet) -> Tensor:
        return tensor_named(packet, "values", shape=(self.dim,), dtype=PRECISIONS[self.precision]).to(torch.float32)
