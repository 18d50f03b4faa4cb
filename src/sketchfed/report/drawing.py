"""A picture of a graph with the bytes on its edges, as SVG inside a page. It needs no script and prints well."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from sketchfed.report.layouts import Placement, Points, layout, torus_columns
from sketchfed.report.networks import Link, NetworkRecord
from sketchfed.report.units import shown_bytes, shown_loss

MOST_NODES, MOST_LINKS = 1_000, 20_000
"""Larger graphs are not drawn."""
_WIDTH = 400.0
_MARGIN = 16.0
_LARGEST, _SMALLEST = 11.0, 1.8
_NUMBERED = 6.0
"""The radius from which a node has room for its number."""
_MOST_TITLES = 2_000
_STEPS = 5
_WIDTHS = (1.0, 1.8, 2.8, 4.0, 5.4)
_MIDDLE = 3
_WIDE_RANGE = 30


@dataclass(frozen=True)
class Shade:
    """Links that are drawn alike, because they carried about as many bytes."""

    place: int
    """From 0, for no bytes at all, to `_STEPS` for the most."""
    links: Sequence[Link]

    @property
    def name(self) -> str:
        return f"edge-{self.place}"

    @property
    def width(self) -> float:
        return _WIDTHS[max(self.place - 1, 0)]

    @property
    def text(self) -> str:
        """The range of bytes, for the legend."""
        least, most = (shown_bytes(end(link.bytes for link in self.links)) for end in (min, max))
        return "nothing" if not self.place else least if least == most else f"{least} to {most}"


def shades(links: Sequence[Link]) -> list[Shade]:
    """Links by the bytes that they carried, the fewest first.

    Steps are shares of the most bytes. If bytes differ much, they are shares of the logarithm.
    """
    silent = [link for link in links if not link.bytes]
    known = [link for link in links if link.bytes]
    found = [Shade(0, silent)] if silent else []
    if not known:
        return found
    least, most = min(link.bytes for link in known), max(link.bytes for link in known)
    logarithmic = most > _WIDE_RANGE * least

    def step(link: Link) -> int:
        share = math.log(link.bytes / least) / math.log(most / least) if logarithmic else link.bytes / most
        return min(max(math.ceil(share * _STEPS), 1), _STEPS)

    places = {place: [link for link in known if step(link) == place] for place in range(1, _STEPS + 1)}
    if len(places[step(known[0])]) == len(known):
        return [*found, Shade(_MIDDLE, known)]
    return [*found, *(Shade(place, inside) for place, inside in places.items() if inside)]


def picture(network: NetworkRecord) -> str:
    """The graph as SVG, with a legend. A note instead if the graph is too large."""
    if network.nodes > MOST_NODES or len(network.links) > MOST_LINKS:
        return f'<p class="note">This graph is too large to draw: {escape(title(network))}.</p>'
    placed, shaded = layout(network.graph), shades(network.links)
    points, height = _fitted(placed)
    radius = _radius(points, height)
    crowd = min(1.0, radius / 9) * min(1.0, math.sqrt(1.3 * network.nodes / max(len(network.links), 1)))
    titled = len(network.links) <= _MOST_TITLES
    edges = "".join(_edges(shade, placed, points, crowd=crowd, titled=titled) for shade in shaded)
    nodes = "".join(_node(network, node, points[node], radius) for node in range(network.nodes))
    kind = ' class="dense"' if len(network.links) > 1_000 else ""
    return (
        f'<svg class="network" viewBox="0 0 {_WIDTH:g} {height:.0f}" role="img" aria-label="{escape(_spoken(network))}">\n'
        f'<g{kind}>{edges}</g>\n<g class="nodes">{nodes}</g>\n</svg>\n{_legend(shaded)}'
    )


def is_grid(network: NetworkRecord) -> bool:
    """Whether the graph is drawn as a grid with edges that leave it."""
    return bool(torus_columns(network.graph))


def title(network: NetworkRecord) -> str:
    """What kind of graph it is, in a line of plain text."""
    name, gap = network.name.replace("_", " "), shown_loss(network.spectral_gap)
    return f"{name}, {network.nodes:,} nodes, {_count(network.links)}, diameter {network.diameter:,}, spectral gap {gap}"


def _count(links: Sequence[Link]) -> str:
    return f"{len(links):,} edge{'s' * (len(links) != 1)}"


def _spoken(network: NetworkRecord) -> str:
    carried = [link.bytes for link in network.links]
    least, most = shown_bytes(min(carried, default=0)), shown_bytes(max(carried, default=0))
    return f"Graph of the run: {title(network)}. Each edge carried {least if least == most else f'{least} to {most}'}."


def _fitted(placed: Placement) -> tuple[Points, float]:
    """The places on the canvas, and its height. A grid has room for the edges that leave it."""
    low, size = placed.points.min(axis=0), np.ptp(placed.points, axis=0)
    if placed.columns:
        low, size = low - 0.6, size + 1.2
    scale = (_WIDTH - 2 * _MARGIN) / max(size[0], size[1], 1e-9)
    moved = (placed.points - low) * scale + _MARGIN
    moved[:, 0] += (_WIDTH - 2 * _MARGIN - size[0] * scale) / 2
    return moved, size[1] * scale + 2 * _MARGIN


def _radius(points: Points, height: float) -> float:
    """As large as there is room for."""
    if len(points) == 1:
        return _LARGEST
    between = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(between, np.inf)
    room = 0.33 * math.sqrt(_WIDTH * max(height, 60.0) / len(points))
    return float(max(min(_LARGEST, room, 0.42 * between.min()), _SMALLEST))


def _edges(shade: Shade, placed: Placement, points: Points, *, crowd: float, titled: bool) -> str:
    width = max(shade.width * crowd, 0.3)
    drawn = "".join(
        f'<path d="{_line(link, placed, points)}">{f"<title>{_told(link)}</title>" if titled else ""}</path>'
        for link in shade.links
    )
    return f'<g class="{shade.name}" stroke-width="{width:.2f}">{drawn}</g>'


def _line(link: Link, placed: Placement, points: Points) -> str:
    """A straight line. On a circle it bends inwards, around the nodes between its ends. On a grid it may be two stubs."""
    (x, y), (other_x, other_y) = points[link.low], points[link.high]
    if placed.around and 1 < link.high - link.low < len(points) - 1:
        middle = (placed.points[link.low] + placed.points[link.high]) / 2
        bend_x, bend_y = (points[link.low] + points[link.high]) / 2 - 0.3 * np.linalg.norm(middle) * middle * _half(points)
        return f"M{x:.1f} {y:.1f}Q{bend_x:.1f} {bend_y:.1f} {other_x:.1f} {other_y:.1f}"
    if not placed.columns or abs(placed.points[link.low] - placed.points[link.high]).sum() <= 1:
        return f"M{x:.1f} {y:.1f}L{other_x:.1f} {other_y:.1f}"
    cell = 0.55 * abs(points[1][0] - points[0][0])
    if abs(other_y - y) < 0.01:
        return f"M{x:.1f} {y:.1f}h{-cell:.1f}M{other_x:.1f} {other_y:.1f}h{cell:.1f}"
    return f"M{x:.1f} {y:.1f}v{-cell:.1f}M{other_x:.1f} {other_y:.1f}v{cell:.1f}"


def _half(points: Points) -> float:
    """Half the width of a picture."""
    return float(np.ptp(points[:, 0])) / 2


def _told(link: Link) -> str:
    up, down = shown_bytes(link.up), shown_bytes(link.down)
    return f"{link.low}–{link.high}: {up} from {link.low} to {link.high}, {down} from {link.high} to {link.low}"


def _node(network: NetworkRecord, node: int, place: Points, radius: float) -> str:
    x, y = place
    near = network.graph.degree(node)
    told = f"node {node}: sent {shown_bytes(network.sent[node])} to {near} neighbour{'s' * (near != 1)}"
    number = (
        f'<text x="{x:.1f}" y="{y + 0.36 * radius:.1f}" font-size="{1.02 * radius:.1f}">{node}</text>'
        if radius >= _NUMBERED
        else ""
    )
    return f'<g><title>{told}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>{number}</g>'


def _legend(shaded: Sequence[Shade]) -> str:
    """What widths and colours mean."""
    path = '<path class="{}" stroke-width="{}" d="M1 5.5h24"/>'
    line = f'<svg class="swatch network" viewBox="0 0 26 11" aria-hidden="true">{path}</svg>'
    items = "".join(
        f"<li>{line.format(shade.name, shade.width)}{shade.text} <small>on {_count(shade.links)}</small></li>"
        for shade in shaded
    )
    return f'<ul class="shades" aria-label="Bytes on an edge, in both directions together">{items}</ul>'
