"""How benchmarks are tried: loaded by their path, as the command line does, and run with next to nothing to do."""

import io
import json
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sketchfed.shipped import shipped


class QuickRun(NamedTuple):
    """What a quick run left behind: its folder, the rows it recorded, and what it printed, without line breaks."""

    folder: Path
    rows: list[dict[str, Any]]
    printed: str


def load(name: str, **plan: Any) -> ModuleType:
    """The benchmark of that name, whose quick plan is this one."""
    spec = spec_from_file_location(f"sketchfed_benchmark_{name}", shipped("benchmarks") / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.QUICK = module.Plan(**plan)
    return module


def run_quickly(module: ModuleType, folder: Path) -> QuickRun:
    printed = io.StringIO()
    with redirect_stdout(printed):
        module.main(folder=folder, quick=True)
    name = module.__name__.removeprefix("sketchfed_benchmark_")
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return QuickRun(folder, rows, " ".join(printed.getvalue().split()))
