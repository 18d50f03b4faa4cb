"""Where the benchmarks and the recorded experiments lie: inside an installed package, or beside `src/` in a checkout."""

import ast
from pathlib import Path

from sketchfed.errors import InputError


def shipped(name: str) -> Path:
    """The folder `benchmarks` or `experiments` that came with this copy of sketchfed."""
    package = Path(__file__).parent
    for folder in (package / "shipped" / name, package.parents[1] / name):
        if folder.is_dir():
            return folder
    raise InputError(f"this copy of sketchfed came without its '{name}' folder. Install it from a wheel or a checkout.")


def purpose(file: Path) -> str:
    """The first line of a Python file's docstring, without running the file."""
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
