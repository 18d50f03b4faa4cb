"""Differential privacy: mechanisms that clip and add noise, an accountant, and a ledger of what a run has spent."""

from sketchfed.parts import Registry
from sketchfed.privacy.accounting import calibrated, epsilon_of
from sketchfed.privacy.audit import AuditResult, audit, audited, epsilon_lower_bound, orthogonal_canaries
from sketchfed.privacy.base import Mechanism
from sketchfed.privacy.claims import Charge, Claim, check_delta
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.gaussian import GaussianNoise
from sketchfed.privacy.ledger import LedgerEntry, PrivacyLedger
from sketchfed.privacy.rounded import Rounded
from sketchfed.privacy.sampling import discrete_gaussian, secret_normals, variance_above

__all__ = [
    "MECHANISMS",
    "AuditResult",
    "Charge",
    "Claim",
    "DiscreteGaussian",
    "GaussianNoise",
    "LedgerEntry",
    "Mechanism",
    "PrivacyLedger",
    "Rounded",
    "audit",
    "audited",
    "calibrated",
    "check_delta",
    "discrete_gaussian",
    "epsilon_lower_bound",
    "epsilon_of",
    "orthogonal_canaries",
    "secret_normals",
    "variance_above",
]

MECHANISMS: Registry[type[Mechanism]] = Registry(
    "mechanism",
    {mechanism.name: mechanism for mechanism in (GaussianNoise, DiscreteGaussian, Rounded)},
    group="sketchfed.mechanisms",
    base=Mechanism,
)
