"""Writes the table of the slowest tests in CONTRIBUTING.md from what `pytest --junit-xml` recorded.

`make slowest` runs the tests and then `python docs/slowest.py JUNIT.xml`. The times are those of one machine, so nothing checks
whether the table is stale.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from marked import ROOT, filled, markdown_table, shown

from sketchfed.report.units import shown_seconds

NAME = "slowest_tests"
LISTED = 20


def slowest(junit: Path) -> str:
    """How long all tests took, and a table of those that took longest, each with its fixtures."""
    suite = next(ElementTree.parse(junit).getroot().iter("testsuite"))
    cases = sorted(suite.iter("testcase"), key=lambda case: float(case.attrib["time"]), reverse=True)
    took, day = shown_seconds(float(suite.attrib["time"])), suite.attrib["timestamp"][:10]
    rows = [
        [f"{float(case.attrib['time']):.1f}", f"`{_file(case.attrib['classname'])}`", _test(case.attrib["name"])]
        for case in cases[:LISTED]
    ]
    return f"On {day}, {len(cases):,} tests took {took}.\n\n" + markdown_table(["seconds", "file", "test"], rows)


def _test(name: str) -> str:
    """A test's name, or the line of an example on a page."""
    example = re.fullmatch(r"line:(\d+),column:\d+", name)
    return f"the example in line {example[1]}" if example else f"`{name}`"


def _file(classname: str) -> str:
    """The file of a test, which JUnit writes with dots, without its ending if that is .py, and with the class of the test."""
    classname = re.sub(r"\.[A-Z]\w*$", "", classname)
    stem, _, ending = classname.rpartition(".")
    return f"{stem.replace('.', '/')}.md" if ending == "md" else f"{classname.replace('.', '/')}.py"


def main(arguments: Sequence[str] | None = None, page: Path = ROOT / "CONTRIBUTING.md") -> int:
    parser = argparse.ArgumentParser(description="Write the table of the slowest tests.")
    parser.add_argument("junit", type=Path, help="what `pytest --junit-xml` wrote")
    table = slowest(parser.parse_args(arguments).junit)
    renewed, stale = filled(page.read_text(), lambda name: table if name == NAME else None)
    page.write_text(renewed)
    print(f"{shown(page)}: {'wrote' if stale else 'already has'} '{NAME}'.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
