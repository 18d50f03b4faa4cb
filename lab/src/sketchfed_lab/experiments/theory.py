"""Song et al. 2023, Thms 5.1 and 5.3 and Cor. 5.2: do the bounds hold, and does sketching cost no communication?"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from sketchfed import PublicSeed
from sketchfed.data import load, partition
from sketchfed.errors import InputError
from sketchfed.planner import (
    DENSE,
    Analysis,
    LinearRegression,
    Problem,
    Regression,
    SketchAt,
    Snapshot,
    admissible_rate,
    convex_bound,
    curvature_alpha,
    regression_on,
    rounds_to,
    simulate,
    strongly_convex_bound,
)
from sketchfed.sketches import Sketch, make_sketch
from sketchfed_lab.experiments.theory_report import markdown, mean_and_error, save_figures, thinned

RULES: dict[str, tuple[str, Analysis]] = {
    "published": ("alpha", "published"),
    "exact α": ("exact_alpha", "published"),
    "sharpened": ("exact_alpha", "sharpened"),
    "curvature": ("curvature", "curvature"),
}
"""How theory chooses a step size: which α, and which version of the theorem."""
GRID = [16 * 2 ** (-step / 2) for step in range(21)]
"""Step sizes that are tried when it is tuned, times L: 16 down to 1/64."""
ROUNDING = 1e-12
"""Bounds below this are not compared: the difference of two losses has rounding errors of a thousandth of it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Two convex problems made of a9a, and how long and how often they are solved."""

    clients: int
    rows: int
    concentration: float
    regularisation: float
    local_steps: list[int]
    families: list[str]
    sizes: list[int]
    runs: int
    target: float
    tuned_targets: list[float]
    max_rounds: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem, number of local steps, family and size: everything that shares a sequence of sketches."""

    problem: str
    local_steps: int
    family: str
    size: int

    def sketch(self, seed: PublicSeed, dim: int) -> Sketch | None:
        return None if self.family == DENSE else make_sketch(self.family, dim=dim, size=self.size, seed=seed)


def cases(settings: Settings, dim: int) -> Iterator[Case]:
    for problem in ("logistic", "linear"):
        for steps in settings.local_steps:
            yield Case(problem=problem, local_steps=steps, family=DENSE, size=dim)
            for family in settings.families:
                for size in settings.sizes:
                    yield Case(problem=problem, local_steps=steps, family=family, size=size)


def regressions(settings: Settings) -> dict[str, Regression]:
    """Logistic regression with μ > 0, and least squares with μ = 0, on the same clients.

    Without regularisation logistic regression has no minimiser on a9a, since some features occur with one class only, and
    Assumption 3.1 asks for one; least squares always has one.
    """
    data = load("a9a")
    parts = partition(
        data,
        name="dirichlet",
        clients=settings.clients,
        seed=PublicSeed(settings.seed),
        concentration=settings.concentration,
        minimum=settings.rows,
    )
    logistic = regression_on(data, [part[: settings.rows] for part in parts], regularisation=settings.regularisation)
    signs = [2.0 * labels - 1 for labels in logistic.labels]
    return {"logistic": logistic, "linear": LinearRegression(features=logistic.features, labels=signs)}


class Bench:
    """The problems with their constants, and what is measured of a case."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.regressions = regressions(settings)
        self.dim = self.regressions["logistic"].dim

    @cache  # noqa: B019  one bench lives as long as the experiment
    def constants(self, problem: str) -> Problem:
        return self.regressions[problem].measure()

    def gaps(self, case: Case, snapshot: Snapshot) -> Tensor:
        """f − f(w*) of each run and rate, where the theorem looks: at w for μ > 0, at the average iterate for μ = 0."""
        problem = self.regressions[case.problem]
        point = snapshot.w if self.constants(case.problem).strongly_convex else snapshot.average
        return problem.loss(point) - problem.loss(problem.minimiser)

    def sketches(self, case: Case, purpose: str) -> SketchAt | None:
        if case.family == DENSE:
            return None
        seed = PublicSeed(self.settings.seed).child(purpose).child(case.family, case.size)
        seeds = [seed.child("run", run) for run in range(self.settings.runs)]

        def sketch_at(run: int, number: int) -> Sketch:
            return make_sketch(case.family, dim=self.dim, size=case.size, seed=seeds[run].child("round", number))

        return sketch_at

    def rules(self, case: Case) -> dict[str, tuple[float, Analysis]]:
        """The α and the theorem of each rule that has something to say about a case."""
        problem = self.constants(case.problem)
        sketch = case.sketch(PublicSeed(0), self.dim)
        found: dict[str, tuple[float, Analysis]] = {}
        for rule, (which, analysis) in RULES.items():
            if analysis == "curvature" and (case.local_steps > 1 or not problem.strongly_convex):
                continue
            if sketch is None:
                found[rule] = 0.0, analysis
            else:
                found[rule] = curvature_alpha(problem, sketch) if which == "curvature" else getattr(sketch, which), analysis
        return found

    def under_theory(self, case: Case) -> list[dict[str, Any]]:
        """Run at the largest step that each rule admits until all have reached the target; compare with the bounds."""
        problem, rules = self.constants(case.problem), self.rules(case)
        rates = [
            admissible_rate(problem, alpha=alpha, local_steps=case.local_steps, analysis=analysis)
            for alpha, analysis in rules.values()
        ]
        target = self.settings.target * float(problem.gap or 0)
        curves: list[list[tuple[int, float, float, float]]] = [[] for _ in rules]
        reached: dict[int, int] = {}
        for snapshot in self._run(case, rates, "theory"):
            gaps = self.gaps(case, snapshot)
            for arm, (alpha, analysis) in enumerate(rules.values()):
                mean, error = mean_and_error(gaps[:, arm])
                bound = self._bound(case, alpha, rates[arm], snapshot.round, analysis)
                if bound > ROUNDING:
                    curves[arm].append((snapshot.round, mean, error, bound))
                if mean <= target:
                    reached.setdefault(arm, snapshot.round)
            if len(reached) == len(rules):
                break
        return [
            self._row(case, rule)
            | {
                "alpha": alpha,
                "rate": rates[arm],
                "target": target,
                "rounds": reached.get(arm),
                "promised": _promised(problem, target=target, alpha=alpha, local_steps=case.local_steps, analysis=analysis),
                "worst": max(mean / bound for _, mean, _, bound in curves[arm]),
                "worst_low": max((mean - 3 * error) / bound for _, mean, error, bound in curves[arm]),
                "curve": thinned(curves[arm]),
            }
            for arm, (rule, (alpha, analysis)) in enumerate(rules.items())
        ]

    def tuned(self, case: Case) -> list[dict[str, Any]]:
        """For each target the step size of the grid that reaches it first, and how long it takes with fresh sketches."""
        problem = self.constants(case.problem)
        rates = [value / problem.smoothness for value in GRID]
        rows = []
        for fraction, (arm, searched) in self._fastest(case, rates, "search", self.settings.tuned_targets).items():
            found = self._fastest(case, [rates[arm]], "fresh", [fraction])
            rows.append(
                self._row(case, "tuned")
                | {
                    "fraction": fraction,
                    "target": fraction * float(problem.gap or 0),
                    "rate": rates[arm],
                    "rate_times_smoothness": GRID[arm],
                    "searched": searched,
                    "rounds": found[fraction][1] if found else None,
                }
            )
        return rows

    def _fastest(self, case: Case, rates: list[float], purpose: str, fractions: list[float]) -> dict[float, tuple[int, int]]:
        """Which rate brings the mean loss to each fraction of its start first, and after how many rounds."""
        start = float(self.constants(case.problem).gap or 0)
        found: dict[float, tuple[int, int]] = {}
        for snapshot in self._run(case, rates, purpose):
            means = self.gaps(case, snapshot).mean(0).nan_to_num(nan=math.inf)
            arm = int(means.argmin())
            for fraction in fractions:
                if float(means[arm]) <= fraction * start:
                    found.setdefault(fraction, (arm, snapshot.round))
            if len(found) == len(fractions):
                break
        return found

    def _run(self, case: Case, rates: list[float], purpose: str) -> Iterator[Snapshot]:
        """Algorithm 1, seen at every round up to the hundredth and then at every fiftieth part more."""
        runs = 1 if case.family == DENSE else self.settings.runs
        shown = 1
        trajectory = simulate(
            self.regressions[case.problem],
            rates=rates,
            local_steps=case.local_steps,
            runs=runs,
            sketch_at=self.sketches(case, purpose),
        )
        for snapshot in trajectory:
            if snapshot.round >= shown:
                yield snapshot
                shown = snapshot.round + max(1, snapshot.round // 50)
            if snapshot.round >= self.settings.max_rounds:
                return

    def _bound(self, case: Case, alpha: float, rate: float, rounds: int, analysis: Analysis) -> float:
        problem = self.constants(case.problem)
        bound = strongly_convex_bound if problem.strongly_convex else convex_bound
        return bound(problem, alpha=alpha, rate=rate, rounds=rounds, local_steps=case.local_steps, analysis=analysis)

    def _row(self, case: Case, rule: str) -> dict[str, Any]:
        return asdict(case) | {"dim": self.dim, "rule": rule}


def _promised(problem: Problem, **arguments: Any) -> int | None:
    """The rounds that the theorem promises, at a step small enough for drift to leave half the target."""
    try:
        return rounds_to(problem, **arguments)
    except InputError:
        return None


def run(settings: Settings, folder: Path) -> None:
    """Measure, write results.jsonl, table.md and two figures. What an interrupted run has measured is not measured again."""
    console, bench = Console(), Bench(settings)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "results.partial.jsonl"
    rows = _resumed(partial, settings)
    todo = list(cases(settings, bench.dim))
    done = [{key: row[key] for key in ("problem", "local_steps", "family", "size")} for row in rows]
    bar = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=console, transient=True) as progress, partial.open("a") as file:
        task = progress.add_task("", total=len(todo))
        for case in todo:
            progress.update(task, description=f"{case.problem} K={case.local_steps} {case.family} {case.size}")
            if asdict(case) not in done:
                measured = bench.under_theory(case) + bench.tuned(case)
                file.write(json.dumps(measured) + "\n")  # a line a case, so that none is resumed half-done
                file.flush()
                rows += measured
            progress.advance(task)
    constants = [{"problem": name, **asdict(bench.constants(name))} for name in bench.regressions]
    with (folder / "results.jsonl").open("w") as file:
        file.writelines(
            json.dumps(row, ensure_ascii=False) + "\n" for row in [{"settings": asdict(settings)}, *constants, *rows]
        )
    partial.unlink()
    table = markdown(rows, constants, asdict(settings))
    (folder / "table.md").write_text(table)
    save_figures(rows, folder)
    console.print(table)
    console.print(f"written: {folder}/table.md, communication.svg, bounds.svg, results.jsonl")


def _resumed(partial: Path, settings: Settings) -> list[dict[str, Any]]:
    """What an interrupted run with the same settings left; otherwise a new file that begins with the settings."""
    first = json.dumps({"settings": asdict(settings)}) + "\n"
    lines = partial.read_text().splitlines(keepends=True) if partial.exists() else [first]
    if lines[:1] != [first]:
        raise InputError(
            f"{partial} was left by a run with other settings. Take those again to finish it, remove it, or choose another "
            "folder with --out."
        )
    whole = [line for line in lines if line.endswith("\n")]
    partial.write_text("".join(whole))
    return [row for line in whole[1:] for row in json.loads(line)]
