"""Rounds without a server: the nodes of a graph, what they say to their neighbours, and how it passes."""

from sketchfed.rounds.peers.base import GraphPeer, Hop, Plan
from sketchfed.rounds.peers.exact import ExactPeer
from sketchfed.rounds.peers.gossip import GossipPeer
from sketchfed.rounds.peers.group import PeerGroup, PeerRound
from sketchfed.rounds.peers.kinds import check_graph, peer_of
from sketchfed.rounds.peers.models import ModelsPeer, PairwisePeer, SharedPeer
from sketchfed.rounds.peers.secure import SecurePeer
from sketchfed.rounds.peers.tracking import TrackingPeer
from sketchfed.rounds.peers.transport import Direct, Transport

__all__ = [
    "Direct",
    "ExactPeer",
    "GossipPeer",
    "GraphPeer",
    "Hop",
    "ModelsPeer",
    "PairwisePeer",
    "PeerGroup",
    "PeerRound",
    "Plan",
    "SecurePeer",
    "SharedPeer",
    "TrackingPeer",
    "Transport",
    "check_graph",
    "peer_of",
]
