"""The node's own side: a store of what must happen once or never be forgotten, and a policy of what its owner allows."""

from sketchfed.nodes.policy import Policy
from sketchfed.nodes.rules import Offer, Verdict, check, verdicts
from sketchfed.nodes.spending import Limit, Release
from sketchfed.nodes.store import Claim, Key, NodeStore

__all__ = ["Claim", "Key", "Limit", "NodeStore", "Offer", "Policy", "Release", "Verdict", "check", "verdicts"]
