"""Draws the pictures of architecture.md: `python docs/drawings.py` writes layers.svg and round.svg beside the page.

The layers come from the table on the page, so picture and table agree. Each picture has its own background, so that it can be
read on light and on dark pages.
"""

import re
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PAGE = DOCS / "architecture.md"

PAPER, INK, MUTED, LINE = "#fbfaf7", "#1d2733", "#5b6673", "#8a94a0"
SERVER, CLIENT, NOISE = "#dbe7f5", "#e2f0dd", "#a33c12"
SHADES = ("#f3e3d3", "#f3e3d3", "#f0ead2", "#e6ecd4", "#dbe7f5", "#e9dff0", "#e2f0dd", "#dcefee", "#e3e8f7", "#e8e8e4")
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"


class Layer(NamedTuple):
    """A row of the page's table."""

    name: str
    packages: tuple[str, ...]
    knows: str


def layers_of(page: str) -> list[Layer]:
    """The rows of the page's table of layers, from top to bottom."""
    table = page.split("<!-- layers -->")[1].split("<!-- end layers -->")[0]
    rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.strip().splitlines()][2:]
    return [Layer(name, tuple(re.findall(r"`(\w+)`", packages)), knows) for name, packages, knows in rows]


def layers(page: str) -> str:
    """A picture of the layers: a band for each row of the table."""
    height, top = 46, 40
    rows = layers_of(page)
    parts = [_text(20, 26, "imports go down, never up", size=14, colour=MUTED)]
    for index, (layer, shade) in enumerate(zip(rows, SHADES, strict=True)):
        y = top + index * height
        parts.append(_box(14, y, 754, height - 6, shade))
        parts.append(_text(26, y + 26, layer.name, size=16, weight="bold"))
        half = -(-len(layer.packages) // 2) if len(layer.packages) > 8 else len(layer.packages)
        lines = [layer.packages[:half], layer.packages[half:]] if half < len(layer.packages) else [layer.packages]
        for row, packages in enumerate(lines):
            place = y + 25 + (row * 17 - 8 if len(lines) > 1 else 0)
            parts.append(_text(172, place, " · ".join(packages), size=14, font="monospace"))
        parts.append(_text(758, y + 25, _short(layer.knows), size=13, colour=MUTED, anchor="end"))
    parts.append(_arrow([(784, top), (784, top + len(rows) * height - 8)]))
    return _picture(800, top + len(rows) * height + 8, parts, "The layers of sketchfed")


def _short(text: str) -> str:
    """The first clause, as much as fits into a band."""
    return re.split(r"[.:]", text)[0]


STEPS_OUT = (("state", "State"), ("given", "Algorithm.given"))
STEPS_CLIENT = (
    ("receive", "Participant.receive"),
    ("train", "Trainer.train"),
    ("encode", "Algorithm.client"),
    ("protect", "Protection.reply"),
)
STEPS_BACK = (
    ("check", "Algorithm.check"),
    ("combine", "Protection.combine"),
    ("decode, step", "Algorithm.server"),
)


def round_() -> str:
    """A picture of one round: the server's lane above, a client's lane below."""
    upper, lower, wide, tall = 88, 290, 138, 52
    out, back = (20, 176), (338, 494, 650)
    client = (176, 332, 488, 644)
    parts = [
        _box(10, 40, 788, 150, SERVER),
        _text(22, 64, "server", size=16, weight="bold"),
        _box(160, 250, 638, 150, CLIENT),
        _text(172, 274, "client", size=16, weight="bold"),
    ]
    for places, steps, y in ((out, STEPS_OUT, upper), (client, STEPS_CLIENT, lower), (back, STEPS_BACK, upper)):
        for x, (name, function) in zip(places, steps, strict=True):
            parts.append(_box(x, y, wide, tall, PAPER, line=LINE))
            parts.append(_text(x + wide / 2, y + 22, name, size=16, weight="bold", anchor="middle"))
            parts.append(_code(x + wide / 2, y + 41, function))
        for first, second in pairwise(places):
            parts.append(_arrow([(first + wide, y + tall / 2), (second - 2, y + tall / 2)]))
    down, up = out[1] + wide / 2, client[3] + wide / 2
    into, first, combine, last = back[0] + wide / 2, out[0] + wide / 2, back[1] + wide / 2, back[2] + wide / 2
    train = client[1] + wide / 2
    parts += [
        _arrow([(down, upper + tall), (down, lower - 2)]),
        _text(down + 8, 212, "bytes down,", size=14),
        _text(down + 8, 228, "counted", size=14),
        _code(down + 8, 244, "Tally.downlink_bytes", colour=MUTED, anchor="start"),
        _arrow([(up, lower), (up, 220), (into, 220), (into, upper + tall + 2)]),
        _text(up - 8, 212, "bytes up, counted", size=14, anchor="end"),
        _code(up - 8, 238, "Tally.uplink_bytes", colour=MUTED, anchor="end"),
        _arrow([(last, upper), (last, 26), (first, 26), (first, upper - 2)]),
        _text(404, 19, "next state; its update goes out with the next round", size=14, anchor="middle"),
        _text(train, 364, "noise in local steps", size=13, colour=NOISE, anchor="middle"),
        _code(train, 382, "NoisySteps", colour=NOISE),
        _text(up, 364, "clip, noise, masks", size=13, colour=NOISE, anchor="middle"),
        _code(up, 382, "NoisySent, SecureSums", colour=NOISE),
        _text(combine + 12, 163, "noise on the sum, masks cancel", size=13, colour=NOISE, anchor="middle"),
        _code(combine + 12, 180, "CentralNoise, SecureSums", colour=NOISE),
    ]
    return _picture(808, 412, parts, "One round of a run")


def _code(x: float, y: float, text: str, *, colour: str = INK, anchor: str = "middle") -> str:
    return _text(x, y, text, size=11, font="monospace", colour=colour, anchor=anchor)


def _picture(width: int, height: int, parts: list[str], title: str) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="{FONT}">\n<title>{escape(title)}</title>\n'
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>\n'
    )
    paper = f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>\n'
    return head + paper + "\n".join(parts) + "\n</svg>\n"


def _box(x: float, y: float, width: float, height: float, fill: str, *, line: str = "none") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{line}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    colour: str = INK,
    weight: str = "normal",
    anchor: str = "start",
    font: str | None = None,
) -> str:
    family = "" if font is None else f' font-family="{font}"'
    look = f'font-size="{size}" fill="{colour}" font-weight="{weight}" text-anchor="{anchor}"{family}'
    return f'<text x="{x:g}" y="{y:g}" {look}>{escape(text)}</text>'


def _arrow(points: list[tuple[float, float]]) -> str:
    path = " L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="{INK}" stroke-width="1.5" marker-end="url(#tip)"/>'


def drawn() -> dict[Path, str]:
    """Each picture's file, and what should be in it."""
    return {DOCS / "layers.svg": layers(PAGE.read_text()), DOCS / "round.svg": round_()}


if __name__ == "__main__":
    for path, picture in drawn().items():
        path.write_text(picture)
