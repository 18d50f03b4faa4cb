"""The page on the architecture says what is true of the code: its files, the names in them, the layers and the pictures."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import drawings
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sketchfed"
PAGE = (ROOT / "docs" / "architecture.md").read_text()

FILE = r"`([\w/]+\.py)`"
PLACED = re.compile(rf"{FILE}\s+·\s+(`[\w.]+`(?:,\s+`[\w.]+`)*)")
"""`file.py` · `Name`, or several names of that file with commas between them."""
ANYWHERE = re.compile(r"`([A-Z]\w*[a-z]\w*(?:\.\w+)?)`")
"""A class, or `Class.method`, without a file."""


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a file defines: functions, classes and constants, and `Class.member` for what a class itself has."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        for name in defined(node):
            found.add(name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for part in node.body for name in defined(part)}
            found |= {f"{node.name}.{name}" for name in assigned_in_methods(node)}
    return frozenset(found)


def defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def assigned_in_methods(node: ast.ClassDef) -> list[str]:
    """Attributes that methods set on self."""
    attributes = [part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)]
    return [part.attr for part in attributes if isinstance(part.value, ast.Name) and part.value.id == "self"]


@cache
def all_names() -> frozenset[str]:
    return frozenset().union(*(names_in(path) for path in SOURCE.rglob("*.py")))


def place(file: str) -> Path:
    return ROOT / file if file.startswith("lab/") else SOURCE / file


def wrong(page: str) -> list[str]:
    """What a page says of files and names that is not so."""
    found = [f"{file} is not there" for file in re.findall(FILE, page) if not place(file).is_file()]
    for file, names in PLACED.findall(page):
        if place(file).is_file():
            found += [f"{file} has no {name}" for name in re.findall(r"`([\w.]+)`", names) if name not in names_in(place(file))]
    return found + [f"nothing is called {name}" for name in ANYWHERE.findall(page) if name not in all_names()]


def contract() -> list[list[str]]:
    """The contract's layers, from top to bottom. A package in parentheses need not be there."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in settings["contracts"] if contract["name"] == "layers")
    return [re.findall(r"\w+", layer) for layer in layers]


def test_every_file_and_every_name_on_the_page_exists():
    assert len(PLACED.findall(PAGE)) > 100
    assert not wrong(PAGE)


@pytest.mark.parametrize(
    ("claim", "mistake"),
    [
        ("`rounds/nowhere.py` · `Server`", "rounds/nowhere.py is not there"),
        ("`rounds/server.py` · `Server.advances`", "rounds/server.py has no Server.advances"),
        ("`rounds/server.py`\n· `LocalEngine`", "rounds/server.py has no LocalEngine"),
        ("`rounds/server.py` · `Server`, `wilder`", "rounds/server.py has no wilder"),
        ("`algorithms/private_iterative.py` · `PrivateIterative.follow`", "has no PrivateIterative.follow"),
        ("a `Replicant` is", "nothing is called Replicant"),
        ("`Server.advances` is", "nothing is called Server.advances"),
        ("`lab/nowhere.py`", "lab/nowhere.py is not there"),
    ],
)
def test_a_wrong_claim_is_found(claim, mistake):
    assert any(mistake in found for found in wrong(claim))


def test_right_claims_are_not_complained_about():
    page = "`rounds/server.py` · `Server.advance`, `Server` and a `Replica` with `Server.tally`, `bits`"
    assert not wrong(f"{page} and `lab/src/sketchfed_lab/commands.py`")


def test_the_table_of_layers_has_every_package_in_the_order_of_the_contract():
    packages = [package for layer in drawings.layers_of(PAGE) for package in layer.packages]
    here = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} - {"__init__"}
    levels = {package: level for level, row in enumerate(contract()) for package in row}
    assert len(packages) == len(set(packages))
    assert here <= set(packages) <= set(levels)
    assert [levels[package] for package in packages] == sorted(levels[package] for package in packages)


def test_the_pictures_are_those_that_the_script_draws():
    stale = [path.name for path, picture in drawings.drawn().items() if path.read_text() != picture]
    assert not stale, f"{stale} differ. Run: python docs/drawings.py"


def test_the_names_in_the_picture_of_a_round_exist():
    names = re.findall(r"\b[A-Z][a-z]\w*\.\w+|\b(?:Noisy|Central|Secure)\w+", drawings.round_())
    assert len(names) >= 12
    assert not [name for name in names if name not in all_names()]


def test_the_page_names_all_methods_of_the_few_concepts():
    from sketchfed.algorithms import Algorithm

    eight = ("resolved", "begin", "given", "client", "code", "check", "server", "follow")
    own = [name for name, value in vars(Algorithm).items() if callable(value) and not name.startswith("_")]
    assert sorted(own) == sorted(eight)
    assert ", ".join(f"`{name}`" for name in eight) in PAGE
