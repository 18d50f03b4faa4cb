"""Private iterative sketching: iterative sketching that refuses to run without calibrated noise."""

from dataclasses import dataclass

from sketchfed.algorithms.iterative import Iterative


@dataclass(frozen=True, kw_only=True)
class PrivateIterative(Iterative):
    """Sketches of local steps whose gradients are clipped for each example and noised.

    Paper: Song et al. 2023, Alg. 2. Noise is that of [privacy], which must be there: as published on the gradient of each
    local step, in all coordinates and before sketching (`placement = "steps"`, the default here). Where the paper assumes
    a Lipschitz constant ℓ, gradients are clipped; where it takes σ = O(√log(1/δ)·ℓ/ε̂) and ε = √(TK)·ε̂ (Thm 6.2), which is
    no composition theorem, noise is calibrated by the accountant; and its random batches are Poisson batches that nobody
    sees, for which amplification is proven.

    Two better placements: `placement = "sent"` clips and noises sketches, among size instead of dim numbers, and
    with `name = "discrete_gaussian"` and [secure] each client adds a share of the noise only, since the server sees no
    more than sums.
    """

    name = "private_iterative"
    summary = "iterative sketching of clipped and noised local steps"
    source = "Song et al. 2023, Alg. 2"
    private = True
