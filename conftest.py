"""Runs the examples of the docs, of README.md and CONTRIBUTING.md, and of docstrings as tests; shares tests out to workers."""

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["docs/*.md", "README.md", "CONTRIBUTING.md"])
docstrings = [Sybil(parsers=[DocTestParser()], path=folder, pattern="*.py") for folder in ("src", "lab/src")]

pytest_collect_file = SybilCollection([pages, *docstrings]).pytest()

FEDERATIONS = "flower"
"""The folders of tests that start SuperLinks and SuperNodes, and the name of the group that one worker runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay together when there are several workers, and put the longest group first.

    The tests of a file, or the examples of a page, build on each other. Federations are shared between files. They mostly wait,
    and two of them at a time would only slow each other down.
    """
    for item in items:
        group = FEDERATIONS if item.path.parent.name == FEDERATIONS else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.path.parent.name != FEDERATIONS)
