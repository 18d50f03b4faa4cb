"""The table and the picture of the DBCL training experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import altair as alt

from sketchfed.report import INK, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import arrival
from sketchfed_lab.experiments.tables import write_table

METHODS = ("plain", "sketched")
COLOURS = {"plain": INK, "sketched": PALETTE[0]}
PUBLISHED = {
    "mnist mlp": {0.01: (222, 572), 0.1: (96, 322), 0.2: (84, 308), 0.5: (83, 298), 1.0: (82, 287)},
    "mnist cnn_mnist": {0.01: (462, 636), 0.1: (309, 176), 0.2: (97, 189), 0.5: (91, 170), 1.0: (31, 174)},
}
"""Rounds to the target, plain and sketched, by task and share of clients (Zhang & Wang 2021, Table 1)."""

COSTS = (
    *("rates", "sent in a round, plain", "sketched", "received in a round, plain", "sketched"),
    *("all sent, plain", "sketched", "ratio", "all received, plain", "sketched", "ratio"),
)
"""Bytes of a participant in a round, then those of all clients until the target, or to the end where there is none."""
TO_TARGET = ("clients", "rounds, plain", "rounds, sketched", "ratio", "published", "their ratio", *COSTS)
WITHOUT_TARGET = ("clients", "rounds", "best accuracy, plain", "best accuracy, sketched", *COSTS)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a method took at a share of clients, means over seeds: until the target, or to the end where that is not reached."""

    rounds: float
    up: float
    down: float
    reached: bool


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the table on the terminal."""
    groups = _by_share(rows)
    aimed = bool(rows[0]["key"]["target"])
    first = _arrivals if aimed else _accuracies
    lines = [[*first(share, found), *_costs(found)] for share, found in groups.items()]
    write_table(folder / "table.md", TO_TARGET if aimed else WITHOUT_TARGET, lines, printed=range(6 if aimed else 4))
    save_chart(figure(rows), folder / "figure.svg")


Group = Mapping[str, Sequence[Row]]
"""The runs of each method at one share of clients."""


def _by_share(rows: Sequence[Row]) -> dict[float, Group]:
    shares = sorted({row["key"]["share"] for row in rows})
    return {
        share: {m: [r for r in rows if (r["key"]["share"], r["key"]["method"]) == (share, m)] for m in METHODS}
        for share in shares
    }


def _arrivals(share: float, found: Group) -> list[str]:
    """Rounds to the target, ours and theirs."""
    task = next(row["key"]["task"] for own in found.values() for row in own)
    theirs = PUBLISHED.get(task, {}).get(share)
    published = [f"{theirs[0]}, {theirs[1]}", f"{theirs[1] / theirs[0]:.2f}"] if theirs else ["—", "—"]
    return [f"{share:.0%}", *(_rounds(found[m]) for m in METHODS), _ratio(found, "rounds"), *published]


def _accuracies(share: float, found: Group) -> list[str]:
    rounds = max(row["key"]["rounds"] for own in found.values() for row in own)
    return [f"{share:.0%}", str(rounds), *(", ".join(f"{_best(row):.3f}" for row in found[m]) or "—" for m in METHODS)]


def _rounds(own: Sequence[Row]) -> str:
    """By seed; of what ended short of the target, how long it ran and its best accuracy."""
    return ", ".join(str(there[0]) if (there := _there(row)) else _short_of_it(row) for row in own) or "—"


def _short_of_it(row: Row) -> str:
    last = row["curve"][-1][0] if row["curve"] else 0
    return f"diverged after {last}" if row["diverged"] else f"> {last} ({_best(row):.3f})"


def _there(row: Row) -> list[Any] | None:
    return arrival(row, row["key"]["target"]) if row["key"]["target"] else None


def _best(row: Row) -> float:
    return max((float(point[2]) for point in row["curve"]), default=0.0)


def _costs(found: Group) -> list[str]:
    """Tuned rates, and bytes in both directions: of a participant in a round, and of all clients in all rounds."""
    cohort = participants([row for own in found.values() for row in own])
    sent = [_each([point[3] / point[0] / cohort for point in _last(found[m])] if cohort else []) for m in METHODS]
    received = [_each([point[5] / point[0] for point in _last(found[m])]) for m in METHODS]
    rates = " and ".join(", ".join(dict.fromkeys(f"{row['key']['rate']:g}" for row in found[m])) or "—" for m in METHODS)
    up, down = ([*(_total(cost(found[m]), part) for m in METHODS), _ratio(found, part)] for part in ("up", "down"))
    return [rates, *sent, *received, *up, *down]


def participants(rows: Sequence[Row]) -> float | None:
    """Clients of a round, as measured: each receives what is broadcast. None where no run has two scores."""
    long = [row["curve"] for row in rows if len(row["curve"]) > 1]
    return mean((curve[-1][4] - curve[0][4]) / (curve[-1][5] - curve[0][5]) for curve in long) if long else None


def cost(own: Sequence[Row]) -> Cost | None:
    """None where nothing was scored, and for what diverged, which took nothing to anywhere."""
    ends = [_there(row) or row["curve"][-1] for row in own if row["curve"]]
    if not ends or any(row["diverged"] for row in own):
        return None
    reached = all(_there(row) or not row["key"]["target"] for row in own)
    rounds, up, down = (mean(point[column] for point in ends) for column in (0, 3, 4))
    return Cost(rounds=rounds, up=up, down=down, reached=reached)


def _last(own: Sequence[Row]) -> list[list[Any]]:
    return [row["curve"][-1] for row in own if row["curve"]]


def _each(values: Sequence[float]) -> str:
    return f"{mean(values):,.0f} B" if values else "—"


def _total(cost: Cost | None, part: str) -> str:
    return "—" if cost is None else ("" if cost.reached else "> ") + shown_bytes(getattr(cost, part))


def _ratio(found: Group, part: str) -> str:
    """Sketched over plain: at least that much if only the plain run reached the target, and unknown if not even that did."""
    plain, sketched = (cost(found[method]) for method in METHODS)
    if plain is None or sketched is None or not plain.reached:
        return "—"
    return ("" if sketched.reached else "> ") + f"{getattr(sketched, part) / getattr(plain, part):.2f}"


def figure(rows: Sequence[Row]) -> Any:
    """Accuracy against rounds, and against bytes that all clients sent: a panel a share of clients, a line a seed."""
    target, best = rows[0]["key"]["target"], max(_best(row) for row in rows)
    lowest = target - 0.12 if target else min(point[2] for row in rows for point in row["curve"]) - 0.01
    height = alt.Scale(domain=[lowest, max(best, target) + 0.005], nice=False)
    colours = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    shares, longest = sorted({row["key"]["share"] for row in rows}), max(len(row["curve"]) for row in rows)

    def panel(share: float, column: int, title: str) -> Any:
        points = [
            {"x": point[column], "accuracy": point[2], "method": row["key"]["method"], "seed": row["key"]["seed"]}
            for row in rows
            for point in row["curve"]
            if row["key"]["share"] == share
        ]
        lines = (
            alt.Chart(alt.InlineData(values=points))
            .mark_line(clip=True, strokeWidth=1.3, point={"size": 14} if longest < 20 else False)
            .encode(
                alt.X("x:Q", title=title, scale=alt.Scale(zero=True, nice=False)).axis(format="~s", tickCount=4),
                alt.Y("accuracy:Q", scale=height, title="test accuracy" if share == shares[0] else None).axis(format=".2f"),
                alt.Color("method:N", scale=colours, title=None),
                detail="seed:N",
            )
        )
        dashed = alt.Chart(alt.InlineData(values=[{"target": target}] if target else []))
        rule = dashed.mark_rule(strokeDash=[4, 4], color=INK).encode(y="target:Q")
        named = alt.Title(f"{share:.0%} of the clients", fontSize=12, color=INK)
        return alt.layer(lines, rule).properties(width=180 if len(shares) > 1 else 340, height=200, title=named)

    measures = ((0, "rounds"), (3, "bytes sent by all clients"))
    beside = [alt.hconcat(*(panel(share, *measure) for share in shares)) for measure in measures]
    whole = alt.vconcat(*beside) if len(shares) > 1 else alt.hconcat(*beside)
    subtitle = f"{rows[0]['key']['task']}; a line a seed" + (f"; dashed: the target, {target:.0%}" if target else "")
    return whole.properties(title=alt.Title("Training through sketches, and plainly", subtitle=subtitle))
