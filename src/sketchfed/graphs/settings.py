"""The table [graph]: which client is whose neighbour, and what fails between them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_type_hints

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.graphs.graph import Graph
from sketchfed.graphs.listed import edges, read_edges
from sketchfed.graphs.registry import GRAPHS
from sketchfed.graphs.topology import Failures, Topology
from sketchfed.graphs.weights import Weights, checked_weights, metropolis
from sketchfed.parts import check_options, short
from sketchfed.seeds import PublicSeed
from sketchfed.tables import check_keys, check_type, keys_of, options_of, parameters_of, takes_any, writable

GIVEN_TO_GRAPHS = ("nodes", "seed")
_SHARES = {
    "node_failures": "of the nodes",
    "link_failures": "of the links",
    "stragglers": "of the nodes",
    "losses": "of the messages",
    "spoiled": "of the messages",
}


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """The table [graph]: clients are nodes, and each exchanges messages with its neighbours only."""

    name: str = "ring"
    """Who is whose neighbour: one of the [graphs](#graphs), or [your own](plugins.md). Each client is a node."""
    weights: str | list[list[float]] = "metropolis"
    """How much a node takes of what each neighbour sends: `metropolis`, or a symmetric matrix with a row for each node, whose
    rows sum to 1."""
    redraw: int = 0
    """A random graph is drawn anew every `redraw` rounds. 0 keeps one graph for the whole run."""
    node_failures: float = 0.0
    """The probability that a node is away. It takes no part until its outage ends."""
    link_failures: float = 0.0
    """The probability that a link does not work, in both directions."""
    outage: int = 1
    """The number of rounds that a failure of a node or a link lasts."""
    stragglers: float = 0.0
    """The probability that a node is late in a round. It hears its neighbours, but its own messages come too late for them."""
    losses: float = 0.0
    """The probability that a message is lost."""
    spoiled: float = 0.0
    """The probability that a message that is not lost arrives damaged: with bytes changed, cut off or added."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        builder = GRAPHS[self.name]
        if not takes_any(builder):
            check_keys("graph", self.options, [*keys_of(GraphSettings), *options_of(builder, besides=GIVEN_TO_GRAPHS)])
        if self.name in GRAPHS.built_in:
            for option, value in self.options.items():
                check_type(value, get_type_hints(builder)[option], f"graph.{option}")
        if isinstance(self.weights, str) and self.weights != "metropolis":
            raise UnknownNameError("graph.weights", self.weights, ["metropolis", "a matrix"])
        for name, things in _SHARES.items():
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"graph.{name} is a share {things}, so it must be from 0 to below 1, got {getattr(self, name)}."
                )
        if self.outage < 1:
            raise InputError(f"graph.outage is a number of rounds, so it must be at least 1, got {self.outage}.")
        if self.redraw < 0:
            raise InputError(f"graph.redraw is a number of rounds, or 0 for one graph in all rounds, got {self.redraw}.")
        if self.redraw and not self.random:
            known = ", ".join(f"'{name}'" for name in GRAPHS.built_in if _is_random(GRAPHS[name]))
            raise InputError(
                f"graph.redraw = {self.redraw} draws random graphs anew, and '{self.name}' is the same in every draw. Remove "
                f"redraw, or use {known}."
            )
        if self.redraw and not isinstance(self.weights, str):
            raise InputError(
                f"graph.weights is a matrix for one graph, and redraw = {self.redraw} draws others. Use weights = "
                "'metropolis', or remove redraw."
            )

    @property
    def random(self) -> bool:
        """Whether the graph is drawn: its function takes a seed."""
        return _is_random(GRAPHS[self.name])

    @property
    def label(self) -> str:
        """A few words for the label of a run."""
        words = [f"on {short(self.name).replace('_', ' ')}"]
        words += [f"{key} {value:g}" for key, value in self.options.items() if type(value) in (int, float)]
        words += ["own weights"] if not isinstance(self.weights, str) else []
        words += [f"redrawn {self.redraw}"] if self.redraw else []
        words += [f"{name.replace('_', ' ')} {getattr(self, name):g}" for name in _SHARES if getattr(self, name)]
        return " ".join(words)

    def completed(self) -> Self:
        """Return a copy with the defaults of all options filled in. Edges of a file are then in the settings themselves."""
        options = writable(options_of(GRAPHS[self.name], besides=GIVEN_TO_GRAPHS)) | self.options
        if GRAPHS[self.name] is edges and options.get("path") and "edges" not in options:
            options = {**options, "path": "", "edges": [list(pair) for pair in read_edges(options["path"])]}
        return replace(self, options=options)

    def topology(self, nodes: int, seed: PublicSeed) -> Topology:
        """The graphs of all rounds of a run with this many clients. The first one is drawn here, so that it can be refused."""
        if nodes < 2:
            raise InputError(
                f"[graph] joins neighbours, and data.clients = {nodes}. Use at least 2 clients, or remove [graph]."
            )
        failures = Failures(outage=self.outage, **{name: getattr(self, name) for name in _SHARES})
        made = Topology(nodes, seed.child("graph"), self._builder(nodes), self._weights, redraw=self.redraw, failures=failures)
        made.graph(0)
        return made

    def _builder(self, nodes: int) -> Callable[[PublicSeed], Graph]:
        builder = GRAPHS[self.name]
        check_options(builder, self.options, owner=f"graph '{self.name}'", besides=GIVEN_TO_GRAPHS)

        def build(seed: PublicSeed) -> Graph:
            found = builder(nodes=nodes, seed=seed, **self.options) if self.random else builder(nodes=nodes, **self.options)
            if not isinstance(found, Graph):
                raise InputError(f"graph '{self.name}' must return a sketchfed.graphs.Graph, not a {type(found).__name__}.")
            if found.nodes != nodes:
                raise InputError(
                    f"graph '{self.name}' returned a graph of {found.nodes:,} nodes, and data.clients = {nodes:,}. Each client "
                    "is a node: make both numbers equal."
                )
            found.check_connected(f"graph '{self.name}'")
            return found

        return build

    def _weights(self, graph: Graph) -> Weights:
        return metropolis(graph) if isinstance(self.weights, str) else checked_weights(self.weights, graph)


def _is_random(builder: Callable[..., Graph]) -> bool:
    return any(each.name == "seed" for each in parameters_of(builder))
