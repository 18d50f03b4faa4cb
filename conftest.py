"""Runs the examples of the docs, of README.md and CONTRIBUTING.md, and of docstrings as tests."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["docs/*.md", "README.md", "CONTRIBUTING.md"])
docstrings = Sybil(parsers=[DocTestParser()], path="src", pattern="*.py")

pytest_collect_file = (pages + docstrings).pytest()
