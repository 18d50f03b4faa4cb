"""Scores, the table and the picture of `audit-dbcl`."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import altair as alt
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sketchfed.attacks import Guess, psnr, recognised, ssim
from sketchfed.audits import png_base64
from sketchfed.data import DataSet
from sketchfed.report import INK, MUTED, PALETTE, save_chart
from sketchfed.runs import Row
from sketchfed.training import Examples
from sketchfed_lab.experiments.tables import write_table

POOL = 1_000
"""Public images among which an original is to be picked out."""


def decibels(guesses: Sequence[Guess | None], truths: Sequence[Examples]) -> list[float]:
    """PSNR of each; of what failed, 0."""
    return [0.0 if g is None else float(psnr(g.x, truth.x)) for g, truth in zip(guesses, truths, strict=True)]


def scored(guesses: Sequence[Guess | None], truths: Sequence[Examples], dataset: DataSet) -> dict[str, Any]:
    """PSNR of each, mean SSIM, and shares: right labels, the class of the nearest public image, originals that are nearest.

    Originals are picked out if they are nearer to the guess than any of `POOL` public images. What failed counts as wrong.
    """
    pairs = [(guess, truth) for guess, truth in zip(guesses, truths, strict=True) if guess is not None]
    pool, labels = dataset.prepare(dataset.x_test), dataset.y_test

    def nearest(x: Tensor) -> Tensor:
        chosen = labels[torch.cdist(x.flatten(1), pool.flatten(1)).argmin(1)]
        return one_hot(chosen, dataset.outputs).float()

    def picked(guess: Tensor, truth: Tensor) -> bool:
        own = (guess - truth).norm()
        return bool(own < torch.cdist(guess.flatten(1), pool[:POOL].flatten(1)).min())

    total = len(truths)
    return {
        "psnr": [short(value) for value in decibels(guesses, truths)],
        "ssim": short(sum(float(ssim(g.x, t.x)) for g, t in pairs) / total),
        "labels": sum(int(g.y) == int(t.y) for g, t in pairs) / total,
        "recognised": sum(recognised(nearest, g.x, t.y) for g, t in pairs) / total,
        "picked out": sum(picked(g.x, t.x) for g, t in pairs) / total,
        "failures": total - len(pairs),
        "pictures": [None if guess is None else png_base64(guess.x[0]) for guess in guesses[:3]],
    }


def short(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


# The table ----------------------------------------------------------------------------------------------------------------

REFERENCE, PAPER, OURS = "nothing defends", "the paper's attack", "other attacks"
THROUGH, DIVIDED = "all broadcasts, through the sketch", "all broadcasts, first layer, several updates"
LABELS = {
    "undefended": "FedAvg, matching",
    "undefended, DLG": "FedAvg, DLG",
    "option I": "Option I for the step",
    "option II": "Option II for the step",
    "what is not sketched": "what is not sketched, matching",
    "all broadcasts": "all broadcasts, plain model",
    THROUGH: "all broadcasts, sketched model",
    DIVIDED: "all broadcasts, division",
    "as printed": "App. A.1, matching",
    "as printed, DLG": "App. A.1, DLG",
    "through the sketch": "sketched model, matching",
    "through the sketch, DLG": "sketched model, DLG",
    "several updates": "sketched model, several updates",
    "first layer": "division, one update",
    "first layer, several updates": "division, several updates",
}
ON_FEDAVG = {
    "several updates": "FedAvg, several updates",
    "first layer": "FedAvg, division",
    "first layer, several updates": "FedAvg, division, several updates",
}
STEPS = ("data", "ratio", "part of rounds", "layer", "estimate", "rounds", "cosine", "cosine, range", "error", "accuracy")
EXAMPLES = (
    *("who", "data", "model", "ratio", "attack", "whose", "PSNR", "PSNR, range", "chance", "SSIM", "labels", "class seen"),
    *("picked out", "cosine of the change", "variation", "failures"),
)


def write(rows: Sequence[Row], folder: Path) -> None:
    """table.md and figure.svg, and the tables on the terminal."""
    path, written = folder / "table.md", []
    for title, headings, lines, printed in (
        ("What a client learns of the server's steps", STEPS, _step_lines(rows), (0, 1, 2, 3, 4, 6, 8)),
        ("What is made of examples", EXAMPLES, _example_lines(rows), (0, 1, 2, 3, 4, 6, 8, 12)),
    ):
        write_table(path, headings, lines, printed=printed)
        written.append(f"## {title}\n\n{path.read_text()}")
    path.write_text("\n".join(written))
    save_chart(figure(rows), folder / "figure.svg")


def _step_lines(rows: Sequence[Row]) -> list[list[str]]:
    """A line an estimate and layer, over the rounds for which all have one; the smoother has one for missed rounds, too."""
    lines = []
    for row in _of(rows, "steps"):
        key, estimates = row["key"], row["estimates"]
        seen = {line[2] for line in estimates if line[0] == "option I"}
        for layer in dict.fromkeys(line[1] for line in estimates):
            for name in dict.fromkeys(line[0] for line in estimates):
                own = [line for line in estimates if line[:2] == [name, layer]]
                for chosen, label in ((seen, name), ({line[2] for line in own} - seen, f"{name}, other rounds")):
                    errors, cosines = ([line[place] for line in own if line[2] in chosen] for place in (3, 4))
                    if not cosines:
                        continue
                    figures = [f"{median(cosines):.3f}", f"{min(cosines):.3f} to {max(cosines):.3f}", f"{median(errors):.3g}"]
                    about = [key["data"], key["ratio"], f"{key['participation']:g}", layer, label, str(len(cosines))]
                    lines.append([*about, *figures, f"{row['accuracy']:.3f}"])
    return lines


def _example_lines(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for row in [*_of(rows, "client"), *_of(rows, "server")]:
        key, chance = row["key"], f"{median(row['chance']['psnr']):.1f}"
        plain = key["ratio"] == "plain"
        for name, found in row["attacks"].items():
            shares = [f"{found[share]:.2f}" for share in ("labels", "recognised", "picked out")]
            cosines, variation = found.get("cosines"), found.get("variation")
            lines.append(
                [
                    *(key["part"], key["data"], key["model"], key["ratio"], _label(name, plain), _whose(name, plain)),
                    *(f"{median(found['psnr']):.1f}", f"{min(found['psnr']):.1f} to {max(found['psnr']):.1f}", chance),
                    *(f"{found['ssim']:.2f}", *shares, f"{median(cosines):.3f}" if cosines else "—"),
                    *("—" if variation is None else f"{variation:g}", str(found["failures"])),
                ]
            )
        originals = row["originals"]
        of_originals = ["—", "—", chance, "1.00", "1.00", f"{originals['recognised']:.2f}", "1.00", "—", "—", "0"]
        lines.append([key["part"], key["data"], key["model"], key["ratio"], "the originals", "—", *of_originals])
    return lines


def _of(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row["key"]["part"] == part]


def _label(name: str, plain: bool) -> str:
    return (ON_FEDAVG if plain and name in ON_FEDAVG else LABELS)[name]


def _whose(name: str, plain: bool) -> str:
    if plain:
        return REFERENCE
    return PAPER if name.startswith(("option", "as printed")) else OURS


# The picture --------------------------------------------------------------------------------------------------------------

COLOUR = alt.Color(
    "whose:N",
    legend=alt.Legend(title=None, orient="top", direction="horizontal", offset=10),
    scale=alt.Scale(domain=[REFERENCE, PAPER, OURS], range=[MUTED, PALETTE[1], PALETTE[0]]),
)
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
SHOWN = (
    ("client", "mlp", 0, {"undefended": "FedAvg", "option I": "Option I", THROUGH: "sketched model", DIVIDED: "division"}),
    ("client", "cnn", 0, {"undefended": "FedAvg", "option I": "Option I", THROUGH: "sketched model"}),
    *(
        ("server", "cnn", place, {"undefended": "FedAvg", "as printed": "App. A.1", "through the sketch": "sketched model"})
        for place in (0, -1)
    ),
)
"""Of which federation there are pictures, the first or the last of its kind, and of which attacks."""


def figure(rows: Sequence[Row]) -> Any:
    """Cosines of steps above; then PSNR of every victim, from a client's seat and from the server's; then some pictures."""
    first = rows[0]["key"]["data"] if rows else ""
    parts = [alt.hconcat(*(_cosines(row) for row in _of(rows, "steps") if row["key"]["data"] == first), spacing=18)]
    for part, model in (("client", ""), ("server", "mlp"), ("server", "cnn")):
        chosen = [row for row in _of(rows, part) if row["key"]["model"].startswith(model) and row["key"]["ratio"] != "plain"]
        if chosen:
            parts.append(alt.hconcat(*(_decibels(row, rows, index == 0) for index, row in enumerate(chosen)), spacing=14))
    parts.append(_pictures(rows))
    title = alt.Title(
        "Double-blind learning: the paper's attacks, and others",
        subtitle=[
            "top: cosine of a client's estimate with the server's step, first layer, by how often it takes part",
            "below: PSNR of examples, every victim (small) and the median (large); the line is the mean image's",
        ],
    )
    return alt.vconcat(*parts, spacing=26).properties(title=title).resolve_scale(color="shared")


def _cosines(row: Row) -> Any:
    layer = row["estimates"][0][1]
    whose = {"option I": PAPER, "all broadcasts": OURS}  # Option II has the cosines of Option I where buckets are equal
    points = [
        {"round": line[2], "cosine": line[4], "whose": whose[line[0]]}
        for line in row["estimates"]
        if line[1] == layer and line[0] in whose
    ]
    share = {1.0: "every round", 0.5: "half of the rounds"}.get(row["key"]["participation"], "")
    heading = _heading(f"{NAMES[row['key']['data']]}, MLP, {_size(row)}: {share}")
    across = alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickMinStep=1, format="d"))
    down = alt.Y("cosine:Q", title="cosine", scale=alt.Scale(domain=[-0.2, 1]), axis=alt.Axis(values=[0, 0.5, 1]))
    chart = alt.Chart(alt.InlineData(values=points)).encode(across, down, COLOUR)
    return chart.mark_point(filled=True, size=22, opacity=1).properties(width=190, height=120, title=heading)


def _decibels(row: Row, rows: Sequence[Row], labelled: bool) -> Any:
    attacks = [
        (_label(name, plain), _whose(name, plain), found)
        for plain, results in ((True, _plain(row, rows)), (False, row["attacks"]))
        for name, found in sorted(results.items(), key=lambda item: [*LABELS].index(item[0]))
        if not (plain and name == "first layer, several updates")  # the same as with one
    ]
    attacks.sort(key=lambda each: [REFERENCE, PAPER, OURS].index(each[1]))
    points = [{"attack": label, "whose": whose, "dB": value} for label, whose, found in attacks for value in found["psnr"]]
    middle = [{"attack": label, "whose": whose, "dB": median(found["psnr"])} for label, whose, found in attacks]
    axis = alt.Axis(labelLimit=260, title=None, grid=False, ticks=False) if labelled else None
    down = alt.Y("attack:N", axis=axis, sort=[label for label, _, _ in attacks])
    across = alt.X("dB:Q", title="PSNR, dB", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(values=[0, 25, 50, 75, 100]))
    colour = COLOUR
    chance = alt.Chart(alt.InlineData(values=[{"dB": median(row["chance"]["psnr"])}])).mark_rule(color=INK, strokeDash=[3, 3])
    small = alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=14, opacity=0.45).encode(across, down, colour)
    large = alt.Chart(alt.InlineData(values=middle)).mark_point(filled=True, size=75, opacity=1).encode(across, down, colour)
    layered = alt.layer(chance.encode(x="dB:Q"), small, large)
    return layered.properties(width=175, height=17 * len(attacks), title=_heading(_about(row)))


def _plain(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """What attacks made of the same federation without sketches."""
    wanted = row["key"] | {"ratio": "plain"}
    return next((other["attacks"] for other in rows if other["key"] == wanted), {})


def _size(row: Row) -> str:
    ratio = str(row["key"]["ratio"])
    return {"0.5": "½", "0.25": "¼"}.get(ratio, ratio)


def _about(row: Row) -> str:
    seat = "a client" if row["key"]["part"] == "client" else "the server"
    return f"{NAMES[row['key']['data']]}, {row['key']['model'].upper()}, {_size(row)}: {seat}"


def _heading(text: str) -> Any:
    return alt.Title(text, fontSize=11, color=INK, offset=6, frame="group")


def _pictures(rows: Sequence[Row]) -> Any:
    """Originals, and what was made of them."""
    grids = []
    for part, model, place, names in SHOWN:
        found = [row for row in _of(rows, part) if row["key"]["model"] == model and row["key"]["ratio"] != "plain"]
        if found:
            row = found[place]
            attacks = _plain(row, rows) | row["attacks"]
            columns = [(label, attacks[name]) for name, label in names.items() if name in attacks]
            grids.append(_grid(row, [("original", row["originals"]), *columns]))
    return alt.hconcat(*grids, spacing=22)


def _grid(row: Row, columns: Sequence[tuple[str, Any]]) -> Any:
    side = 44
    cells = [
        {"column": label, "victim": number, "url": f"data:image/png;base64,{picture}"}
        for label, found in columns
        for number, picture in enumerate(found["pictures"])
        if picture is not None
    ]
    turned = alt.Axis(orient="bottom", title=None, labelAngle=-35, domain=False, ticks=False, grid=False)
    across = alt.X("column:N", sort=[label for label, _ in columns], axis=turned)
    chart = alt.Chart(alt.InlineData(values=cells)).mark_image(width=side, height=side)
    return chart.encode(across, alt.Y("victim:N", axis=None), url="url:N").properties(
        width=(side + 6) * len(columns), height=(side + 6) * 3, title=_heading(_about(row))
    )
