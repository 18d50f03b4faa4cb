"""Protects updates between encoding and sending, with noise and secure sums, as the tables [privacy] and [secure] say.

`make_protection` chooses one of four kinds: noise in local steps, noise on what is sent, central noise, or secure sums.
Without either table it returns `Clear`.
"""

from sketchfed.protection.base import Clear, Protection
from sketchfed.protection.budget import Budget
from sketchfed.protection.noise import CentralNoise, NoisySent, NoisySteps
from sketchfed.protection.resolve import completed_work, make_protection, participations
from sketchfed.protection.rules import combined
from sketchfed.protection.secure_sums import SecureNoise, SecureSteps, SecureSums
from sketchfed.protection.settings import PrivacySettings, SecureSettings
from sketchfed.protection.work import ClientWork

__all__ = [
    "Budget",
    "CentralNoise",
    "Clear",
    "ClientWork",
    "NoisySent",
    "NoisySteps",
    "PrivacySettings",
    "Protection",
    "SecureNoise",
    "SecureSettings",
    "SecureSteps",
    "SecureSums",
    "combined",
    "completed_work",
    "make_protection",
    "participations",
]
