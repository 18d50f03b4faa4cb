"""Every row of the page on threats names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs" / "threats.md").read_text().splitlines() if line.startswith("| ") and "---" not in line]
NAMED = re.compile(r"`([\w/]+\.py)` · ((?:`test_\w+`(?:, )?)+)")


def functions_of(file: str) -> set[str]:
    path = ROOT / (file if "/" in file else f"tests/adversary/{file}")
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


MOVES = {row.split("|")[2].strip(): row.split("|")[-2].strip() for row in ROWS if not row.startswith("| who")}


@pytest.mark.parametrize("cell", MOVES.values(), ids=MOVES.keys())
def test_a_move_is_made_by_a_test(cell):
    found = [(file, name) for file, names in NAMED.findall(cell) for name in re.findall(r"test_\w+", names)]
    assert found or cell.startswith("none")
    for file, name in found:
        assert name in functions_of(file), f"{file} has no {name}"
