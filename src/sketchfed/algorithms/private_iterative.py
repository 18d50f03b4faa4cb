"""Private iterative sketching: iterative sketching that refuses to run without calibrated noise."""

from dataclasses import dataclass

from sketchfed.algorithms.iterative import Iterative


@dataclass(frozen=True, kw_only=True)
class PrivateIterative(Iterative):
    """Clients send sketches of local steps. Each example's gradient is clipped, and noise is added.

    Paper: Song et al. 2023, Alg. 2. The table [privacy] is required and sets the noise. As published, noise is added to the
    gradient of each local step, in all coordinates and before sketching (`placement = "steps"`, the default here). The paper
    assumes a Lipschitz constant ℓ; here gradients are clipped. The paper uses σ = O(√log(1/δ)·ℓ/ε̂) and ε = √(TK)·ε̂ (Thm 6.2),
    which is not a composition theorem; here the accountant calibrates the noise. The paper's random batches are Poisson
    batches here, which nobody sees and for which amplification is proven.

    There are two better placements. `placement = "sent"` clips the sketches and adds noise to them, so only size instead of
    dim numbers get noise. With `name = "discrete_gaussian"` and [secure], each client adds only a share of the noise, because
    the server sees only sums.
    """

    name = "private_iterative"
    summary = "iterative sketching of clipped and noised local steps"
    source = "Song et al. 2023, Alg. 2"
    noise_defaults = {  # noqa: RUF012 (never changed)
        "gaussian": {"unit": "example", "placement": "steps"},
        "discrete_gaussian": {"unit": "example"},
    }
