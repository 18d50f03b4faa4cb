"""Random coordinates. The decoder takes into account how many clients sent each coordinate."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.codecs.ensembles import SamplingEnsemble
from sketchfed.codecs.spatial import Spatial
from sketchfed.seeds import PublicSeed


@dataclass(frozen=True, kw_only=True)
class RandKSpatial(Spatial):
    """Rand-k with a decoder that weights each coordinate by the number of its senders: x̂(j) = (β/n)·Σᵢyᵢ(j)/T(M_j).

    Paper: Jhunjhunwala et al. 2021; Jiang et al. 2023, Eqs. 2 and 11. M_j is the number of clients that sent coordinate j, and
    β = 1/((k/d)·E[1/T(1 + Bin(n − 1, k/d))]).
    """

    name = "rand_k_spatial"
    summary = "random coordinates, decoded jointly"
    source = "Jhunjhunwala et al. 2021"

    def _ensemble(self, seeds: Sequence[PublicSeed]) -> SamplingEnsemble:
        return SamplingEnsemble(self.dim, self.size, seeds)

    def _solved(self, ensemble: Ensemble, y: Tensor, rho: float) -> Tensor:
        counts = ensemble.adjoint(y.new_ones(y.shape))
        return ensemble.adjoint(y) / (1 + rho * (counts - 1)).where(counts > 0, y.new_ones(()))
