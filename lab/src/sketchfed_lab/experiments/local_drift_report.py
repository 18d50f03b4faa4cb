"""The tables and the figure of `local-drift`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt

from sketchfed.report import INK, PALETTE, save_chart, shown_bytes
from sketchfed.runs import Row
from sketchfed_lab.experiments.arms import accuracy
from sketchfed_lab.experiments.intervals import CONFIDENCE, Points
from sketchfed_lab.experiments.tables import markdown, print_table, shown_size, write_table

LAST = 5
"""An accuracy is the mean of this many scores, because scores go up and down from round to round. Tuning does the same."""
BASELINE = "FedAvg"

Runs = Mapping[tuple[int, str], Mapping[int, Row]]
"""The runs of each dim/size and arm, by seed."""
Measure = Callable[[Runs, int, str, int], float]
"""The accuracy in points of an arm at a dim/size, with a seed."""


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write table.md, findings.md and figure.svg, and print the table."""
    runs: dict[tuple[int, str], dict[int, Row]] = {}
    for row in rows:
        runs.setdefault((row["key"]["inverse_ratio"], row["key"]["arm"]), {})[row["key"]["seed"]] = row
    write_table(folder / "table.md", HEADINGS, [_line(runs, *place) for place in runs], printed=(0, 1, 2, 3, 5, 6, 9, 10))
    (folder / "findings.md").write_text(findings(runs))
    save_chart(figure(rows), folder / "figure.svg")


def at_equal_rounds(runs: Runs, inverse: int, arm: str, seed: int) -> float:
    """The accuracy at the end."""
    return 100 * accuracy(runs[inverse, arm][seed], last=LAST)


def at_equal_bytes(runs: Runs, inverse: int, arm: str, seed: int) -> float:
    """The accuracy by the time that an arm has sent and received as many bytes as FedAvg at the end, at the same size."""
    row = runs[inverse, arm][seed]
    return 100 * accuracy({**row, "curve": _affordable(runs, inverse, arm, seed)}, last=LAST)


def _affordable(runs: Runs, inverse: int, arm: str, seed: int) -> list[list[Any]]:
    budget = _bytes(runs[inverse, BASELINE][seed]["curve"][-1])
    return [point for point in runs[inverse, arm][seed]["curve"] if _bytes(point) <= budget]


def _bytes(point: Sequence[Any]) -> int:
    """What all clients have sent and received."""
    return int(point[3] + point[4])


HEADINGS = (
    *("size", "arm", "local rate", "global rate", "μ", "accuracy", "points against FedAvg", "sent", "received"),
    *("rounds at equal bytes", "accuracy there", "points against FedAvg there"),
)


def _line(runs: Runs, inverse: int, arm: str) -> list[str]:
    own = runs[inverse, arm]
    key, last = next(iter(own.values()))["key"], [row["curve"][-1] for row in own.values() if row["curve"]]
    rounds = [_affordable(runs, inverse, arm, seed)[-1][0] for seed, row in own.items() if row["curve"]]
    cells = [shown_size(inverse), arm, f"{key['local_rate']:g}", f"{key['global_rate']:g}"]
    cells.append(f"{key['proximal']:g}" if "proximal" in key else "")
    cells += [_spread(runs, inverse, arm, at_equal_rounds), _against(runs, inverse, arm, at_equal_rounds)]
    cells += [shown_bytes(mean(point[column] for point in last)) for column in (3, 4)]
    cells.append(f"{mean(rounds):.0f}")
    return [*cells, _spread(runs, inverse, arm, at_equal_bytes), _against(runs, inverse, arm, at_equal_bytes)]


def _spread(runs: Runs, inverse: int, arm: str, measure: Measure) -> str:
    found = [measure(runs, inverse, arm, seed) for seed in runs[inverse, arm]]
    return f"{mean(found):.1f}" + (f" ± {stdev(found):.1f}" if len(found) > 1 else "")


def _against(runs: Runs, inverse: int, arm: str, measure: Measure) -> str:
    return "" if arm == BASELINE else str(gap(runs, inverse, arm, BASELINE, measure))


def gap(runs: Runs, inverse: int, first: str, second: str, measure: Measure) -> Points:
    """How many points more the first arm has than the second, seed by seed."""
    seeds = [seed for seed in runs[inverse, first] if seed in runs[inverse, second]]
    return Points(tuple(measure(runs, inverse, first, seed) - measure(runs, inverse, second, seed) for seed in seeds))


METHOD = f"""Arms are compared in pairs of runs with the same seed, which share their partition, first weights and clients of
each round. A cell is the mean difference of their accuracies in points over the seeds, the first arm minus the second. ± is a
{CONFIDENCE:.0%} interval by Student's t over the seeds. Bold: the interval leaves out zero. Intervals are not corrected for
their number, so one in twenty is bold by chance.

"Change" is the difference at a sketch's size minus that of whole updates, seed by seed: what the sketch does to a pair. A pair
changes places if its difference is bold at both sizes, with opposite signs.
"""


def findings(runs: Runs) -> str:
    """Rankings at each size, differences of all pairs, and what sketches change in them."""
    parts = ["# Does a sketch change the ranking?\n", METHOD]
    for title, measure in (("At equal rounds", at_equal_rounds), ("At equal bytes", at_equal_bytes)):
        headings, lines = _pairs(runs, measure)
        said = "".join(f"- {line}\n" for line in [*_rankings(runs, measure), *_swaps(runs, measure)])
        parts.append(f"## {title}\n\n{said}\n{markdown(headings, lines)}")
        print_table(headings, lines)
    return "\n".join(parts)


def _sizes(runs: Runs) -> list[int]:
    return sorted({inverse for inverse, _ in runs})


def _arms(runs: Runs) -> list[str]:
    return list(dict.fromkeys(arm for _, arm in runs))


def _rankings(runs: Runs, measure: Measure) -> Iterator[str]:
    for inverse in _sizes(runs):
        means = {arm: mean(measure(runs, inverse, arm, seed) for seed in runs[inverse, arm]) for arm in _arms(runs)}
        ranked = sorted(means, key=lambda arm: -means[arm])
        yield f"Size {shown_size(inverse)}: {', '.join(f'{arm} ({means[arm]:.1f})' for arm in ranked)}."


def _swaps(runs: Runs, measure: Measure) -> Iterator[str]:
    dense, *sketched = _sizes(runs)
    for inverse in sketched:
        swapped = [
            f"{first} and {second}"
            for first, second in combinations(_arms(runs), 2)
            if gap(runs, dense, first, second, measure).sign * gap(runs, inverse, first, second, measure).sign == -1
        ]
        said = f"{'; '.join(swapped)} change places" if swapped else "no pair changes places"
        yield f"Size {shown_size(inverse)} against {shown_size(dense)}: {said} beyond the intervals."


def _pairs(runs: Runs, measure: Measure) -> tuple[list[str], list[list[str]]]:
    dense, *sketched = sizes = _sizes(runs)
    lines = []
    for first, second in combinations(_arms(runs), 2):
        gaps = {inverse: gap(runs, inverse, first, second, measure) for inverse in sizes}
        changes = [
            Points(tuple(after - before for after, before in zip(gaps[inverse].values, gaps[dense].values, strict=True)))
            for inverse in sketched
        ]
        lines.append([first, second, *map(str, gaps.values()), *map(str, changes)])
    headings = ["first", "second", *(f"size {shown_size(inverse)}" for inverse in sizes)]
    return [*headings, *(f"change at {shown_size(inverse)}" for inverse in sketched)], lines


def figure(rows: Sequence[Row]) -> Any:
    """Mean accuracy of each arm against rounds and against bytes: a row of panels for each size."""
    arms = list(dict.fromkeys(row["key"]["arm"] for row in rows))
    colours = alt.Scale(domain=arms, range=[INK, *PALETTE[: len(arms) - 1]])
    panels = []
    for inverse in sorted({row["key"]["inverse_ratio"] for row in rows}):
        points = [
            {"round": curves[0][0], "MB": mean(_bytes(point) for point in curves) / 1e6, "arm": arm}
            | {"accuracy": mean(point[2] for point in curves)}
            for arm in arms
            for curves in zip(*(row["curve"] for row in _of(rows, inverse, arm)), strict=False)
        ]
        base = alt.Chart(alt.InlineData(values=points)).mark_line(clip=True, strokeWidth=1.6)
        base = base.encode(
            alt.Y("accuracy:Q", scale=alt.Scale(domain=[0.6, 0.88], nice=False), title="test accuracy"),
            alt.Color("arm:N", scale=colours, title=None),
        )
        title = alt.Title(f"size {shown_size(inverse)}", fontSize=12, color=INK)
        beside = [base.encode(alt.X("round:Q", title="round")), base.encode(alt.X("MB:Q", title="MB sent and received"))]
        panels.append(alt.hconcat(*(chart.properties(width=320, height=200, title=title) for chart in beside)))
    subtitle = "mean test accuracy over seeds, each arm as it was tuned"
    return alt.vconcat(*panels).properties(title=alt.Title("Clients with unlike data", subtitle=subtitle))


def _of(rows: Sequence[Row], inverse: int, arm: str) -> list[Row]:
    return [row for row in rows if (row["key"]["inverse_ratio"], row["key"]["arm"]) == (inverse, arm)]
