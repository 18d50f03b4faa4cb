"""The table and the figure of a soak, and the test for what grows."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from scipy import stats

from sketchfed.report import MUTED, save_chart
from sketchfed_lab.experiments.tables import write_table

BLOCK = 10
WARM = 0.2
ODDS = 0.01
"""The test for growth: a straight line through the means of BLOCK rounds each, without the first share WARM of them. It grows
if its slope is above zero, with these odds of a false alarm, and it rises by over a twentieth of its mean from end to end."""

Row = dict[str, Any]


class Trend(NamedTuple):
    """A straight line through a series, by rounds."""

    mean: float
    rise: float
    """From the first round that counts to the last."""
    error: float
    """Of the rise, so that a rise this much higher would be missed with odds `ODDS`."""

    @property
    def grows(self) -> bool:
        return self.rise > self.error and self.rise > 0.05 * self.mean


def trend(series: list[float]) -> Trend:
    """The trend of a series after it has warmed up. Means of blocks, for rounds that follow each other are much alike."""
    late = np.array(series[int(WARM * len(series)) :], dtype=float)
    means = np.array([block.mean() for block in np.array_split(late, max(3, len(late) // BLOCK))])
    places = np.arange(len(means))
    fitted = stats.linregress(places, means)
    width = float(stats.t.ppf(1 - ODDS, len(means) - 2) * np.nan_to_num(fitted.stderr))  # NaN where nothing varies
    return Trend(float(late.mean()), float(fitted.slope) * len(means), width * len(means))


def report(rows: list[Row], folder: Path) -> None:
    """Write table.md and figure.svg."""
    arms = [row["arm"] for row in rows if row.get("finished")]
    lines = [[cells[0][0], *(value for _, value in cells)] for cells in zip(*(_column(rows, arm) for arm in arms), strict=True)]
    write_table(folder / "table.md", ["", *arms], lines, printed=range(1 + len(arms)))
    save_chart(_figure(rows, arms), folder / "figure.svg")


def _column(rows: list[Row], arm: str) -> list[tuple[str, str]]:
    """What is said of an arm: names and values."""
    rounds = [row for row in rows if row["arm"] == arm and "round" in row]
    whole = next(row for row in rows if row["arm"] == arm and row.get("finished"))
    seconds = [row["seconds"] for row in rounds]
    refused, killed = Counter[str](), Counter[str]()
    for row in rounds:
        refused.update(row["refused"])
        killed.update(row["killed"])
    cells = [
        ("rounds, each counted once", f"{whole['rounds']}{'' if whole['rounds_counted_once'] else ' (not once!)'}"),
        ("messages to clients", f"{whole['messages']:,}"),
        ("of these with a fault", f"{sum(whole['faults'].values()):,}: {_listed(whole['faults'])}"),
        ("SuperNodes killed", f"{killed['node']}"),
        ("SuperLink killed", f"{killed['link']}"),
        ("server resumed", _listed(whole["resumed"]) or "0"),
        ("clients left out, and why", f"{sum(refused.values()):,}: {_listed(dict(refused.most_common()))}"),
        ("clients in a round, mean", f"{np.mean([row['participants'] for row in rounds]):.2f}"),
        ("seconds a round, median (longest)", f"{np.median(seconds):.1f} ({max(seconds):.0f})"),
        ("accuracy", f"{whole['accuracy']:.3f}"),
        ("accuracy without faults, in one process", f"{whole['local_accuracy']:.3f}"),
        ("processes left", f"{whole['processes_left']}"),
        ("descriptors left in the server", f"{whole['descriptors_left']}"),
        ("files left in the temporary folder", f"{whole['files_left_in_tmp']}"),
    ]
    for role in rounds[0]["memory"]:
        cells.append((f"memory of {role}, MiB", _trended([row["memory"][role] for row in rounds])))
    for role in ("server", "superlink", "supernodes"):
        cells.append((f"descriptors of {role}", _trended([row["descriptors"][role] for row in rounds])))
    cells.append(("processes", _trended([row["processes"] for row in rounds])))
    return cells


def _trended(series: list[float]) -> str:
    found = trend(series)
    return f"{found.mean:.0f}, {'grows' if found.grows else 'steady'}: {found.rise:+.1f} ± {found.error:.1f}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _figure(rows: list[Row], arms: list[str]) -> Any:
    """Memory, clients and seconds against rounds, an arm a row."""
    panels = []
    for arm in arms:
        rounds = [row for row in rows if row["arm"] == arm and "round" in row]
        memory = [{"round": row["round"], "role": role, "MiB": size} for row in rounds for role, size in row["memory"].items()]
        points = [{key: row[key] for key in ("round", "participants", "seconds")} for row in rounds]
        x = alt.X("round:Q", title="round")
        drawn = alt.Chart(alt.InlineData(values=points))
        panels.append(
            alt.hconcat(
                alt.Chart(alt.InlineData(values=memory))
                .mark_line()
                .encode(x, alt.Y("MiB:Q", title="memory, MiB", scale=alt.Scale(type="log")), alt.Color("role:N", title=None))
                .properties(width=280, height=180, title=arm),
                drawn.mark_point(size=8).encode(x, alt.Y("participants:Q", title="clients")).properties(width=200, height=180),
                drawn.mark_point(size=8).encode(x, alt.Y("seconds:Q", title="seconds")).properties(width=200, height=180),
            )
        )
    return alt.vconcat(*panels).properties(
        title=alt.Title("A federation among failures", subtitle="after every round", subtitleColor=MUTED)
    )
