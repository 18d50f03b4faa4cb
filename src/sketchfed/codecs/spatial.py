"""What Rand-k-Spatial and Rand-Proj-Spatial share: how much correlation between clients they believe in, and where from."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec, check_correlation, sender
from sketchfed.codecs.ensembles import Ensemble
from sketchfed.codecs.rounding import Parts, check_width, from_packet, relative_variance, to_parts
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind

CORRELATIONS = ("none", "avg", "max", "estimated", "current")

_MOST_ESTIMATED = 0.98  # an estimate of full correlation is not certain of it, and at 1 the decoder forgives nothing


@dataclass(frozen=True, kw_only=True)
class Spatial(Codec):
    """Each client sends yᵢ = Gᵢxᵢ with a map of its own; the server decodes all together, the better the more they agree.

    `correlation` is what the decoder believes: R = Σ_{i≠l}⟨xᵢ, x_l⟩/Σ‖xᵢ‖² as a number (with `clients`, the cohort it is for,
    or for as many as there are packets), "none" (R = 0), "max" (R = n − 1: identical vectors), "avg" (R = n/2), "estimated",
    which takes R from the packets of the round before and is "none" in the first, or "current", which takes it from the very
    packets it decodes and is therefore slightly biased. All others are unbiased whatever the vectors are: a wrong belief costs
    accuracy only. With fewer clients than planned, ρ = R/(n − 1) stays and β is that of those who are there.
    """

    size: int
    bits: int = 32
    correlation: float | str = "estimated"

    unbiased = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.bits)
        if isinstance(self.correlation, bool) or not isinstance(self.correlation, int | float | str):
            raise InputError(f"correlation is a number or one of {', '.join(CORRELATIONS)}, got {self.correlation!r}.")
        if isinstance(self.correlation, str):
            if self.correlation not in CORRELATIONS:
                raise InputError(f"correlation is a number or one of {', '.join(CORRELATIONS)}, got {self.correlation!r}.")
        elif self.clients is not None:
            check_correlation(self.correlation, self.clients)

    @abstractmethod
    def _ensemble(self, seeds: Sequence[PublicSeed]) -> Ensemble:
        """The maps of clients with these streams."""

    @abstractmethod
    def _solved(self, ensemble: Ensemble, y: Tensor, rho: float) -> Tensor:
        """T(S)†·Σ Gᵢᵀyᵢ."""

    def mse(self, total_square: float, correlation: float = 0.0) -> float | None:
        """(Σ‖xᵢ‖²/n²)·(β − 1 − R) if what it believes is true, and what a wrong belief costs otherwise (`spatial_law`).

        For "estimated" and "current" it is the error with the true correlation, which estimates come close to. None for rounded
        numbers, and for Gaussian maps, which are no projections.
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

    @property
    def shrinkage(self) -> float:
        return self.size / self.dim / (1 + relative_variance(size=self.size, bits=self.bits))

    def learn(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor | None:
        """ρ as these packets show it, for the next round; one packet shows nothing."""
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
        if not ensemble.orthonormal:  # eigenvalues of S may exceed n, and T of a negative ρ be zero there
            rho = max(rho, 0.0)
        mean = self._solved(ensemble, y, rho)
        for share in ensemble.shares:
            mean[share.start : share.stop] *= ensemble.law(n, share.share, rho).beta(n) / n
        return mean.to(torch.float32)

    def _read(self, packet: Packet, seed: PublicSeed) -> Tensor:
        return from_packet(packet, size=self.size, bits=self.bits, seed=seed.child("client", sender(packet)))

    def _read_all(self, packets: Sequence[Packet], seed: PublicSeed) -> tuple[Ensemble, Tensor]:
        ordered = sorted(packets, key=sender)  # so that the order of arrival changes no bit
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
        """ρ, where it is not estimated."""
        fixed: dict[Any, float] = {"none": 0.0, "max": 1.0, "avg": clients / (2 * max(1, clients - 1))}
        if isinstance(self.correlation, str):
            return _safe(fixed[self.correlation], clients) if self.correlation in fixed else None
        planned = self.clients or clients
        return _safe(self.correlation / (planned - 1), clients) if planned > 1 else 0.0


def _safe(rho: float, clients: int) -> float:
    """ρ within what n vectors can have; T(n) = 0 at its lower end."""
    return min(max(rho, -0.999 / max(1, clients - 1)), 1.0)


def _estimated(ensemble: Ensemble, y: Tensor) -> float:
    """ρ̂ from E⟨GᵢᵀGᵢxᵢ, G_lᵀG_lx_l⟩ = c²⟨xᵢ, x_l⟩ and E‖Gᵢxᵢ‖² = c‖xᵢ‖²; its standard deviation is about √(2·dim)/(n·size)."""
    flat = y.reshape(-1).to(torch.float64)
    total = float(torch.dot(flat, flat))
    if total == 0:
        return 0.0
    alone = float(torch.dot(flat, ensemble.own(y).reshape(-1).to(torch.float64)))
    together = float(ensemble.adjoint(y).to(torch.float64).square().sum())
    rho = (together - alone) * ensemble.dim / (ensemble.size * total * (ensemble.clients - 1))
    return min(max(rho, 0.0), _MOST_ESTIMATED)
