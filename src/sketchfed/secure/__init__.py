"""Secure aggregation: the server learns the sum of integers modulo 2^bits of those clients that stayed, and nothing else.

After Bell, Bonawitz, Gascón, Lepoint & Raykova 2020, "Secure single-server aggregation with (poly)logarithmic overhead", with
the consistency check of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning". Stages
are pure functions over packets; `docs/secure.md` says what is protected and what is not.
"""

from sketchfed.secure.client import advertise, consent, mask, recover, share, unmask
from sketchfed.secure.driver import run_stages, run_sums
from sketchfed.secure.keys import Identity
from sketchfed.secure.masks import add_masks, word_for
from sketchfed.secure.messages import SECURE, STAGES, Stage, request_kind, sum_of
from sketchfed.secure.planning import Neighbourhood, planned_neighbourhood, planned_terms
from sketchfed.secure.server import SecureServer, SecureSum
from sketchfed.secure.session import SecureClient
from sketchfed.secure.states import Consented, Done, Joined, Masked, Shared, SumState, Told
from sketchfed.secure.terms import Terms

__all__ = [
    "SECURE",
    "STAGES",
    "Consented",
    "Done",
    "Identity",
    "Joined",
    "Masked",
    "Neighbourhood",
    "SecureClient",
    "SecureServer",
    "SecureSum",
    "Shared",
    "Stage",
    "SumState",
    "Terms",
    "Told",
    "add_masks",
    "advertise",
    "consent",
    "mask",
    "planned_neighbourhood",
    "planned_terms",
    "recover",
    "request_kind",
    "run_stages",
    "run_sums",
    "share",
    "sum_of",
    "unmask",
    "word_for",
]
