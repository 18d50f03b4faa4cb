"""Algorithms by name: what clients send, how the server combines it, and how all parties update their replicas."""

from sketchfed.algorithms.base import Algorithm, stepped
from sketchfed.algorithms.chosen import CombineSettings, ServerSettings
from sketchfed.algorithms.cohorts import cohort, most_participations, round_seed
from sketchfed.algorithms.combined import DecodesAlone, combined_packet, combined_values
from sketchfed.algorithms.dbcl import Dbcl
from sketchfed.algorithms.dome import Dome
from sketchfed.algorithms.fedavg import FedAvg
from sketchfed.algorithms.fetchsgd import FetchSgd
from sketchfed.algorithms.forms import Form, WholeModel
from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.gossip_exact import GossipExact
from sketchfed.algorithms.gossip_models import GossipModels
from sketchfed.algorithms.gossip_tracking import GossipTracking
from sketchfed.algorithms.iterative import Iterative
from sketchfed.algorithms.private_iterative import PrivateIterative
from sketchfed.algorithms.settings import (
    CodecSettings,
    SketchSettings,
    SubspaceSettings,
    default_global_rate,
)
from sketchfed.algorithms.state import Change, Replica, RoundContext, State
from sketchfed.parts import Registry

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Change",
    "CodecSettings",
    "CombineSettings",
    "Dbcl",
    "DecodesAlone",
    "Dome",
    "FedAvg",
    "FetchSgd",
    "Form",
    "Gossip",
    "GossipExact",
    "GossipModels",
    "GossipTracking",
    "Iterative",
    "PrivateIterative",
    "Replica",
    "RoundContext",
    "ServerSettings",
    "SketchSettings",
    "State",
    "SubspaceSettings",
    "WholeModel",
    "cohort",
    "combined_packet",
    "combined_values",
    "default_global_rate",
    "most_participations",
    "round_seed",
    "stepped",
]

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    {
        algorithm.name: algorithm
        for algorithm in (
            FedAvg,
            Iterative,
            PrivateIterative,
            FetchSgd,
            Dbcl,
            Dome,
            Gossip,
            GossipModels,
            GossipTracking,
            GossipExact,
        )
    },
    group="sketchfed.algorithms",
    base=Algorithm,
)
