"""`sketchfed mean`: every codec on the same vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sketchfed.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from sketchfed.codecs import Codec

KNOWN = "known"
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "sketched": [{"bits": 4}],
    "rand_k": [{"bits": 4}],
    "rand_k_spatial": [{"correlation": KNOWN}, {"correlation": "avg"}],
    "rand_proj_spatial": [{"correlation": KNOWN}, {"correlation": "avg"}, {"bits": 4}],
}
"""The variants of a codec that are tried besides its defaults. If the correlation is known, it is the true one."""
FORMATS = ("table", "latex", "csv", "json")
_PATIENCE = 2.0  # seconds after which a progress bar is welcome


def mean(
    dim: Annotated[int, typer.Option(help="Coordinates of a vector.")] = 1024,
    clients: Annotated[int, typer.Option(help="How many vectors there are, one a client.")] = 21,
    size: Annotated[int | None, typer.Option(help="Numbers that a client sends. [default: a fiftieth of dim]")] = None,
    budget: Annotated[
        int | None, typer.Option("--bytes", help="Bytes that a client sends, instead of --size; each codec gets what fits.")
    ] = None,
    correlation: Annotated[
        float | None, typer.Option(help="R, how alike the vectors are: from −1 to clients − 1. [default: 0.6·(clients − 1)]")
    ] = None,
    vectors: Annotated[
        str, typer.Option(help="normal: no coordinate stands out; power_law: some do, as in gradients; base: one alone.")
    ] = "normal",
    trials: Annotated[int, typer.Option(help="Rounds, with the same vectors and new seeds.")] = 100,
    codec: Annotated[list[str] | None, typer.Option(help="Only this codec and its variants; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the vectors and of all rounds.")] = 7,
    form: Annotated[str, typer.Option("--format", help="table, latex, csv, or json: an object a line.")] = "table",
) -> None:
    """Estimate a mean with every codec: measured and predicted error, bytes on the wire, time.

    Clients hold vectors xᵢ whose square norms sum to their number. The error is ‖estimate − mean‖², averaged over trials, with
    one standard error. Above ‖mean‖² a single estimate is worse than none, but what is unbiased averages out over rounds.

    R = Σ⟨xᵢ, x_l⟩/Σ‖xᵢ‖² over i ≠ l is 0 for orthogonal vectors and clients − 1 for identical ones. Codecs that decode all
    packets jointly live on it. They estimate it from the round before unless told: "R known" is told, "R avg" assumes half.

    `sketchfed mean --bytes 200` compares at equal bytes rather than equal numbers: in few bits, more numbers fit.
    """
    from rich.console import Console

    from sketchfed import PublicSeed
    from sketchfed.codecs import CODECS
    from sketchfed.codecs.examples import correlation_of, example_vectors
    from sketchfed.codecs.trials import check_trials, measure
    from sketchfed.report import means

    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if size is not None and budget is not None:
        raise InputError(
            f"--size {size} and --bytes {budget} contradict each other: both say how much a client sends. Use one."
        )
    for name in codec or []:
        CODECS[name]  # refuses what there is not
    check_trials(trials)
    wanted = 0.6 * (clients - 1) if correlation is None else correlation
    x = example_vectors(vectors, clients=clients, dim=dim, correlation=wanted, seed=seed)
    exact, square = correlation_of(x), float(x.double().mean(0).square().sum())
    numbers = max(1, dim // 50) if size is None else size
    built, too_large = _built(codec or list(CODECS), x, numbers, budget, exact)
    rows = []
    with _patient_bar(len(built) * (trials + 1)) as advance:
        for made, variant in built:
            measured = measure(made, x, trials=trials, seed=PublicSeed(seed), watch=advance)
            rows.append(means.MeanRow(made, variant, measured))
    given = f"{numbers:,} numbers" if budget is None else f"{budget:,} bytes"
    near = "" if abs(exact - wanted) < 1e-3 else f", nearest to {wanted:g}"
    what = f"{clients} vectors of {dim:,} numbers ({vectors}), R = {exact:.4g}{near}, ‖mean‖² = {square:.3g}"
    title = f"{what}\n{given}, {trials:,} trials"
    if form == "table":
        console = Console()
        console.print(means.terminal_table(rows, title, width=console.width))
        for reason in too_large:
            console.print(f"left out: {reason}", highlight=False, markup=False)
    elif form == "latex":
        print(means.latex_table(rows, title.replace("\n", "; ")), end="")
    else:
        facts = {"dim": dim, "clients": clients, "correlation": exact, "vectors": vectors, "mean_square": square, "seed": seed}
        print(means.csv_table(rows, facts) if form == "csv" else means.json_lines(rows, facts), end="")


def _built(
    names: list[str], x: "Tensor", size: int, budget: int | None, correlation: float
) -> "tuple[list[tuple[Codec, str]], list[str]]":
    """The codecs to try, each with its difference from the defaults, and why others do not fit the budget."""
    from sketchfed.codecs import make_codec
    from sketchfed.codecs.budget import BudgetError, fit

    clients, dim = x.shape
    built: list[tuple[Codec, str]] = []
    too_large: list[BudgetError] = []
    for name in names:
        for options in ({}, *VARIANTS.get(name, [])):
            given = options | ({"correlation": correlation} if options.get("correlation") == KNOWN else {})
            try:
                if budget is None:
                    made = make_codec(name, dim=dim, size=size, clients=clients, **given)
                else:
                    made = fit(name, dim=dim, budget=budget, clients=clients, like=x[0], **given)
            except BudgetError as error:
                too_large.append(error)
                continue
            built.append((made, _variant(options)))
    if not built:
        raise min(too_large, key=lambda error: error.needed)
    return built, [str(error) for error in too_large]


def _variant(options: dict[str, Any]) -> str:
    """How a variant differs from the defaults, in a word or two."""
    said = {"correlation": "R {}", "bits": "{} bits"}
    return ", ".join(said[name].format(value) for name, value in options.items())


@contextmanager
def _patient_bar(steps: int) -> "Iterator[Callable[[], None]]":
    """A progress bar on standard error that appears after two seconds."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task, start = bar.add_task("rounds", total=steps), monotonic()

    def advance() -> None:
        bar.advance(task)
        if not bar.live.is_started and monotonic() - start > _PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
