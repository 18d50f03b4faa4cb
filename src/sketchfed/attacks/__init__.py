"""Attacks: what an adversary can learn from the messages that were really sent."""

from sketchfed.attacks.analytic import first_inputs, unsketched
from sketchfed.attacks.base import Attack
from sketchfed.attacks.estimation import ESTIMATES, Seen, by_adjoint, by_pseudo_inverse, cosine, relative_error
from sketchfed.attacks.inference import AlignmentAttack, LossAttack, MembershipAttack, PropertyAttack
from sketchfed.attacks.labels import inferred
from sketchfed.attacks.matching import Guess, Matching
from sketchfed.attacks.membership import by_alignment, by_loss, mislabelled
from sketchfed.attacks.neighbours import NeighbourChange
from sketchfed.attacks.observation import Observation, Observed
from sketchfed.attacks.property import PropertyInference
from sketchfed.attacks.public import Public
from sketchfed.attacks.reconstruction import DeepLeakage, FirstLayer, GradientMatching, JointMatching, Reconstruction
from sketchfed.attacks.scores import (
    auc,
    auc_interval,
    label_accuracy,
    matched,
    mse,
    placements,
    psnr,
    recognised,
    share_interval,
    ssim,
    true_positive_rate,
)
from sketchfed.attacks.shadows import each_seen, groups_seen
from sketchfed.attacks.smoothing import smoothed_steps, smoothed_weights
from sketchfed.attacks.steps import AllBroadcasts, AllMessages, AsSent, ByAdjoint, ByPseudoInverse, StepAttack, Steps
from sketchfed.attacks.targets import Joint, Target, repeated
from sketchfed.attacks.theorems import adjoint_error, collision, product_error, pseudo_inverse_error
from sketchfed.attacks.view import ROLES, Update, View
from sketchfed.parts import Registry

__all__ = [
    "ATTACKS",
    "ESTIMATES",
    "ROLES",
    "AlignmentAttack",
    "AllBroadcasts",
    "AllMessages",
    "AsSent",
    "Attack",
    "ByAdjoint",
    "ByPseudoInverse",
    "DeepLeakage",
    "FirstLayer",
    "GradientMatching",
    "Guess",
    "Joint",
    "JointMatching",
    "LossAttack",
    "Matching",
    "MembershipAttack",
    "NeighbourChange",
    "Observation",
    "Observed",
    "PropertyAttack",
    "PropertyInference",
    "Public",
    "Reconstruction",
    "Seen",
    "StepAttack",
    "Steps",
    "Target",
    "Update",
    "View",
    "adjoint_error",
    "auc",
    "auc_interval",
    "by_adjoint",
    "by_alignment",
    "by_loss",
    "by_pseudo_inverse",
    "collision",
    "cosine",
    "each_seen",
    "first_inputs",
    "groups_seen",
    "inferred",
    "label_accuracy",
    "matched",
    "mislabelled",
    "mse",
    "placements",
    "product_error",
    "pseudo_inverse_error",
    "psnr",
    "recognised",
    "relative_error",
    "repeated",
    "share_interval",
    "smoothed_steps",
    "smoothed_weights",
    "ssim",
    "true_positive_rate",
    "unsketched",
]

_OURS: tuple[type[Attack], ...] = (
    *(GradientMatching, JointMatching, DeepLeakage, FirstLayer),
    *(AsSent, ByAdjoint, ByPseudoInverse, AllBroadcasts, AllMessages),
    PropertyAttack,
    *(LossAttack, AlignmentAttack),
)
ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {attack.name: attack for attack in _OURS},
    group="sketchfed.attacks",
    base=(Reconstruction, StepAttack, AllMessages, PropertyAttack, MembershipAttack),  # an audit knows how to judge these
)
