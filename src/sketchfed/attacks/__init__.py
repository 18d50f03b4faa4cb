"""What an adversary makes of what was really sent."""

from sketchfed.attacks.analytic import first_inputs, unsketched
from sketchfed.attacks.base import Attack
from sketchfed.attacks.estimation import ESTIMATES, Seen, by_adjoint, by_pseudo_inverse, cosine, relative_error
from sketchfed.attacks.inference import AlignmentAttack, LossAttack, MembershipAttack, PropertyAttack
from sketchfed.attacks.labels import inferred
from sketchfed.attacks.matching import Guess, Matching
from sketchfed.attacks.membership import by_alignment, by_loss, mislabelled
from sketchfed.attacks.observation import Observation
from sketchfed.attacks.property import PropertyInference
from sketchfed.attacks.reconstruction import DeepLeakage, FirstLayer, GradientMatching, JointMatching, Reconstruction
from sketchfed.attacks.smoothing import smoothed_steps, smoothed_weights
from sketchfed.attacks.steps import AllBroadcasts, AsSent, ByAdjoint, ByPseudoInverse, StepAttack
from sketchfed.attacks.targets import Joint, Target, repeated
from sketchfed.attacks.view import ROLES, Public, Update, View

__all__ = [
    "ATTACKS",
    "ESTIMATES",
    "ROLES",
    "Attack",
    "Guess",
    "Joint",
    "Matching",
    "MembershipAttack",
    "Observation",
    "PropertyAttack",
    "PropertyInference",
    "Public",
    "Reconstruction",
    "Seen",
    "StepAttack",
    "Target",
    "Update",
    "View",
    "by_adjoint",
    "by_alignment",
    "by_loss",
    "by_pseudo_inverse",
    "cosine",
    "first_inputs",
    "inferred",
    "mislabelled",
    "relative_error",
    "repeated",
    "smoothed_steps",
    "smoothed_weights",
    "unsketched",
]

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        *(GradientMatching, JointMatching, DeepLeakage, FirstLayer),
        *(AsSent, ByAdjoint, ByPseudoInverse, AllBroadcasts),
        PropertyAttack,
        *(LossAttack, AlignmentAttack),
    )
}
