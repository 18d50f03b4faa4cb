"""What a node of a graph learns of its neighbours' local changes, from the messages that it sends and receives."""

from sketchfed.attacks.neighbours.scene import NeighbourChange, Scene
from sketchfed.attacks.neighbours.telling import told_by_neighbours

__all__ = ["NeighbourChange", "Scene", "told_by_neighbours"]
