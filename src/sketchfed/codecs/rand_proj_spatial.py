"""Random projections, one per client, decoded jointly."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.codecs.solver import DECODERS, solve
from sketchfed.codecs.spatial import Spatial
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.seeds import PublicSeed


@dataclass(frozen=True, kw_only=True)
class RandProjSpatial(Spatial):
    """Projections onto random subspaces, one per client: x̂ = (β/n)·T(S)†·Σ Gᵢᵀyᵢ with S = Σ GᵢᵀGᵢ, T(λ) = 1 + ρ(λ − 1).

    Paper: Jiang et al. 2023, Eqs. 5, 6 and 11. Here T(S)† comes from a linear system (`solver`), and β has a closed form
    (`spatial_law`). The paper computes eigenvectors of a dim × dim matrix and simulates β. `ensemble` selects the maps:
    "srht" is the default; "balanced" has the same error and encodes in dim additions; "orthonormal" and "gaussian" are for
    comparison; "sampling" is Rand-k-Spatial. `block` splits "srht" into blocks of this many coordinates, a power of two.
    """

    ensemble: str = "srht"
    block: int | None = None
    decoder: str = "auto"

    name = "rand_proj_spatial"
    summary = "random projections, decoded jointly"
    source = "Jiang et al. 2023"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ensemble not in ENSEMBLES:
            raise UnknownNameError("ensemble", self.ensemble, ENSEMBLES)
        if self.decoder not in DECODERS:
            raise InputError(f"decoder must be one of {', '.join(DECODERS)}, got {self.decoder!r}.")
        self._ensemble([])  # raises an error now if the settings are impossible

    def _ensemble(self, seeds: Sequence[PublicSeed]) -> Ensemble:
        return ENSEMBLES[self.ensemble](self.dim, self.size, seeds, self.block)

    def _solved(self, ensemble: Ensemble, y: Tensor, rho: float) -> Tensor:
        return solve(ensemble, y, rho, decoder=self.decoder, tolerance=1e-10 if y.itemsize == 8 else 1e-5)
