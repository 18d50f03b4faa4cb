"""What the repository promises around the code: README, docs, pins, Makefile and the checks agree with each other."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import sketchfed
import sketchfed_lab
from sketchfed.algorithms import ALGORITHMS
from sketchfed.algorithms.settings import CodecSettings, SketchSettings, SubspaceSettings
from sketchfed.cli import extensions
from sketchfed.cli.catalogue import _registries
from sketchfed.config import Config, DataSettings, EngineSettings, ModelSettings, load_config
from sketchfed.graphs import GraphSettings
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed_lab.benchmarks import BENCHMARKS
from sketchfed_lab.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LAB = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/*.md"))
TEACHING = [page for page in PAGES if "import sketchfed" in page.read_text() or "from sketchfed" in page.read_text()]
TEACHING += [file for kind in ("py", "md") for file in sorted((ROOT / "examples").rglob(f"*.{kind}"))]
LAB_PAGES = sorted((ROOT / "lab").rglob("*.md"))
PUBLIC_MODULES = (
    "sketchfed",
    *(
        f"sketchfed.{name}"
        for name in (
            "algorithms",
            "attacks",
            "attacks.knowledge",
            "audits",
            "caches",
            "cli",
            "codecs",
            "combining",
            "config",
            "data",
        )
    ),
    *(
        f"sketchfed.{name}"
        for name in (
            "draws",
            "errors",
            "flower",
            "graphs",
            "kernels",
            "models",
            "nn",
            "nodes",
            "planner",
            "privacy",
            "privacy.formulas",
        )
    ),
    *(
        f"sketchfed.{name}"
        for name in ("protection", "report", "rounds", "runs", "secure", "seeds", "server_optimisers", "sketches")
    ),
    *(f"sketchfed.{name}" for name in ("subspaces", "tasks", "testing", "training", "vectors", "wire")),
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def shell_blocks(page: str) -> list[str]:
    return blocks(ROOT / page, "sh")


def pins() -> dict[str, Version]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def requirements() -> list[Requirement]:
    groups = [group for made in (PROJECT, LAB) for group in (made["dependencies"], *made["optional-dependencies"].values())]
    texts = sorted({text for group in groups for text in group if not text.startswith("sketchfed")})
    return [Requirement(text) for text in texts]


def imports(source: str) -> list[tuple[str, str]]:
    """The names that code imports from sketchfed, each with its module. The code may be a whole page, with `>>>` lines."""
    lines = re.sub(r"^[ \t]*(>>>|\.\.\.) |  #.*$", "", source, flags=re.MULTILINE)
    found = re.findall(r"^[ \t]*from (sketchfed(?:\.\w+)*) import (\([^)]*\)|.*)$", lines, re.MULTILINE)
    names = [(module, name.split(" as ")[0].strip()) for module, names in found for name in names.strip("()").split(",")]
    modules = re.findall(r"^[ \t]*import (sketchfed(?:\.\w+)+)", lines, re.MULTILINE)
    return [(module, name) for module, name in names if name] + [(module, "") for module in modules]


def exported(module: str, name: str) -> bool:
    return module in PUBLIC_MODULES and name in import_module(module).__all__


def output_of(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == LAB["version"] == sketchfed.__version__ == sketchfed_lab.__version__
    assert f"sketchfed=={sketchfed.__version__}" in LAB["dependencies"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = Version(sketchfed.__version__).is_devrelease is False
    assert headings[0].startswith(Version(sketchfed.__version__).base_version)
    assert headings[0].endswith("unreleased") is not released
    assert not [heading for heading in headings[1:] if "unreleased" in heading.lower()]


def test_the_extras_and_the_licence_are_there():
    assert {"flower", "test", "docs"} <= set(PROJECT["optional-dependencies"])
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement):
    pin = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin), f"{requirement} excludes the pinned {pin}"


def test_pins_are_plain_versions_in_order():
    """A local version such as 2.13.0+cpu exists on some indexes only; 2.13.0 matches it too."""
    assert all(version.local is None for version in pins().values())
    names = [line.lower() for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]]
    assert names == sorted(names)


def test_the_readme_sets_up_and_runs_the_main_job_and_the_tests():
    main_job, tests = shell_blocks("README.md")[:2]
    assert main_job.startswith("pip install -c constraints.txt . && sketchfed ")
    assert tests.startswith("pip install -c constraints.txt -e '.[test]' -e lab && pytest")


def test_the_makefile_and_continuous_integration_run_the_readmes_test_command():
    block = shell_blocks("README.md")[1]
    install, run = block.strip().split(" && ")
    makefile, checks = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    assert f"\t{install}\n" in makefile
    assert f"\t{run}\n" in makefile
    assert f"\n{install}\n" in checks
    (extract,) = re.findall(r"^awk .* README\.md", checks, re.MULTILINE)
    found = subprocess.run(["bash", "-c", extract], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert found == block


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_bare_make_lists_every_target():
    listed = subprocess.run(["make", "-C", str(ROOT)], check=True, capture_output=True, text=True).stdout
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert all(re.search(rf"^  {target} +\S", listed, re.MULTILINE) for target in targets.split())


@pytest.mark.parametrize("page", [*PAGES, *LAB_PAGES], ids=named)
def test_relative_links_and_pictures_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_dotted_name_on_a_page_exists(page):
    """Names of entry points look like modules, and need not be."""
    names = set(re.findall(r"\bsketchfed(?:\.[A-Za-z_]\w*)+", page.read_text()))
    groups = {registry.group for registry in _registries().values()}
    for name in names - groups - {extensions.GROUP}:
        resolve_name(name)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_in_the_api_reference(module):
    reference = (ROOT / "docs" / "api.md").read_text()
    names = [name for name in import_module(module).__all__ if not name.startswith("__")]
    here = rf"(?:{re.escape(module)}|sketchfed)"  # what the top exports is listed there
    missing = [name for name in names if not re.search(rf":: {here}\.{name}\b", reference)]
    assert not missing or f"automodule:: {module}\n   :members:" in reference


@pytest.mark.parametrize("file", TEACHING, ids=named)
def test_pages_and_examples_import_public_names_only(file):
    assert not [found for found in imports(file.read_text()) if not exported(*found)]


@pytest.mark.parametrize(
    "line",
    [
        ">>> from sketchfed.codecs.base import sender",
        "    from sketchfed.kernels import philox",
        "import sketchfed.wire",
        "from sketchfed.codecs import (\n    Codec,\n    option_names,\n)",
    ],
)
def test_an_import_of_something_private_is_found(line):
    assert len([found for found in imports(line) if not exported(*found)]) == 1


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=named)
def test_configurations_on_a_page_can_be_run(page):
    """Those with `my_project` are about code that only a reader has, and those on plug-ins are about an installed package."""
    ours = [text for text in blocks(page, "toml") if "my_project" not in text and page.name != "plugins.md"]
    assert all(load_config(tomllib.loads(text)) for text in ours)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_a_page_shows_what_a_run_without_a_configuration_prints(page, tmp_path):
    """Bytes and rounds to the digit; accuracies may differ by processor, and the time does."""
    shown = blocks(ROOT / page, "text")[0]
    command = [sys.executable, "-m", "sketchfed.cli", "run"]
    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert rows_of(shown) == rows_of(printed)
    assert len(rows_of(shown)) == 3


def rows_of(text: str) -> list[tuple[str, ...]]:
    """Name, rounds and bytes of each row of the table at the end of a run."""
    return re.findall(r"^  (\S.*?)  +0\.9\d\d +(\d+) +(\S+ .?B) +(\S+ .?B) +\S+ s", text, re.MULTILINE)


HELP = "from sketchfed.cli import app\napp(['--help'], standalone_mode=False)"


@pytest.mark.parametrize("code", ["import sketchfed", HELP], ids=["import", "help"])
def test_starting_up_loads_nothing_heavy(code):
    heavy = "torch", "numba", "scipy", "altair"
    loaded = output_of(f"{code}\nimport sys\nprint()\nprint(*[name for name in {heavy} if name in sys.modules])")
    assert loaded.splitlines()[-1] == ""


def test_the_wheel_is_light_and_has_the_library_alone(tmp_path):
    """Recorded results and what measured them would be ten times as much."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("sketchfed-*.whl")
    assert wheel.stat().st_size < 1_200_000
    files = {Path(name) for name in ZipFile(wheel).namelist()}
    package = {file for file in files if file.parts[0] == "sketchfed"}
    assert {file.parts[0] for file in files - package} == {f"sketchfed-{sketchfed.__version__}.dist-info"}
    ours = {file.relative_to(ROOT / "src") for file in (ROOT / "src" / "sketchfed").rglob("*.py")}
    assert {file for file in package if file.suffix == ".py"} == ours


def test_no_module_of_the_library_knows_the_lab():
    """Neither by an import nor by a name that could be imported: it finds the lab's commands by their entry points."""
    files = list((ROOT / "src").rglob("*.py"))
    assert len(files) > 200
    assert not [file for file in files if "sketchfed_lab" in file.read_text()]


def test_no_two_public_classes_or_types_have_the_same_name():
    """Names without a leading underscore, of classes and of types such as `Unit = Literal[...]` at the top of a module.

    Short names for arrays and type variables belong to their own module.
    """
    homes: dict[str, list[str]] = {}
    for file in sorted((ROOT / "src" / "sketchfed").rglob("*.py")):
        tree = ast.parse(file.read_text())
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in tree.body:
            if isinstance(node, ast.Assign) and not re.search(r"NDArray|TypeVar", ast.unparse(node.value)):
                names += [target.id for target in node.targets if isinstance(target, ast.Name) and not target.id.isupper()]
        for name in (name for name in names if name[0].isupper()):
            homes.setdefault(name, []).append(str(file.relative_to(ROOT)))
    assert len(homes) > 250
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_the_library_asserts_nothing():
    """`python -O` drops asserts, and an AssertionError tells nobody what to change. Conformance suites are tests."""
    for file in sorted((ROOT / "src" / "sketchfed").rglob("*.py")):
        asserts = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
        assert not asserts or "testing" in file.parts, f"{named(file)}: lines {asserts}"


def test_the_makefile_knows_every_experiment_and_benchmark():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (experiments,) = re.findall(r"^EXPERIMENTS = (.*)$", makefile, re.MULTILINE)
    assert set(experiments.split()) == set(EXPERIMENTS)
    (topics,) = re.findall(r"for topic in (.*?);", makefile)
    assert set(topics.split()) == set(BENCHMARKS) - {"versions"}  # needs a second checkout
    assert {folder.name for folder in (ROOT / "lab" / "experiments").iterdir() if folder.is_dir()} == set(EXPERIMENTS)


@pytest.mark.slow  # .ci/run builds the docs in a step of its own
def test_the_docs_build_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", "docs", tmp_path / "site"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    shown = [page.name for page in (tmp_path / "site").glob("*.html") if "&lt;!--" in page.read_text()]
    assert not shown, f"{shown} show comments of their sources"
    for page, module, registry in LISTED:
        written = (tmp_path / "site" / f"{page}.html").read_text()
        missing = [name for name in getattr(import_module(f"sketchfed.{module}"), registry) if f">{name}<" not in written]
        assert not missing, f"{page} does not list {missing}"
    reference = (tmp_path / "site" / "running.html").read_text()
    settings = {field.name for kind in [*ALGORITHMS.values(), *STRUCTS] for field in fields(kind)} - TABLES
    settings = settings - {"server_optimiser"} | {"server"}  # the algorithm's function `server` has the name of the key
    assert not [name for name in settings if f">{name}<" not in reference and not name.startswith("_")]


LISTED = [
    ("sketches", "sketches", "SKETCHES"),
    ("algorithms", "algorithms", "ALGORITHMS"),
    ("codecs", "codecs", "CODECS"),
    ("dome", "subspaces", "UPDATES"),
    ("robustness", "combining", "COMBINE_RULES"),
    ("algorithms", "server_optimisers", "SERVER_OPTIMISERS"),
    ("running", "models", "MODELS"),
    ("running", "graphs", "GRAPHS"),
    ("data", "data", "DATA_SETS"),
    ("data", "data", "PARTITIONS"),
]
STRUCTS = (
    *(Config, DataSettings, ModelSettings, EngineSettings, SketchSettings, CodecSettings, SubspaceSettings),
    *(PrivacySettings, SecureSettings, GraphSettings),
)
TABLES = {"data", "model", "algorithm", "sketch", "codec", "subspace", "privacy", "secure", "graph", "engine", "options"}
"""Fields that are tables of a configuration, or stand for the options of what a table names."""
