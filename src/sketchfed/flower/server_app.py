"""The ServerApp: a sketchfed run as Flower starts it, for `flwr run`."""

import json
import logging
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.utils import get_flwr_home

from sketchfed.config import Config, load_config
from sketchfed.errors import InputError
from sketchfed.flower.federation import Federation
from sketchfed.runs.folder import free_path
from sketchfed.runs.starting import prepare, reopen

app = ServerApp()
log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as `config` says, in `folder`. The metrics of each round go to the log, so that `flwr log` shows them."""
    settings = context.run_config
    config = configured(str(settings["config"]))
    name = config.name or config.algorithm.name
    runs = get_flwr_home() / "sketchfed" / "runs"
    folder = Path(str(settings["folder"])) if settings["folder"] else free_path(runs, name)
    host = partial(Federation, grid=grid)
    loop = reopen(folder, host=host) if settings["resume"] else prepare(config, folder=folder, host=host)
    log.info("%s; kept in %s", loop.title, folder)
    result = loop.finish(_say)
    log.info("%s: accuracy %s after %d rounds", result.label, result.accuracy, len(result.metrics))


def configured(text: str) -> Config:
    """The configuration of the run: TOML text, or a TOML file where the ServerApp runs. Clients are on this federation."""
    if not text:
        raise InputError("the run has no configuration. Write flwr run APP --run-config 'config=\"/path/to/run.toml\"'.")
    tables: dict[str, Any] | Path = Path(text)
    if "\n" in text or "=" in text or "[" in text:
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"the run's `config` is not valid TOML: {error}. Give TOML, or the path of a TOML file.") from None
    config = load_config(tables)
    return replace(config, engine=replace(config.engine, name="flower"))


def _say(line: dict[str, Any]) -> None:
    log.info("%s", json.dumps(line))
