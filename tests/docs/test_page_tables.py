"""Tables, lists and numbers that a command writes into the pages."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import marked
import pytest
import slowest
import tables
from marked import ROOT, MarkerError, filled

SPOILT = """Before.

<!-- table: ensembles -->

| old |

<!-- end table -->

In <!-- number: edges -->0<!-- end number --> words.
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(SPOILT)
    return page


def test_every_table_of_the_pages_is_up_to_date():
    """In a process of its own, where no other test has registered anything."""
    command = [sys.executable, ROOT / "docs" / "tables.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_is_stale_is_named_with_its_page_and_what_mends_it(page, capsys):
    assert tables.main(["--check"], [page]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" is stale. ")[0] for line in told] == [f"{page}: 'ensembles'", f"{page}: 'edges'"]
    assert all("make tables" in line and "python docs/tables.py" in line for line in told)
    assert page.read_text() == SPOILT


def test_what_is_stale_is_written_anew_and_nothing_else_changes(page):
    assert tables.main([], [page]) == 0
    made = tables.ensembles(), tables.MADE["edges"]()
    assert page.read_text() == SPOILT.replace("| old |", made[0]).replace("-->0<!--", f"-->{made[1]}<!--")
    assert tables.main(["--check"], [page]) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<!-- table: no_such -->\n\n<!-- end table -->", "nothing makes 'no_such'"),
        ("<!-- table: codecs -->\n\n| a |", "'<!-- table: codecs -->' has no partner"),
        ("| a |\n\n<!-- end table -->", "'<!-- end table -->' has no partner"),
        ("<!-- table: codecs -->\n\n<!-- table: models -->\n\n<!-- end table -->", "'<!-- table: models -->' has no partner"),
        ("<!-- table: codecs -->\n\n<!-- end list -->", "'<!-- table: codecs -->' has no partner"),
        ("Some <!-- number:\nedges -->5<!-- end number --> words", "has no partner"),
        ("Some\n<!-- number: edges -->5<!-- end number --> words", "begins a line"),
    ],
)
def test_a_marker_that_cannot_be_filled_is_refused(text, reason, page, capsys):
    page.write_text(text)
    assert tables.main([], [page]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{page}: ")
    assert reason in told
    assert page.read_text() == text


def test_everything_that_can_be_made_stands_on_a_page():
    written = "".join(page.read_text() for page in marked.PAGES)
    assert [name for name in tables.MADE if f": {name} -->" not in written] == []


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a checkout")
def test_no_page_shows_a_placeholder():
    """Only Sphinx fills placeholders in; a site that hosts code shows them as they are. The changelog may speak of them."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pages = [ROOT / name for name in listed.split("\0") if name and name != "CHANGELOG.md"]
    assert ROOT / "README.md" in pages
    assert [str(page.relative_to(ROOT)) for page in pages if page.exists() and "{{ " in page.read_text()] == []


JUNIT = """<testsuites><testsuite name="pytest" tests="3" time="75.4" timestamp="2026-01-02T03:04:05">
<testcase classname="tests.codecs.test_eden" name="test_one[a|b]" time="1.25"/>
<testcase classname="docs.audit.md" name="line:35,column:1" time="30.5"/>
<testcase classname="tests.test_seeds" name="test_two" time="0.004"><skipped/></testcase>
</testsuite></testsuites>"""


def test_the_slowest_tests_are_listed_by_the_time_they_took(tmp_path, page, monkeypatch):
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    page.write_text("<!-- table: slowest_tests --><!-- end table -->\n\n" + SPOILT)
    monkeypatch.setattr(slowest, "LISTED", 2)
    assert slowest.main([str(junit)], page) == 0
    written = page.read_text()
    assert "On 2026-01-02, 3 tests took 1 min 15 s." in written
    assert re.findall(r"^\| \d.*", written, re.MULTILINE) == [
        "| 30.5 | `docs/audit.md` | the example in line 35 |",
        r"| 1.2 | `tests/codecs/test_eden.py` | `test_one[a\|b]` |",
    ]
    assert written.endswith(SPOILT)


def test_a_table_that_depends_on_the_machine_is_never_stale(page):
    page.write_text("<!-- table: slowest_tests -->\n\nof another machine\n\n<!-- end table -->\n")
    assert tables.main(["--check"], [page]) == 0
    assert filled((ROOT / "CONTRIBUTING.md").read_text(), lambda name: "renewed" if name == slowest.NAME else None)[1] == [
        slowest.NAME
    ]
    with pytest.raises(MarkerError, match="nothing makes"):
        tables.made("fastest_tests")
