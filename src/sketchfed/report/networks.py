"""The graph of a run without a server, as its folder tells it: checked, for it is not taken on trust."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sketchfed.errors import InputError
from sketchfed.graphs import Graph
from sketchfed.report.checks import REMEDY, json_object, number, printable, refusal, whole

GRAPH = "graph.json"


@dataclass(frozen=True)
class Link:
    """Two neighbours, the lower number first, and the bytes that each of them sent to the other."""

    low: int
    high: int
    up: int
    """From the lower number to the higher one."""
    down: int

    @property
    def bytes(self) -> int:
        """Both directions."""
        return self.up + self.down


@dataclass(frozen=True, kw_only=True)
class NetworkRecord:
    """A graph, and what passed over its links until the end of a round."""

    name: str
    nodes: int
    round: int
    diameter: int
    spectral_gap: float
    redraw: int
    """Every how many rounds the graph was drawn anew. 0 if it never was."""
    links: tuple[Link, ...]

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.nodes, tuple((link.low, link.high) for link in self.links))

    @cached_property
    def sent(self) -> tuple[int, ...]:
        """The bytes that each node sent."""
        found = [0] * self.nodes
        for link in self.links:
            found[link.low] += link.up
            found[link.high] += link.down
        return tuple(found)


def network_record(text: str, where: str, *, nodes: int) -> NetworkRecord:
    """The graph in the text of a file. It must have this number of nodes."""
    values = json_object(text, where)
    found = whole(values, "nodes", where, least=1)
    if found != nodes:
        raise InputError(
            f"{where}: 'nodes' is {found}, and summary.json names {nodes} clients. Each client is a node. {REMEDY}"
        )
    return NetworkRecord(
        name=printable(values, "name", where),
        nodes=nodes,
        round=whole(values, "round", where),
        diameter=whole(values, "diameter", where),
        spectral_gap=number(values, "spectral_gap", where, least=0.0, most=1.0),
        redraw=whole(values, "redraw", where),
        links=_links(values, where, nodes),
    )


def _links(values: Mapping[str, Any], where: str, nodes: int) -> tuple[Link, ...]:
    rows = values.get("links")
    if not isinstance(rows, list):
        raise refusal(where, "links", rows, "a list")
    found: dict[tuple[int, int], Link] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 4:
            raise refusal(where, "links", row, "a list of two nodes and the bytes in both directions")
        named = dict(zip(("low", "high", "up", "down"), row, strict=True))
        link = Link(**{key: whole(named, key, f"{where}, links") for key in named})
        if not link.low < link.high < nodes:
            raise refusal(where, "links", row, f"pairs of nodes below {nodes}, the lower number first")
        if (link.low, link.high) in found:
            raise InputError(f"{where}: 'links' has the link {link.low}–{link.high} twice. {REMEDY}")
        found[link.low, link.high] = link
    return tuple(found[pair] for pair in sorted(found))
