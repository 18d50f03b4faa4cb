"""Lists parts of every kind, and sketch families with their variance."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sketchfed.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from sketchfed.parts import Registry


def parts(
    kind: Annotated[str | None, typer.Argument(help="Which kind, such as codecs; without it, all kinds.")] = None,
) -> None:
    """Everything that a configuration can name, with what it is and where it comes from.

    Parts of installed packages are listed beside sketchfed's own. A part that cannot be used is listed with the reason.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    known = _registries()
    if kind is not None and kind not in known:
        raise UnknownNameError("kind of parts", kind, known)
    console = Console()
    for title, registry in known.items() if kind is None else [(kind, known[kind])]:
        rows = [(name, *_about(registry, name), registry.origin(name)) for name in registry.names()]
        if not rows and kind is None:
            continue  # of some kinds, only packages bring parts
        papers = any(paper for _, _, paper, _ in rows)
        table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
        for heading in ("name", "what it is", *(["paper"] if papers else []), "comes from"):
            table.add_column(heading)
        for name, about, paper, origin in rows:
            table.add_row(f"[bold]{escape(name)}", *map(escape, (about, paper, origin) if papers else (about, origin)))
        console.print(table)
        for name, package in registry.hidden().items():
            console.print(
                f"{package} announces {name!r} too, which has no effect: built-in parts are not replaced.", markup=False
            )


def _registries() -> "dict[str, Registry[Any]]":
    """Every registry, by the last part of its entry-point group."""
    from sketchfed.algorithms import ALGORITHMS
    from sketchfed.attacks import ATTACKS
    from sketchfed.attacks.knowledge import ANNOUNCED
    from sketchfed.codecs import CODECS
    from sketchfed.combining import COMBINE_RULES
    from sketchfed.config import ENGINES
    from sketchfed.data import DATA_SETS, PARTITIONS
    from sketchfed.graphs import GRAPHS
    from sketchfed.models import MODELS
    from sketchfed.privacy import MECHANISMS
    from sketchfed.server_optimisers import SERVER_OPTIMISERS
    from sketchfed.sketches import SKETCHES
    from sketchfed.training import BATCH_LOSSES, LOOPS, LOSSES, METRICS, OPTIMISERS, SCHEDULES

    mathematics, learning = (
        (SKETCHES, CODECS, ALGORITHMS, COMBINE_RULES, SERVER_OPTIMISERS, MECHANISMS, GRAPHS),
        (MODELS, DATA_SETS, PARTITIONS, LOOPS, LOSSES, BATCH_LOSSES, OPTIMISERS, SCHEDULES, METRICS),
    )
    every: tuple[Registry[Any], ...] = (*mathematics, *learning, ATTACKS, ANNOUNCED, ENGINES)
    return {registry.group.removeprefix("sketchfed."): registry for registry in every}


def _about(registry: "Registry[Any]", name: str) -> tuple[str, str]:
    """What a part is and its paper, or why it cannot be used."""
    from sketchfed.parts import summary

    try:
        part = registry[name]
    except InputError as error:
        return f"cannot be used: {error}", ""
    return summary(part), getattr(part, "source", "")


def sketches(
    dim: Annotated[int, typer.Option(help="Coordinates of an update, for the columns with numbers.")] = 1_000_000,
    size: Annotated[int, typer.Option(help="Coefficients of its sketch.")] = 10_000,
) -> None:
    """The sketch families: what each is, its variance parameter α, its cost.

    α bounds the second moment, E‖RᵀRh‖² ≤ (1 + α)‖h‖². Less is better, and dim/size − 1 is the least possible.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from sketchfed import PublicSeed
    from sketchfed.sketches import SKETCHES

    table = Table(box=SIMPLE_HEAD, title=f"Sketch families; exact α at dim {dim:,} and size {size:,}", title_justify="left")
    for heading in ("name", "what it is", "published α", "exact α", "cost"):
        table.add_column(heading, justify="right" if heading == "exact α" else "left")
    for name, family in SKETCHES.items():
        sketch = family(dim=dim, size=size, seed=PublicSeed(0))
        table.add_row(f"[bold]{name}", family.summary, family.alpha_formula, f"{sketch.exact_alpha:,.2f}", family.cost)
    Console().print(table)
