"""How benchmarks are tried: run with next to nothing to do."""

import io
import json
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sketchfed_lab.benchmarks import BENCHMARKS


class QuickRun(NamedTuple):
    """What a quick run left behind: its folder, the rows it recorded, and what it printed, without line breaks."""

    folder: Path
    rows: list[dict[str, Any]]
    printed: str


def load(name: str, **plan: Any) -> ModuleType:
    """The benchmark of that name, whose quick plan is this one."""
    module = import_module(BENCHMARKS[name])
    module.QUICK = module.Plan(**plan)
    return module


def run_quickly(module: ModuleType, folder: Path) -> QuickRun:
    printed = io.StringIO()
    with redirect_stdout(printed):
        module.main(folder=folder, quick=True)
    name = module.__name__.rpartition(".")[2]
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return QuickRun(folder, rows, " ".join(printed.getvalue().split()))
