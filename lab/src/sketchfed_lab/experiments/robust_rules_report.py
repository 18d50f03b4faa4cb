"""The tables and the picture of `robust-rules`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt

from sketchfed.report import INK, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.tables import write_table

SPREADS = {"iid": "IID", "dirichlet": "Dirichlet(0.3)"}
Group = tuple[str, str, str, float, float, str]
"""Transport, data set, spread, size/dim, share and name of the attack: a line of the table."""


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md, backdoor.md, findings.md and figure.svg; the findings on the terminal."""
    rules = list(dict.fromkeys(row["key"]["rule"] for row in rows))
    groups: dict[Group, dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault(_group(row), {}).setdefault(row["key"]["rule"], []).append(row)
    ordered = sorted(groups, key=lambda group: (*group[:3], -group[3], group[4]))
    headings = ["transport", "data", "spread", "size", "attackers", "attack"]
    lines = [[*_named(group), *(_shown(groups[group].get(rule, []), accuracy) for rule in rules)] for group in ordered]
    write_table(folder / "table.md", [*headings, *rules], lines, printed=())
    doors = [group for group in ordered if group[5] == "backdoor"]
    lines = [[*_named(group)[:5], *(_shown(groups[group].get(rule, []), success) for rule in rules)] for group in doors]
    write_table(folder / "backdoor.md", [*headings[:5], *rules], lines, printed=())
    write_table(
        folder / "findings.md", ["size", "attackers", *rules], list(_findings(groups, rules)), printed=range(len(rules) + 2)
    )
    save_chart(figure(groups, rules), folder / "figure.svg")


def accuracy(row: Row) -> float:
    """The accuracy after the last round; 0 for a run that diverged."""
    return float(row["curve"][-1][1]) if row["curve"] and not row["diverged"] else 0.0


def success(row: Row) -> float:
    """The success rate of a backdoor; a model that diverged has none."""
    return float(row.get("success", 0.0))


def _group(row: Row) -> Group:
    transport, data, spread, ratio, share, attack = (
        row["key"][name] for name in ("transport", "data", "spread", "ratio", "share", "attack")
    )
    return transport, data, spread, ratio, share, attack


def _named(group: Group) -> list[str]:
    transport, data, spread, ratio, share, attack = group
    return [transport, data, SPREADS[spread], _size(ratio), f"{share:.0%}", attack]


def _size(ratio: float) -> str:
    return "1" if ratio == 1 else f"1/{1 / ratio:.4g}"


def _shown(rows: Sequence[Row], value: Any) -> str:
    found = [value(row) for row in rows]
    if not found:
        return "–"
    return f"{mean(found):.3f}" + (f" ± {stdev(found):.3f}" if len(found) > 1 else "")


def _findings(groups: dict[Group, dict[str, list[Row]]], rules: Sequence[str]) -> Iterable[list[str]]:
    """Points lost against the mean without attackers, the mean over data, spreads and attacks, and the worst of them."""
    places = sorted({(group[3], group[4]) for group in groups}, key=lambda place: (-place[0], place[1]))
    for ratio, share in places:
        line = [_size(ratio), f"{share:.0%}"]
        for rule in rules:
            lost = [
                100 * (_reference(groups, group) - mean(map(accuracy, found[rule])))
                for group, found in groups.items()
                if group[3:5] == (ratio, share) and rule in found
            ]
            line.append(f"{mean(lost):.1f} ({max(lost):.0f})" if lost else "–")
        yield line


def _reference(groups: dict[Group, dict[str, list[Row]]], group: Group) -> float:
    """The accuracy without attackers in the same place: of the mean if it was run, else of the first rule."""
    honest = groups[(*group[:4], 0.0, "none")]
    return mean(map(accuracy, honest.get("mean") or next(iter(honest.values()))))


def figure(groups: dict[Group, dict[str, list[Row]]], rules: Sequence[str]) -> Any:
    """Points lost by each rule under each attack, by the size of what is sent, at the middle share of attackers."""
    shares = sorted({group[4] for group in groups if group[4]})
    share = 0.2 if 0.2 in shares else shares[len(shares) // 2]
    attacks = list(dict.fromkeys(group[5] for group in groups))
    panels = []
    for ratio in sorted({group[3] for group in groups}, reverse=True):
        cells = []
        for attack in attacks:
            for rule in rules:
                lost = [
                    100 * (_reference(groups, group) - mean(map(accuracy, found[rule])))
                    for group, found in groups.items()
                    if group[3] == ratio and group[5] == attack and group[4] in (0.0, share) and rule in found
                ]
                if lost:
                    cells.append({"attack": attack, "rule": rule, "lost": mean(lost), "text": f"{mean(lost):.0f}"})
        base = alt.Chart(alt.InlineData(values=cells)).encode(
            alt.X("rule:N", sort=list(rules), title=None).axis(labelAngle=-40),
            alt.Y("attack:N", sort=attacks, title=None),
        )
        color = alt.Color("lost:Q", title="points lost", scale=alt.Scale(scheme="oranges", domain=[0, 60], clamp=True))
        title = alt.Title(f"{_size(ratio)} of the numbers", fontSize=12, color=INK)
        boxes, texts = base.mark_rect().encode(color), base.mark_text(fontSize=11, color=INK).encode(text="text:N")
        panels.append(alt.layer(boxes, texts).properties(width=36 * len(rules), height=24 * len(attacks), title=title))
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            f"Points of accuracy that {share:.0%} attackers cost",
            subtitle="against the mean without attackers; means over data sets, spreads and seeds",
        )
    )
