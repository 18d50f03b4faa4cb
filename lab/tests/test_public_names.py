"""The lab builds on sketchfed as anybody can: by names that its packages export, and by nothing that is private."""

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1] / "src"
FILES = sorted(ROOT.rglob("*.py"))
OF_PYTHON = {"_asdict", "_exit", "_replace"}


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def refused(source: str) -> list[str]:
    """The imports in a piece of code that are not of public names of sketchfed."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("sketchfed.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sketchfed":
            found += [f"{node.module}: {alias.name}" for alias in node.names if not public(str(node.module), alias.name)]
    return found


def public(module: str, name: str) -> bool:
    if module.count(".") > 1:
        return False
    package = import_module(module)
    return name in package.__all__ and not isinstance(getattr(package, name), ModuleType)


def private(source: str) -> set[str]:
    """Attributes with an underscore that code uses but does not define itself."""
    tree = ast.parse(source)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes if node.attr.startswith("_") and not node.attr.startswith("__")}
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    own |= {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return names - own - OF_PYTHON


def test_there_is_a_lab_to_look_at():
    assert len(FILES) > 60


@pytest.mark.parametrize("file", FILES, ids=named)
def test_the_lab_imports_public_names_only(file):
    assert not refused(file.read_text())


@pytest.mark.parametrize("file", FILES, ids=named)
def test_the_lab_uses_nothing_private(file):
    assert not private(file.read_text())


@pytest.mark.parametrize(
    "line",
    [
        "import sketchfed.wire",
        "from sketchfed.wire.packet import Packet",
        "from sketchfed.codecs.sketched import _sketch",
        "from sketchfed.runs import captured",
        "from sketchfed import data",
        "def inside():\n    from sketchfed.seeds import philox4x32",
    ],
)
def test_what_is_not_public_is_found(line):
    assert len(refused(line)) == 1


def test_what_is_private_is_found():
    assert private("class Watched(Server):\n    def go(self):\n        return super()._stepped(self._own)\n") == {
        "_stepped",
        "_own",
    }
    assert not private("class Own:\n    def _step(self):\n        self._at = 1\n        return self._step()\n")
