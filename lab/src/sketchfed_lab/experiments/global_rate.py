"""Which global step suits a sketch of a given size: measured, beside the projection form with error feedback."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from sketchfed.algorithms import default_global_rate
from sketchfed.report import INK, MUTED, save_chart
from sketchfed.runs import Case, Row
from sketchfed_lab.experiments.arms import accuracy, run_arms
from sketchfed_lab.experiments.tables import write_table


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Each rate with each size, on a validation split."""

    data_sets: list[str]
    inverse_ratios: list[int]
    percent_rates: list[int]
    seeds: list[int]
    rounds: int
    processes: int


WORK: dict[str, dict[str, Any]] = {
    "digits": {
        "data": {"name": "digits", "clients": 20, "validation": 0.2},
        "model": {"name": "mlp", "hidden": [64, 64]},
        "algorithm": {"local_steps": 5, "local_rate": 0.5},
    },
    "mnist": {
        "data": {"name": "mnist", "clients": 100, "validation": 0.1},
        "model": {"name": "mlp", "hidden": [64]},
        "algorithm": {"participation": 0.1, "batch": 10, "local_rate": 0.1},
    },
}
WORK["fashion_mnist"] = WORK["mnist"] | {"data": WORK["mnist"]["data"] | {"name": "fashion_mnist"}}


def arms(settings: Settings) -> list[Case]:
    """Both forms, all sizes, all rates."""
    made = []
    for data in settings.data_sets:
        for inverse in settings.inverse_ratios:
            for form in ("unbiased", "projection"):
                for percent in settings.percent_rates if form == "unbiased" else [50, 100]:
                    for seed in settings.seeds:
                        work = WORK[data]
                        algorithm = {"name": "iterative", "form": form, "global_rate": percent / 100, "rounds": settings.rounds}
                        tables = {
                            **work,
                            "seed": seed,
                            "algorithm": work["algorithm"] | algorithm,
                            "sketch": {"name": "srht", "ratio": 1 / inverse},
                            "engine": {"evaluate_every": max(1, settings.rounds // 10)},
                        }
                        key = {"data": data, "inverse_ratio": inverse, "form": form, "rate": percent / 100, "seed": seed}
                        made.append(Case(key=key, tables=tables))
    return made


def run(settings: Settings, folder: Path) -> None:
    """Run all arms (results.jsonl), then write table.md and figure.svg."""
    rows = run_arms(arms(settings), folder / "results.jsonl", processes=settings.processes, title="global rates")
    means = _means(rows)
    write_table(folder / "table.md", _HEADINGS, _summary(means), printed=(0, 1, 2, 4, 5, 7, 10))
    save_chart(_figure(means), folder / "figure.svg")


def _means(rows: list[Row]) -> list[dict[str, Any]]:
    """Mean loss and accuracy over seeds of each data set, size, form and rate."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(json.dumps({k: v for k, v in row["key"].items() if k != "seed"}), []).append(row)
    return [
        json.loads(key)
        | {
            "accuracy": sum(map(accuracy, group)) / len(group),
            "loss": sum(math.inf if row["diverged"] else row["curve"][-1][1] for row in group) / len(group),
            "seeds": len(group),
        }
        for key, group in groups.items()
    ]


def _best(means: list[dict[str, Any]], data: str, inverse: int, form: str) -> dict[str, Any]:
    chosen = [m for m in means if (m["data"], m["inverse_ratio"], m["form"]) == (data, inverse, form)]
    return min(chosen, key=lambda m: float(m["loss"]))


def _summary(means: list[dict[str, Any]]) -> list[list[str]]:
    cases = sorted({(m["data"], m["inverse_ratio"]) for m in means})
    lines = []
    for data, inverse in cases:
        unbiased, projection = (_best(means, data, inverse, form) for form in ("unbiased", "projection"))
        default = default_global_rate(1 / inverse)
        near = min(
            (m for m in means if (m["data"], m["inverse_ratio"], m["form"]) == (data, inverse, "unbiased")),
            key=lambda m: abs(math.log(m["rate"] / default)),
        )
        lines.append(
            [
                data,
                f"1/{inverse}",
                f"{unbiased['rate']:.2f}",
                f"{unbiased['loss']:.3f}",
                f"{unbiased['accuracy']:.3f}",
                f"{default:.2f}",
                f"{near['loss']:.3f}",
                f"{near['accuracy']:.3f}",
                f"{projection['rate']:.2f}",
                f"{projection['loss']:.3f}",
                f"{projection['accuracy']:.3f}",
            ]
        )
    return lines


_HEADINGS = (
    *("data", "size/dim", "best rate", "loss", "accuracy", "default rate", "loss near it", "accuracy near it"),
    *("projection: best rate", "loss", "projection: accuracy"),
)


def _figure(means: list[dict[str, Any]]) -> Any:
    """Held-out loss against the rate, a line for each size, the default marked."""
    data = [m for m in means if m["form"] == "unbiased" and m["loss"] < 2.5]
    marks = [
        {
            "data": name,
            "inverse_ratio": inverse,
            "rate": default_global_rate(1 / inverse),
            "loss": _best(means, name, inverse, "unbiased")["loss"],
        }
        for name, inverse in sorted({(m["data"], m["inverse_ratio"]) for m in data})
    ]
    x = alt.X("rate:Q", title="global rate", scale=alt.Scale(type="log", domain=[0.04, 1.15], nice=False))
    y = alt.Y("loss:Q", title="held-out loss", scale=alt.Scale(type="log", nice=False))
    color = alt.Color("inverse_ratio:O", title="dim/size", scale=alt.Scale(scheme="viridis"))
    lines = alt.Chart().mark_line(point=True).encode(x, y, color)
    defaults = alt.Chart().mark_point(shape="diamond", size=120, filled=False, strokeWidth=2).encode(x, y, color)
    panels = [
        (
            alt.layer(
                lines.properties(data=alt.InlineData(values=[m for m in data if m["data"] == name])),
                defaults.properties(data=alt.InlineData(values=[m for m in marks if m["data"] == name])),
            ).properties(width=300, height=260, title=alt.Title(name, fontSize=12, color=INK))
        )
        for name in sorted({m["data"] for m in data})
    ]
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            "The global step that suits a sketch",
            subtitle="diamonds: the default rate, at the height of the best loss",
            subtitleColor=MUTED,
        )
    )
