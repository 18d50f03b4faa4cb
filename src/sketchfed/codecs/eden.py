"""A random rotation, followed by rounding to the optimal levels for normal numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sketchfed.codecs import lloyd_max
from sketchfed.codecs.base import check_correlation, sender
from sketchfed.codecs.quantiser import Floats, Quantiser, check_bits, scales_named, to_bits, to_codes, to_numbers
from sketchfed.codecs.rotation import Rotation
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import UnknownNameError
from sketchfed.kernels import levels
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, bits_named

SCALES = ("unbiased", "smallest")


@dataclass(frozen=True, kw_only=True)
class Eden(Quantiser):
    """Rounds each number of the rotated vector Rx to the nearest of 2^bits Lloyd–Max levels. Each client has its own R.

    Paper: Vargaftik et al. 2022; Vargaftik et al. 2021 (DRIVE) for one bit. The rotation makes the numbers look normal. Let q
    be the levels of Rx·√dim/‖x‖. The decoder computes Rᵀq times a scale that the packet contains. The scale ‖x‖²/⟨Rx, q⟩ makes
    the estimate unbiased. `scale = "smallest"`, ⟨Rx, q⟩/‖q‖², minimises the error of a single vector but makes the estimate too
    short. The estimate is exactly unbiased for uniformly random rotations. For the fast rotations of `Rotation` it is nearly
    so, because the rotated numbers are nearly normal. For less than one bit per coordinate, only `size` of the rotated
    coordinates are sent. Departure from the paper: each piece of the rotation has its own scale.
    """

    bits: int = 1
    scale: str = "unbiased"

    name = "eden"
    summary = "a random rotation, rounded to the levels that suit normal numbers"
    source = "Vargaftik et al. 2022"
    personal = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self, self.bits, least=1, most=8)
        if self.scale not in SCALES:
            raise UnknownNameError("scale", self.scale, SCALES)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.scale == "unbiased"

    @property
    def gain(self) -> float:
        """The factor for coordinates that are not sent. It is 1 with `scale = "smallest"`, which minimises the error."""
        return self.dim / self.sent if self.unbiased else 1.0

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """The limit for long vectors: (dim/size/(1 − D) − 1)·Σ‖xᵢ‖²/n², where D is the distortion of normal numbers.

        For dim normal numbers z, both ⟨z, q⟩ and ‖q‖² tend to dim·(1 − D). The scale ‖x‖²/⟨Rx, q⟩ therefore gives a vector with
        square norm ‖x‖²/(1 − D) whose product with x is ‖x‖². Sending one coordinate in dim/size, multiplied by dim/size,
        multiplies that square norm by dim/size. For one bit, 1/(1 − D) is π/2. With the smallest error, the square norm and
        the product are both c‖x‖² for c = (1 − D)·size/dim. This gives a variance of (c − c²)‖x‖², and a bias of 1 − c that all
        clients share.
        """
        clients = self._planned()
        check_correlation(correlation, clients)
        kept = self._kept
        if self.unbiased:
            return (1 / kept - 1) * total_square / clients**2
        return (kept - kept**2 + (1 - kept) ** 2 * (1 + correlation)) * total_square / clients**2

    @property
    def _kept(self) -> float:
        """(1 − D)·size/dim: the share of ‖x‖² that the levels capture."""
        return (1 - lloyd_max.distortion(self.bits)) * self.sent / self.dim

    def _rotation(self, seed: PublicSeed, client: int) -> Rotation:
        return Rotation(dim=self.dim, seed=seed.child("client", client).child("rotation"))

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        rotation, rows = self._rotation(seed, client), self._rows(seed, client)
        rotated = rotation.apply(to_numbers(x))
        codes = to_codes(self.dim, self.bits)
        scales = np.zeros(len(rotation.edges) - 1)
        thresholds, centroids = (
            table.astype(np.float32) for table in (lloyd_max.thresholds(self.bits), lloyd_max.centroids(self.bits))
        )
        for number, (start, stop) in enumerate(pairwise(rotation.edges)):
            square, product, size = levels.nearest(rotated[start:stop], thresholds, centroids, codes[start:stop])
            if square > 0:
                scales[number] = square / product if self.unbiased else product / size
        sent = codes if rows is None else codes[rows]
        return Parts({"scales": torch.from_numpy(scales.astype(np.float32)), "values": to_bits(sent, self.bits)}, {})

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        total = np.zeros(self.dim, np.float32)
        for packet in packets:
            client, rotated = sender(packet), np.zeros(self.dim, np.float32)
            rows = self._rows(seed, client)
            rotated[slice(None) if rows is None else rows] = self._read(packet, seed)
            total += self._rotation(seed, client).inverse(rotated)
        return torch.from_numpy(total * np.float32(self.gain / len(packets)))

    def _read(self, packet: Packet, seed: PublicSeed) -> Floats:
        client = sender(packet)
        edges, rows = self._rotation(seed, client).edges, self._rows(seed, client)
        counts = np.diff(edges if rows is None else np.searchsorted(rows, edges))
        scales = np.repeat(scales_named(packet, "scales", len(counts)), counts)
        codes = bits_named(packet, "values", shape=(self.sent,), bits=self.bits).numpy()
        values: Floats = lloyd_max.centroids(self.bits).astype(np.float32)[codes]
        return scales * values
