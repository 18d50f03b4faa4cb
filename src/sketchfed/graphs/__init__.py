"""Graphs of clients that learn without a server: who is whose neighbour, mixing weights, and what fails in a round."""

from sketchfed.graphs.drawn import first_connected
from sketchfed.graphs.graph import Graph, Tree
from sketchfed.graphs.registry import GRAPHS
from sketchfed.graphs.settings import GraphSettings
from sketchfed.graphs.topology import Failures, Links, Topology
from sketchfed.graphs.weights import checked_weights, metropolis, spectral_gap

__all__ = [
    "GRAPHS",
    "Failures",
    "Graph",
    "GraphSettings",
    "Links",
    "Topology",
    "Tree",
    "checked_weights",
    "first_connected",
    "metropolis",
    "spectral_gap",
]
