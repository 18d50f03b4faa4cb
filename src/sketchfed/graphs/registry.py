"""Graphs by name."""

from collections.abc import Callable

from sketchfed.graphs.drawn import erdos_renyi, random_regular, small_world
from sketchfed.graphs.graph import Graph
from sketchfed.graphs.listed import edges
from sketchfed.graphs.named import complete, path, ring, star, torus
from sketchfed.parts import Registry

_OURS = (ring, path, torus, star, complete, random_regular, erdos_renyi, small_world, edges)
GRAPHS: Registry[Callable[..., Graph]] = Registry(
    "graph", {builder.__name__: builder for builder in _OURS}, group="sketchfed.graphs"
)
"""Functions of the number of `nodes`, and of a `seed` if they are random. Other arguments are options of [graph]."""
