"""`sketchfed flower`: what a federation on Flower needs besides Flower's own commands."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sketchfed.cli.files import writable
from sketchfed.cli.run import run_all
from sketchfed.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    help="Run on a Flower federation: rehearse one on this machine, and what SuperNodes need.",
)


@app.callback()
def _installed() -> None:
    """Refuse with one sentence if Flower is missing."""
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise InputError("this needs Flower. Install it: pip install 'sketchfed[flower]'.") from None


@app.command()
def rehearse(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG...", help="TOML files, as for `sketchfed run`.")],
    nodes: Annotated[int, typer.Option(help="SuperNodes, a client each; data.clients is set to it.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a setting, e.g. algorithm.rounds=5.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the folders of runs go.")] = Path("runs"),
) -> None:
    """Run configurations on a whole federation on this machine: a SuperLink and SuperNodes as processes, over TLS.

    Nothing is simulated: certificates are made, nodes authenticate, and bytes go through sockets. It ends with the last run.
    """
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from sketchfed.config import Config, load_config
    from sketchfed.flower.loopback import Loopback
    from sketchfed.nodes.template import allowing
    from sketchfed.runs.folder import free_path

    if nodes < 2:
        raise InputError(f"a federation has at least 2 nodes, got --nodes {nodes}.")
    loaded = [(path, load_config(path, [*(settings or []), f"data.clients={nodes}"])) for path in configs]
    writable(out)
    with TemporaryDirectory() as scratch:
        own = allowing(config.to_tables() for _, config in loaded)  # who rehearses owns the nodes, too
        federation = Loopback(Path(scratch), nodes=nodes, policy=own)
        with Console(stderr=True).status(f"starting a SuperLink and {nodes} SuperNodes"):
            federation.start()
        try:
            plans: list[tuple[Path, Config]] = []
            for path, config in loaded:
                engine = replace(
                    config.engine,
                    name="flower",
                    address=federation.address,
                    root_certificates=str(federation.root_certificates),
                )
                named = replace(config, name=config.name or path.stem, engine=engine)
                plans.append((free_path(out, named.name, taken=[folder for folder, _ in plans]), named))
            report = out / "report.html" if len(plans) > 1 else plans[0][0] / "report.html"
            run_all(plans, report, tensorboard=False)
        finally:
            federation.close()


@app.command(name="app")
def show_app() -> None:
    """Print where the packaged Flower app is: flwr run "$(sketchfed flower app)" NAME --run-config 'config="run.toml"'."""
    from sketchfed.flower.connection import APP

    typer.echo(str(APP))


@app.command()
def identity(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the private half, for this node alone.")],
) -> None:
    """Make a node's long-term identity for secure sums, and print its public half, for the directory that nodes share.

    Start the SuperNode with --node-config 'identity="FILE" directory="DIRECTORY"'. A directory has a client's number and its
    public half on each line; with one, not even the server can pass off keys of its own as another client's.
    """
    from sketchfed.flower.desk import read_identity, write_identity

    if path.exists():
        typer.echo(read_identity(path).public.hex())
        return
    typer.echo(write_identity(path).public.hex())


@app.command()
def worker(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the SuperNode's Runtime API listens.")],
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS between the two, as on one machine.")] = False,
    root_certificates: Annotated[Path | None, typer.Option(help="The authority of the SuperNode's certificate.")] = None,
    secret: Annotated[Path | None, typer.Option(help="The SuperNode's --superexec-auth-secret-file.")] = None,
) -> None:
    """Serve the messages of a SuperNode that was started with --isolation process, without importing torch for each.

    A fork of this process answers each message: about 0.2 s of CPU in place of 4.
    """
    from sketchfed.flower.worker import work

    work(
        address,
        insecure=insecure,
        root_certificates=root_certificates,
        auth_secret=None if secret is None else secret.read_bytes(),
    )
