"""Runs the examples of the docs, of README.md and CONTRIBUTING.md, and of docstrings as tests; shares tests out to workers."""

import os
import sys
from pathlib import Path, PurePosixPath

# Before numpy and torch are there, and for all processes that tests start: workers share the cores already, and threads on top
# of that only fight.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Where bytecode is switched off, every worker and every process that tests start would compile all sources for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["docs/*.md", "README.md", "CONTRIBUTING.md"])
docstrings = [Sybil(parsers=[DocTestParser()], path=folder, pattern="*.py") for folder in ("src", "lab/src")]

pytest_collect_file = SybilCollection([pages, *docstrings]).pytest()

FEDERATIONS = "flower"
"""The folders of tests that start SuperLinks and SuperNodes."""


class OneWorkerAFile(LoadScopeScheduling):
    """A file stays with one worker, because its fixtures are shared and the examples of a page build on each other.

    All tests with federations stay with one worker too. They share a federation between files and mostly wait, and two
    federations at a time would only slow each other down.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return FEDERATIONS if file.parent.name == FEDERATIONS else str(file)


def pytest_configure(config: pytest.Config) -> None:
    """Workers compile each kernel once between them."""
    if hasattr(config, "workerinput"):
        from compiling import share

        share(Path(config.option.basetemp).parent)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneWorkerAFile:
    return OneWorkerAFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the federations, which take longest."""
    items.sort(key=lambda item: item.path.parent.name != FEDERATIONS)
