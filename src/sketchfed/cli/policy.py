"""`sketchfed policy`: what a node's owner allows, demands and limits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sketchfed.errors import InputError, SketchfedError

if TYPE_CHECKING:
    from sketchfed.nodes.rules import Offer

app = typer.Typer(no_args_is_help=True, help="A node's policy: which runs it takes part in.")


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("policy.toml"),
) -> None:
    """Write a policy with every rule and its default, as comments to be changed."""
    from sketchfed.nodes.template import commented
    from sketchfed.storage import replace_file

    if path.exists():
        raise InputError(f"{path} exists already. Name another file, or move it away.")
    replace_file(path, commented().encode())
    typer.echo(f"wrote {path}. Start the SuperNode with --node-config 'policy=\"{path.resolve()}\"'.")


@app.command()
def check(
    policy: Annotated[Path, typer.Argument(metavar="FILE", help="The node's policy.")],
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The TOML file of a run.")],
    shape: Annotated[str, typer.Option(help="The shape of an example, such as 1,28,28. Else it comes from the data set.")] = "",
    outputs: Annotated[int, typer.Option(help="The model's outputs, for --shape.")] = 10,
    data: Annotated[str, typer.Option(help="The name of the node's data set in the policy.")] = "data",
) -> None:
    """Say what a policy thinks of a configuration, rule by rule. Exit code 1 if it refuses it.

    The data set of the configuration is loaded, for the size of the model, only if the policy allows everything that is named.
    """
    from rich.console import Console
    from rich.table import Table

    from sketchfed.nodes.policy import Policy
    from sketchfed.nodes.rules import Offer, verdicts
    from sketchfed.tables import read_toml

    tables = {key: table for key, table in read_toml(config).items() if key != "engine"}
    loaded = Policy.load(policy)
    found = list(verdicts(loaded, Offer(tables=tables, data=data)))
    note = ""
    if all(verdict.allowed for verdict in found):
        size = tuple(int(side) for side in shape.split(",")) if shape else ()
        try:
            offer = Offer(tables=tables, data=data, shape=size, outputs=outputs) if size else _completed(config, data)
            found = list(verdicts(loaded, offer))
        except SketchfedError as error:
            note = f"The size of the model is not known here: {error} Give --shape and --outputs."
    table = Table("", "rule", "what the run has", box=None)
    for verdict in found:
        table.add_row("allowed" if verdict.allowed else "REFUSED", verdict.rule.text, verdict.given)
    Console(soft_wrap=True).print(table)
    if note:
        typer.echo(note)
    for verdict in found:
        if not verdict.allowed:
            typer.echo(f"refused: {verdict.text}")
            raise typer.Exit(1)
    typer.echo("allowed by names and numbers. What is spent is decided by the node's store, answer by answer.")


def _completed(config: Path, data: str) -> "Offer":
    """The offer of a completed configuration, as nodes get it."""
    from sketchfed.config import load_config
    from sketchfed.nodes.rules import Offer
    from sketchfed.runs.workload import named_workload

    loaded = load_config(config)
    workload = named_workload(loaded)
    sizes = [len(part) for part in workload.parts]
    dim = sum(part.numel() for part in workload.module.parameters())
    tables = loaded.completed(dim=dim, sizes=sizes, module=workload.module).to_tables()
    tables.pop("engine")
    shape, outputs = workload.dataset.shape, workload.dataset.outputs
    return Offer(tables=tables, data=data, clients=len(sizes), shape=shape, outputs=outputs)
