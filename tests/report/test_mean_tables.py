import json

import pytest
from rich.console import Console

from sketchfed.codecs import make_codec
from sketchfed.codecs.trials import Trials
from sketchfed.report.means import HEADINGS, MeanRow, csv_table, json_lines, latex_table, terminal_table, with_error


def row(variant="", dim=1024, size=20, **changes):
    measured = {
        "error": 2.0841,
        "standard_error": 0.0123,
        "predicted": 2.08,
        "bytes": 152.0,
        "bits": 32,
        "encode_seconds": 0.00012,
        "decode_seconds": 0.0041,
        "trials": 100,
    }
    return MeanRow(make_codec("rand_proj_spatial", dim=dim, size=size, clients=21), variant, Trials(**(measured | changes)))


def printed(rows, width=80):
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_table(rows, "a title", width=width))
    return capture.get()


def test_a_row_has_a_cell_for_every_heading():
    cells = ["rand_proj_spatial, R avg", "20 × 32", "2.084 ± 0.012", "2.08", "152", "0.12", "4.10"]
    assert row("R avg").cells() == cells
    assert len(cells) == len(HEADINGS)
    assert row(predicted=None, bytes=91.5, decode_seconds=2.25).cells()[3:] == ["–", "91.5", "0.12", "2,250"]


def test_long_rows_still_fit_a_terminal():
    wide = [
        row(dim=10**6, size=10**5, bytes=123_456.7, error=0.1234, standard_error=0.0021, decode_seconds=20.1),
        row("R known"),
    ]
    for rows in (wide, [row()]):
        said = printed(rows)
        assert "…" not in said
        assert max(map(len, said.splitlines())) <= 80
    assert "\n   R known" in printed(wide)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (15.6161, 0.0083, "15.616 ± 0.008"),
        (1.0084, 0.00021, "1.0084 ± 0.0002"),
        (29.6, 2.61, "29.6 ± 2.6"),
        (0.0844, 0.00088, "0.0844 ± 0.0009"),
        (3.7e-15, 1e-17, "3.70e-15"),
        (1.0, 1e-9, "1.00"),
        (0.483, 0.0, "0.483"),
        (12345.6, 210.0, "12346 ± 210"),
    ],
)
def test_errors_set_the_digits(value, error, shown):
    assert with_error(value, error) == shown


def test_programs_get_everything_unrounded():
    facts = {"dim": 1024, "seed": 7}
    (line,) = json_lines([row("R avg")], facts).splitlines()
    assert json.loads(line) == {
        "codec": "rand_proj_spatial",
        "variant": "R avg",
        "numbers": 20,
        **vars(row().trials),
        **facts,
    }
    header, values = csv_table([row("R avg")], facts).splitlines()
    assert header.split(",") == list(json.loads(line))
    assert values.startswith("rand_proj_spatial,R avg,20,2.0841,0.0123,")


def test_papers_get_a_tabular():
    said = latex_table([row("R avg")], "21 vectors")
    assert r"rand\_proj\_spatial, R avg & 20 $\times$ 32 & 2.084 $\pm$ 0.012 & 2.08 & 152 & 0.12 & 4.10 \\" in said
    assert r"% \caption{21 vectors}" in said
