"""What an adversary makes of what was really sent."""

from sketchfed.attacks.estimation import ESTIMATES, Seen, by_adjoint, by_pseudo_inverse, cosine, relative_error

__all__ = ["ESTIMATES", "Seen", "by_adjoint", "by_pseudo_inverse", "cosine", "relative_error"]
