"""Differential privacy: mechanisms that clip and add noise, an accountant, and a ledger of what a run has spent."""

from sketchfed.privacy.accounting import Charge, Claim, calibrated, check_delta, epsilon_of
from sketchfed.privacy.audit import AuditResult, audit, epsilon_lower_bound, orthogonal_canaries
from sketchfed.privacy.base import Mechanism
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.gaussian import Gaussian
from sketchfed.privacy.ledger import LedgerEntry, PrivacyLedger
from sketchfed.privacy.rounded import Rounded
from sketchfed.privacy.sampling import discrete_gaussian, secret_normals

__all__ = [
    "MECHANISMS",
    "AuditResult",
    "Charge",
    "Claim",
    "DiscreteGaussian",
    "Gaussian",
    "LedgerEntry",
    "Mechanism",
    "PrivacyLedger",
    "Rounded",
    "audit",
    "calibrated",
    "check_delta",
    "discrete_gaussian",
    "epsilon_lower_bound",
    "epsilon_of",
    "orthogonal_canaries",
    "secret_normals",
]

MECHANISMS: dict[str, type[Mechanism]] = {mechanism.name: mechanism for mechanism in (Gaussian, DiscreteGaussian, Rounded)}
