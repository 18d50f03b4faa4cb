"""What an adversary makes of what was really sent."""

from sketchfed.attacks.analytic import first_inputs, unsketched
from sketchfed.attacks.estimation import ESTIMATES, Seen, by_adjoint, by_pseudo_inverse, cosine, relative_error
from sketchfed.attacks.labels import inferred
from sketchfed.attacks.matching import Guess, Matching
from sketchfed.attacks.observation import Observation
from sketchfed.attacks.smoothing import smoothed_steps, smoothed_weights

__all__ = [
    "ESTIMATES",
    "Guess",
    "Matching",
    "Observation",
    "Seen",
    "by_adjoint",
    "by_pseudo_inverse",
    "cosine",
    "first_inputs",
    "inferred",
    "relative_error",
    "smoothed_steps",
    "smoothed_weights",
    "unsketched",
]
