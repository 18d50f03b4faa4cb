"""Fills tables, lists, files and numbers into Markdown pages, between comments that a rendered page does not show.

A table, a list or a quoted file has lines of its own. A number stands within a sentence or a cell:

    <!-- table: codecs -->

    | name | what it sends |
    | --- | --- |
    | `dense` | all coordinates |

    <!-- end table -->

    A message takes <!-- number: link_ms -->15<!-- end number --> ms.

What stands between the comments is committed, so that pages read well wherever they are shown.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPERIMENTS, RESULTS = ROOT / "lab" / "experiments", ROOT / "lab" / "benchmarks" / "results"
"""The folders of recorded experiments and of recorded benchmarks."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_MARKED = re.compile(
    r"<!-- (?P<kind>table|list|file|number): (?P<name>\w+) -->(?P<content>.*?)<!-- end (?P=kind) -->", re.DOTALL
)
_MARKER = re.compile(r"<!--\s+(?:end\s+)?(?:table|list|file|number)\b.*?-->", re.DOTALL)
_NUMBER_FIRST = re.compile(r"^[ >]*<!-- number: \w+ -->", re.MULTILINE)


class MarkerError(Exception):
    """A page has a marker that cannot be filled."""


def filled(text: str, make: Callable[[str], str | None]) -> tuple[str, list[str]]:
    """Returns the text with new content between its markers, and the names whose content was stale.

    `make` returns the content for a name, or None to keep what is there.
    """
    _check_markers(text)
    stale: list[str] = []

    def renewed(part: re.Match[str]) -> str:
        made = make(part["name"])
        if made is None:
            return part[0]
        content = made if part["kind"] == "number" else f"\n\n{made}\n\n"
        if content != part["content"]:
            stale.append(part["name"])
        return f"<!-- {part['kind']}: {part['name']} -->{content}<!-- end {part['kind']} -->"

    return _MARKED.sub(renewed, text), list(dict.fromkeys(stale))


def _check_markers(text: str) -> None:
    stray = _MARKER.search(_MARKED.sub("", text))
    inner = next((found for part in _MARKED.finditer(text) if (found := _MARKER.search(part["content"]))), None)
    if unpaired := stray or inner:
        raise MarkerError(
            f"the marker '{unpaired[0]}' has no partner. Write '<!-- table: NAME -->' before the content and "
            "'<!-- end table -->' after it, each on one line, and likewise for 'list', 'file' and 'number'."
        )
    if first := _NUMBER_FIRST.search(text):
        raise MarkerError(
            f"the marker '{first[0].strip()}' begins a line, and Markdown takes such a line for HTML. Put a word before it."
        )


def markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(headings), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def shown(page: Path) -> str:
    """The page's path, relative to the repository if it lies there."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)
