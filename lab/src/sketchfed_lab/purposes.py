"""What experiments and benchmarks are for, in a line each, read from their files without running them."""

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


def purposes(modules: Mapping[str, str]) -> dict[str, str]:
    """The first line of the docstring of each module, by the name under which it is listed."""
    return {name: _purpose(Path(str(find_spec(module).origin))) for name, module in modules.items()}  # type: ignore[union-attr]


def _purpose(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
