"""All coordinates of a vector, in float32 or a 16-bit format."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, count
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.kernels.finite import all_finite
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, tensor_named

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Dense(Codec):
    """Sends all coordinates. This is the baseline for every other codec.

    float16 has 11 significant bits from 6e-5 to 65,504 and a grid of 6e-8 below that. bfloat16 has 8 significant bits over the
    range of float32. Numbers are rounded to the nearest, so 16-bit formats are only approximately unbiased: the error is at
    most 2⁻¹² (float16) or 2⁻⁹ (bfloat16) of a coordinate.
    """

    precision: str = "float32"

    name = "dense"
    anywhere = True
    summary = "all coordinates"
    source = "—"
    unbiased = True
    personal = False
    spreads = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        """The identity map. Sums of 16-bit numbers would be rounded again and may overflow, so they are not exact."""
        if self.precision == "float32":
            return LinearCode(kind=self.name, shape=(self.dim,), map=None)
        return LinearCode(kind=self.name, shape=(self.dim,), map=None, exact=False, reader=self._values)

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        return 0.0 if self.precision == "float32" else None

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        return float(self._values(expect_kind(packet, self.name)).norm())

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        dtype = PRECISIONS[self.precision]
        sent = x.to(dtype)
        if dtype != torch.float32 and all_finite(x.contiguous()) and not bool(sent.isfinite().all()):
            limit = torch.finfo(dtype).max
            raise InputError(
                f"{self.precision} holds numbers up to {limit:.3g}, but this vector has larger ones. Use 'float32'."
            )
        return Parts({"values": sent}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = torch.zeros(self.dim)
        for packet in packets:
            total += self._values(packet)
        return total / count(packets)

    def _values(self, packet: Packet) -> Tensor:
        return tensor_named(packet, "values", shape=(self.dim,), dtype=PRECISIONS[self.precision]).to(torch.float32)
