"""The common part of Rand-k-Spatial and Rand-Proj-Spatial: the correlation between clients that the decoder assumes."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_correlation, sender
from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind

CORRELATIONS = ("none", "avg", "max", "estimated", "current")

_MOST_ESTIMATED = 0.98  # an estimate is uncertain, and at ρ = 1 the decoder is very sensitive to a wrong assumption


@dataclass(frozen=True, kw_only=True)
class Spatial(Codec):
    """Each client sends yᵢ = Gᵢxᵢ with its own map, and the server decodes all packets jointly. Similar vectors decode better.

    `correlation` is the R = Σ_{i≠l}⟨xᵢ, x_l⟩/Σ‖xᵢ‖² that the decoder assumes. It is a number (for `clients` clients if that is
    set, otherwise for the number of packets) or one of: "none" (R = 0), "max" (R = n − 1: identical vectors), "avg" (R = n/2),
    "estimated" or "current". "estimated" takes R from the packets of the previous round, and is "none" in the first round.
    "current" takes R from the packets that it decodes, so it is slightly biased. All other choices are unbiased for all
    vectors: a wrong assumption only costs accuracy. If fewer clients than planned take part, ρ = R/(n − 1) stays the same and
    β is computed for the actual number of clients.
    """

    size: int
    bits: int = 32
    correlation: float | str = "estimated"

    unbiased = True
    joint = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)
        if isinstance(self.correlation, bool) or not isinstance(self.correlation, int | float | str):
            raise InputError(f"correlation must be a number or one of {', '.join(CORRELATIONS)}, got {self.correlation!r}.")
        if isinstance(self.correlation, str):
            if self.correlation not in CORRELATIONS:
                raise InputError(f"correlation must be a number or one of {', '.join(CORRELATIONS)}, got {self.correlation!r}.")
        elif self.clients is not None:
            check_correlation(self.correlation, self.clients)

    @abstractmethod
    def _ensemble(self, seeds: Sequence[PublicSeed]) -> Ensemble:
        """The maps of the clients with these seeds."""

    @abstractmethod
    def _solved(self, ensemble: Ensemble, y: Tensor, rho: float) -> Tensor:
        """Compute T(S)†·Σ Gᵢᵀyᵢ."""

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """(Σ‖xᵢ‖²/n²)·(β − 1 − R) if the assumed R is right. If it is wrong, `spatial_law` gives the larger error.

        For "estimated" and "current" this is the error with the true correlation, which is close to the estimate. None for
        rounded numbers, and for Gaussian maps, which are not projections.
        """
        n = self._planned()
        check_correlation(correlation, n)
        ensemble = self._ensemble([])
        believed = self._given(n)
        rho = _safe(correlation / (n - 1) if n > 1 else 0.0, n) if believed is None else believed
        if self.bits < 32 or not ensemble.orthonormal:
            return None
        parts = [(share, ensemble.law(n, share.share, rho)) for share in ensemble.shares]
        errors = [(s.stop - s.start) / self.dim * law.relative_error(n, correlation) for s, law in parts]
        return total_square / n**2 * sum(errors)

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode:
        """The map of this client, followed by the decoding of its packet alone."""
        return self._through(replace(self, bits=32), seed, client, rounded=self.bits < 32)

    @property
    def shrinkage(self) -> float:
        return self.size / self.dim / (1 + relative_variance(size=self.size, bits=self.bits))

    def learn(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor | None:
        """Estimate ρ from these packets for the next round. A single packet contains no information about ρ."""
        if self.correlation != "estimated" or len(packets) < 2:
            return knowledge
        self._check_round(packets, seed)
        return torch.tensor([_estimated(*self._read_all(packets, seed))], dtype=torch.float64)

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        """√(dim/size)·‖y‖: E‖Gx‖² = (size/dim)‖x‖²."""
        expect_kind(packet, self.name)
        return float(self._read(packet, seed).norm()) * math.sqrt(self.dim / self.size)

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        own = seed.child("client", client)
        y = self._ensemble([own]).forward(x.to(torch.float32).contiguous())[0]
        return to_parts(y, bits=self.bits, seed=own)

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        ensemble, y = self._read_all(packets, seed)
        n = len(packets)
        rho = self._believed(n, ensemble, y, knowledge)
        if not ensemble.orthonormal:  # eigenvalues of S may exceed n, where T may be zero for a negative ρ
            rho = max(rho, 0.0)
        mean = self._solved(ensemble, y, rho)
        for share in ensemble.shares:
            mean[share.start : share.stop] *= ensemble.law(n, share.share, rho).beta(n) / n
        return mean.to(torch.float32)

    def _read(self, packet: Packet, seed: PublicSeed) -> Tensor:
        return from_packet(packet, size=self.size, bits=self.bits, seed=seed.child("client", sender(packet)))

    def _read_all(self, packets: Sequence[Packet], seed: PublicSeed) -> tuple[Ensemble, Tensor]:
        ordered = sorted(packets, key=sender)  # so that the result does not depend on the order of arrival
        ensemble = self._ensemble([seed.child("client", sender(packet)) for packet in ordered])
        y = torch.stack([self._read(packet, seed) for packet in ordered])
        return ensemble, y.to(torch.float64) if len(packets) * self.dim <= 2**20 else y

    def _believed(self, clients: int, ensemble: Ensemble, y: Tensor, knowledge: Tensor | None) -> float:
        if clients == 1:
            return 0.0
        given = self._given(clients)
        if given is not None:
            return given
        if self.correlation == "current":
            return _safe(_estimated(ensemble, y), clients)
        return 0.0 if knowledge is None else _safe(float(knowledge[0]), clients)

    def _given(self, clients: int) -> float | None:
        """The fixed value of ρ. None if ρ is estimated."""
        fixed: dict[Any, float] = {"none": 0.0, "max": 1.0, "avg": clients / (2 * max(1, clients - 1))}
        if isinstance(self.correlation, str):
            return _safe(fixed[self.correlation], clients) if self.correlation in fixed else None
        planned = self.clients or clients
        return _safe(self.correlation / (planned - 1), clients) if planned > 1 else 0.0


def _safe(rho: float, clients: int) -> float:
    """Limit ρ to the values that are possible for n vectors. At the lower end, T(n) = 0."""
    return min(max(rho, -0.999 / max(1, clients - 1)), 1.0)


def _estimated(ensemble: Ensemble, y: Tensor) -> float:
    """Estimate ρ from E⟨GᵢᵀGᵢxᵢ, G_lᵀG_lx_l⟩ = c²⟨xᵢ, x_l⟩ and E‖Gᵢxᵢ‖² = c‖xᵢ‖².

    The standard deviation of the estimate is about √(2·dim)/(n·size).
    """
    flat = y.reshape(-1).to(torch.float64)
    total = float(torch.dot(flat, flat))
    if total == 0:
        return 0.0
    alone = float(torch.dot(flat, ensemble.own(y).reshape(-1).to(torch.float64)))
    together = float(ensemble.adjoint(y).to(torch.float64).square().sum())
    rho = (together - alone) * ensemble.dim / (ensemble.size * total * (ensemble.clients - 1))
    return min(max(rho, 0.0), _MOST_ESTIMATED)
