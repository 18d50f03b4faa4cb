"""Before training: what theory says of step sizes, rounds and bytes; `sketchfed plan privacy` is about noise."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from sketchfed.cli.plan_privacy import privacy
from sketchfed.errors import InputError

if TYPE_CHECKING:
    from sketchfed.planner import Analysis, PlanRow, Problem

app = typer.Typer(invoke_without_command=True, rich_markup_mode="markdown")
app.command()(privacy)

DIM = 199_210  # the two-layer perceptron for MNIST


@app.callback()
def plan(
    context: typer.Context,
    dim: Annotated[int | None, typer.Option(help="Parameters of the model. [default: 199,210, or what --data has]")] = None,
    size: Annotated[int | None, typer.Option(help="Coefficients of a sketch. [default: a tenth of dim]")] = None,
    target: Annotated[
        float | None, typer.Option(help="Distance of the loss to its optimum. [default: a hundredth of the start's]")
    ] = None,
    smoothness: Annotated[float, typer.Option(help="L, the largest curvature of any client's loss.")] = 1.0,
    strong_convexity: Annotated[
        float, typer.Option(help="μ, the smallest curvature; 0 for convex. With --data, the regularisation (μ/2)‖w‖².")
    ] = 0.01,
    heterogeneity: Annotated[float, typer.Option(help="σ², the clients' mean squared gradient at the optimum.")] = 0.0,
    square_distance: Annotated[float, typer.Option(help="‖w⁰ − w*‖², from the start to the optimum.")] = 1.0,
    local_steps: Annotated[int, typer.Option(help="Gradient steps of a client in a round, K.")] = 1,
    bits: Annotated[int, typer.Option(help="Bits of a coefficient on the wire.")] = 32,
    analysis: Annotated[
        str, typer.Option(help="sharpened; published: as in the paper; curvature: uses the Hessian's trace, needs --data.")
    ] = "sharpened",
    published_alpha: Annotated[
        bool, typer.Option("--published-alpha", help="The paper's α, two to three times the exact one.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="Measure L, σ² and the distance on this data set, e.g. a9a.")] = None,
    clients: Annotated[int, typer.Option(help="Clients among whom --data is spread.")] = 10,
    partition: Annotated[str, typer.Option(help="How it is spread: iid, shards, dirichlet, quantity or natural.")] = "iid",
    seed: Annotated[int, typer.Option(help="Public seed of the partition.")] = 7,
) -> None:
    """Step size, rounds and bytes that theory promises, for every sketch family beside sending everything.

    The theorems (Song et al. 2023, Sec. 5) are about smooth, convex losses, full gradients and all clients in every round.
    They are safe and far from tight: a tuned step size needs fewer rounds. Use them to compare families and sizes, and as
    the step size that cannot fail.

    `sketchfed plan --data a9a --analysis curvature` measures a logistic regression first.
    """
    if context.invoked_subcommand is not None:
        return
    from sketchfed.planner import Problem, check_analysis
    from sketchfed.planner import plan as make_plan

    check_analysis(analysis)
    chosen = cast("Analysis", analysis)
    if data is not None:
        measured_dim, problem = _measured(data, partition, clients, seed, strong_convexity)
        if dim is not None and dim != measured_dim:
            raise InputError(
                f"--dim {dim:,} contradicts --data {data}, which has {measured_dim:,} features. Leave one of them out."
            )
        dim = measured_dim
    else:
        dim = dim or DIM
        problem = Problem(
            smoothness=smoothness,
            strong_convexity=strong_convexity,
            heterogeneity=heterogeneity,
            square_distance=square_distance,
        )
    start = problem.smoothness / 2 * problem.square_distance if problem.gap is None else problem.gap
    reach = target if target is not None else start / 100
    rows = make_plan(
        problem,
        dim=dim,
        size=size or max(1, dim // 10),
        target=reach,
        local_steps=local_steps,
        bits_per_coefficient=bits,
        exact=not published_alpha,
        analysis=chosen,
    )
    _print_plan(rows, problem, reach, local_steps, chosen)


def _measured(name: str, rule: str, clients: int, seed: int, regularisation: float) -> tuple[int, "Problem"]:
    from sketchfed import PublicSeed
    from sketchfed.data import load, partition
    from sketchfed.planner import regression_on

    found = load(name)
    parts = partition(found, name=rule, clients=clients, seed=PublicSeed(seed))
    regression = regression_on(found, parts, regularisation=regularisation)
    return regression.dim, regression.measure()


def _print_plan(rows: "list[PlanRow]", problem: "Problem", target: float, local_steps: int, analysis: "Analysis") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from sketchfed.planner import ANALYSES
    from sketchfed.report.units import shown_bytes

    sketched = rows[-1]
    steps = f"{local_steps} local step{'s' if local_steps > 1 else ''}"
    table = Table(
        box=SIMPLE_HEAD,
        title=f"{rows[0].size:,} → {sketched.size:,}, {steps}, to a loss of {target:.3g} above the optimum",
        title_justify="left",
        caption=f"{analysis}: {ANALYSES[analysis]}. Bytes: what one client sends, and as many it receives.",
        caption_justify="left",
    )
    for heading in ("family", "α", "step size", "rounds", "bytes", "against dense"):
        table.add_column(heading, justify="left" if heading == "family" else "right")
    for row in rows:
        sent = shown_bytes(row.bits / 8)
        table.add_row(
            f"[bold]{row.family}", f"{row.alpha:,.2f}", f"{row.rate:.3g}", f"{row.rounds:,}", sent, f"{row.relative:.2f}×"
        )
    console = Console()
    console.print(
        f"L {problem.smoothness:.4g} · μ {problem.strong_convexity:.4g} · σ² {problem.heterogeneity:.4g} · "
        f"‖w⁰ − w*‖² {problem.square_distance:.4g}"
        + (
            ""
            if problem.total_curvature is None
            else f" · tr(H)/λ {problem.total_curvature / (problem.top_curvature or 1):.3g}"
        )
    )
    console.print(table)
