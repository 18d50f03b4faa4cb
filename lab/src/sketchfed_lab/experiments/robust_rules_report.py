"""The tables and the picture of `robust-rules`."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import altair as alt
from rich.console import Console

from sketchfed.report import INK, save_chart
from sketchfed.runs import Row
from sketchfed_lab.experiments.intervals import CONFIDENCE
from sketchfed_lab.experiments.robust_rules_pairs import Pair, pairs, settings_of, summary
from sketchfed_lab.experiments.tables import markdown, print_table, write_table

SPREADS = {"iid": "IID", "dirichlet": "Dirichlet(0.3)"}
TRANSPORTS = {"clear": "in the clear", "groups": "secure groups"}
Group = tuple[str, str, str, float, float, str]
"""Transport, data set, spread, size/dim, share and name of the attack: a line of the table."""
Groups = dict[Group, dict[str, list[Row]]]
"""The rows of each line, by rule."""


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write table.md, backdoor.md, findings.md and figure.svg, and print the tables of the findings."""
    rules = list(dict.fromkeys(row["key"]["rule"] for row in rows))
    groups: Groups = {}
    for row in rows:
        groups.setdefault(_group(row), {}).setdefault(row["key"]["rule"], []).append(row)
    ordered = sorted(groups, key=lambda group: (*group[:3], -group[3], group[4]))
    headings = ["transport", "data", "spread", "size", "attackers", "attack"]
    lines = [[*_named(group), *(_shown(groups[group].get(rule, []), accuracy) for rule in rules)] for group in ordered]
    write_table(folder / "table.md", [*headings, *rules], lines, printed=())
    doors = [group for group in ordered if group[5] == "backdoor"]
    lines = [[*_named(group)[:5], *(_shown(groups[group].get(rule, []), success) for rule in rules)] for group in doors]
    write_table(folder / "backdoor.md", [*headings[:5], *rules], lines, printed=())
    _write_findings(rows, groups, rules, folder / "findings.md")
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


def _write_findings(rows: Sequence[Row], groups: Groups, rules: Sequence[str], path: Path) -> None:
    """The answers, the paired differences that they follow from, and what attackers cost each rule."""
    found = pairs(rows, accuracy)
    attacked = [pair for pair in found if pair.attack != "none"]
    attacks = list(dict.fromkeys(pair.attack for pair in attacked))
    everywhere = list(dict.fromkeys(pair.attack for pair in found))
    doors = [pair for pair in pairs(rows, success) if pair.attack == "backdoor"]
    attack, rule, net, difference = (attrgetter(name) for name in ("attack", "rule", "net", "difference"))
    tables = [
        ("Sketched minus dense, net, by attack", _compared(attacked, net, attack, attacks)),
        ("Sketched minus dense, net, by rule", _compared(attacked, net, rule, rules)),
        ("Sketched minus dense, accuracy, by attack", _compared(found, difference, attack, everywhere)),
        ("Sketched minus dense, accuracy, by rule", _compared(found, difference, rule, rules)),
        ("Success of the backdoor, sketched minus dense, by rule", _compared(doors, difference, rule, rules)),
        ("Points lost", (["transport", "size", "attackers", *rules], list(_lost(groups, rules)))),
    ]
    said = [*_answers(attacked, attacks, rules), *_door_answers(doors, rules)]
    answers = "".join(f"- {line}\n" for line in said)
    parts = [f"## {title}\n\n{markdown(headings, lines)}" for title, (headings, lines) in tables]
    path.write_text("\n".join([f"# Where sketching helps or hurts\n\n{answers}\n{METHOD}", *parts]))
    print_table(*tables[-1][1])
    Console().print(answers, highlight=False)


METHOD = f"""Runs are compared in pairs: a sketched and a dense run with the same transport, data set, spread, rule, attack,
share of attackers and seed. "Accuracy" is the difference of their final accuracies in points. "Net" subtracts the same
difference without attackers. It is the difference in what the attackers cost: above zero, sketching makes a rule more robust.

± is a {CONFIDENCE:.0%} interval by Student's t over clusters. A cluster is the mean over all pairs with one data set, spread
and seed. Bold: the interval leaves out zero. Intervals are not corrected for their number, so one in twenty is bold by chance.
"Above 0" counts pairs. "Points lost" are against the mean without attackers of the same transport, size and seed: the mean
over data sets, spreads, attacks and seeds, and in parentheses the worst data set, spread and attack.

A backdoor hardly costs accuracy. "Success" is the share of test images of other classes that the trigger turns into its
class, in points: above zero, the backdoor works better through sketches.
"""


def _compared(
    found: Sequence[Pair], value: Callable[[Pair], float], column: Callable[[Pair], str], columns: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """A line for each transport, share and size: the mean difference in each column, and over all of them."""
    lines = []
    for setting in settings_of(found):
        here = [pair for pair in found if pair.setting == setting]
        cells = [[pair for pair in here if column(pair) == name] for name in columns]
        texts = [str(summary(cell, value)) if cell else "–" for cell in cells]
        total = summary(here, value)
        transport, share, ratio = setting
        counts = [str(total), f"{total.positive} of {total.pairs}", str(len(total.values))]
        lines.append([transport, f"{share:.0%}", _size(ratio), *texts, *counts])
    return ["transport", "attackers", "size", *columns, "all", "above 0", "clusters"], lines


def _answers(found: Sequence[Pair], attacks: Sequence[str], rules: Sequence[str]) -> Iterable[str]:
    """One sentence for each transport, share and size, from the intervals of the net differences that leave out zero."""
    for setting in settings_of(found):
        here = [pair for pair in found if pair.setting == setting]
        named = [(f"against {name}", [pair for pair in here if pair.attack == name]) for name in attacks]
        named += [(f"with {name}", [pair for pair in here if pair.rule == name]) for name in rules]
        clear = {name: each for name, chosen in named if chosen and (each := summary(chosen, attrgetter("net"))).sign}
        said = []
        for verb, sign in (("helps", 1), ("hurts", -1)):
            listed = [f"{name} ({each.points:+.1f})" for name, each in clear.items() if each.sign == sign]
            said.append(f"{verb} {', '.join(listed)}" if listed else f"{verb} nowhere that shows")
        transport, share, ratio = setting
        yield f"{transport}, {share:.0%} attackers, {_size(ratio)}: sketching {said[0]}; it {said[1]}."


def _door_answers(found: Sequence[Pair], rules: Sequence[str]) -> Iterable[str]:
    """One sentence for each transport, share and size: with which rules a backdoor works better or worse through sketches."""
    for setting in settings_of(found):
        here = [(name, [pair for pair in found if (pair.setting, pair.rule) == (setting, name)]) for name in rules]
        clear = {name: each for name, own in here if own and (each := summary(own, attrgetter("difference"))).sign}
        said = []
        for word, sign in (("better", 1), ("worse", -1)):
            listed = [f"{name} ({each.points:+.0f})" for name, each in clear.items() if each.sign == sign]
            said.append(f"{word} with {', '.join(listed)}" if listed else f"{word} nowhere that shows")
        transport, share, ratio = setting
        yield f"{transport}, {share:.0%} attackers, {_size(ratio)}: through sketches a backdoor works {said[0]}, and {said[1]}."


def _lost(groups: Groups, rules: Sequence[str]) -> Iterable[list[str]]:
    """Points lost against the mean without attackers, the mean over data, spreads and attacks, and the worst of them."""
    places = sorted({(group[0], group[3], group[4]) for group in groups}, key=lambda place: (place[0], -place[1], place[2]))
    for transport, ratio, share in places:
        line = [transport, _size(ratio), f"{share:.0%}"]
        for rule in rules:
            lost = [
                points
                for group, found in groups.items()
                if (group[0], *group[3:5]) == (transport, ratio, share) and (points := _points(groups, group, rule)) is not None
            ]
            line.append(f"{mean(lost):.1f} ({max(lost):.0f})" if lost else "–")
        yield line


def _points(groups: Groups, group: Group, rule: str) -> float | None:
    """The points that a rule loses in a place against the mean without attackers, seed by seed. None if it was not run there.

    If the mean was not run, the first rule takes its place.
    """
    honest = groups[(*group[:4], 0.0, "none")]
    best = {row["key"]["seed"]: accuracy(row) for row in honest.get("mean") or next(iter(honest.values()))}
    rows = groups[group].get(rule)
    return None if rows is None else 100 * mean(best[row["key"]["seed"]] - accuracy(row) for row in rows)


def figure(groups: Groups, rules: Sequence[str]) -> Any:
    """Points lost by each rule under each attack: a panel for each size that is sent, in a row for each transport and share."""
    rows = sorted({(group[0], group[4]) for group in groups if group[4]})
    sizes = sorted({group[3] for group in groups}, reverse=True)
    panels = [alt.hconcat(*(_panel(groups, rules, transport, share, size) for size in sizes)) for transport, share in rows]
    return alt.vconcat(*panels).properties(
        title=alt.Title(
            "Points of accuracy that attackers cost",
            subtitle="against the mean without attackers, same transport and size; means over data sets, spreads and seeds",
        )
    )


def _panel(groups: Groups, rules: Sequence[str], transport: str, share: float, ratio: float) -> Any:
    """A square for each rule and attack, with the points lost in it."""
    attacks = list(dict.fromkeys(group[5] for group in groups))
    cells = []
    for attack in attacks:
        for rule in rules:
            lost = [
                points
                for group in groups
                if (group[0], group[3], group[5]) == (transport, ratio, attack)
                and group[4] in (0.0, share)
                and (points := _points(groups, group, rule)) is not None
            ]
            if lost:
                cells.append(
                    {"attack": attack, "rule": rule, "lost": mean(lost), "text": f"{mean(lost):.0f}".replace("-0", "0")}
                )
    base = alt.Chart(alt.InlineData(values=cells)).encode(
        alt.X("rule:N", sort=list(rules), title=None).axis(labelAngle=-40),
        alt.Y("attack:N", sort=attacks, title=None),
    )
    color = alt.Color("lost:Q", title="points lost", scale=alt.Scale(scheme="oranges", domain=[0, 60], clamp=True))
    title = alt.Title(f"{TRANSPORTS[transport]}, {share:.0%} attack, size {_size(ratio)}", fontSize=12, color=INK)
    ink = alt.condition("datum.lost > 40", alt.value("white"), alt.value(INK))
    texts = base.mark_text(fontSize=11).encode(text="text:N", color=ink)
    return alt.layer(base.mark_rect().encode(color), texts).properties(
        width=36 * len(rules), height=24 * len(attacks), title=title
    )
