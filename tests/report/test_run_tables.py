import re

import pytest
from rich.console import Console

from report.conftest import metrics, without_server
from sketchfed.errors import InputError
from sketchfed.report.latex import escape
from sketchfed.report.loading import read
from sketchfed.report.tables import compare, html_table, latex_table, terminal_table, write_latex

NASTY = r"<script>alert(1)</script> & [bold]50%_$5#{}~^\end"


def records(*folders):
    return [read(folder) for folder in folders]


def printed(table, width=130) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def row(records_, label) -> dict[str, str]:
    comparison = compare(records_)
    headings = [column.heading for column in comparison.columns]
    return next(dict(zip(headings, map(str, cells), strict=True)) for cells in comparison.cells() if cells[0].text == label)


def test_a_row_has_accuracy_bytes_and_bytes_of_one_client_in_one_round(run):
    shown = row(records(run("a", up=1_500, down=2_500_000)), "a")
    assert shown == {
        "run": "a", "accuracy": "0.969", "best": "0.969", "rounds": "5", "up": "30.0 kB", "down": "50.0 MB",
        "up/client": "1.50 kB", "down/client": "2.50 MB", "time": "10.0 s",
    }  # fmt: skip


def test_what_all_runs_share_is_said_once_and_what_differs_has_a_column(run):
    same = compare(records(run("a"), run("b", config="x = 1")))
    assert same.setting == "digits · mlp 64-10 (650 parameters) · 20 clients"
    other = records(run("c", config="x = 2"), run("d", summary={"model": "cnn", "clients": 7}))
    assert compare(other).setting == "digits"
    assert row(other, "d")["model"] == "cnn (650 parameters)"
    assert row(other, "d")["clients"] == "7"


def test_epsilon_is_a_column_only_if_a_run_claims_one(run):
    plain, private = records(run("a"), run("b", config="x = 1", epsilon=lambda n: 0.5911 * n))
    assert "ε" not in row([plain], "a")
    assert row([plain, private], "a")["ε"] == "—"
    assert row([plain, private], "b")["ε"] == "2.96"
    assert "ε" not in printed(terminal_table([plain]))
    assert "varepsilon" not in latex_table([plain])
    assert "ε" not in html_table(compare([plain]))


def test_captured_energy_is_a_column_only_if_a_run_measured_it(run):
    plain, adaptive = records(run("a"), run("b", config="x = 1", captured=lambda n: n / 10))
    assert "captured" not in row([plain], "a")
    assert row([plain, adaptive], "a")["captured"] == "—"
    assert row([plain, adaptive], "b")["captured"] == "30.0%"
    narrow, *others = terminal_table([adaptive]), terminal_table([plain], width=130)
    assert not any("aptured" in shown for shown in (latex_table([plain]), printed(narrow, 80), *map(printed, others)))
    for shown in (printed(terminal_table([adaptive], width=130)), latex_table([adaptive])):
        assert "captured" in shown
        assert "without noise" in shown
        assert "not for publication under a privacy claim" in " ".join(shown.split())


def test_of_several_seeds_epsilon_is_the_most_that_any_spent(run):
    spent = records(run("a", seed=1, epsilon=lambda n: 1.0), run("b", seed=2, epsilon=lambda n: 2.0))
    assert row(spent, "a")["ε"] == "2.00"


def test_seeds_share_a_row_with_mean_and_range(run):
    shown = row(
        records(*(run(f"r{n}", seed=n, accuracy=lambda _, n=n: n / 10, summary={"label": "l"}) for n in (5, 7, 9))), "l"
    )
    assert shown["run"] == "l (3 seeds)"
    assert shown["accuracy"] == "0.700 (0.500–0.900)"


def test_seeds_that_finished_at_different_rounds_say_from_when_to_when(run):
    assert row(records(run("a", seed=1, rounds=3), run("b", seed=2, rounds=5)), "a")["rounds"] == "4 (3–5)"


def test_runs_without_accuracy_are_compared_by_loss(run):
    shown = row(records(run("a", accuracy=lambda n: None)), "a")
    assert "accuracy" not in shown
    assert (shown["loss"], shown["least loss"]) == ("0.0312", "0.0312")
    mixed = records(run("b"), run("c", config="x = 1", accuracy=lambda n: None))
    assert row(mixed, "c")["accuracy"] == "—"
    assert row(mixed, "c")["loss"] == "0.0312"


def test_a_run_that_has_not_finished_a_round_has_dashes(run):
    shown = row(records(run("a"), run("b", lines=[], config="x = 1", summary={"finished": False})), "b")
    assert shown.pop("run") == "b (unfinished)"
    assert shown.pop("rounds") == "0"
    assert set(shown.values()) == {"—"}
    assert "loss" not in shown


def test_a_round_without_participants_divides_by_nothing(run):
    folder = run("a", rounds=1)
    (folder / "metrics.jsonl").write_text(
        (folder / "metrics.jsonl").read_text().replace('"participants": 4', '"participants": 0')
    )
    assert "up/client" not in row(records(folder), "a")


def test_no_runs_are_refused():
    with pytest.raises(InputError, match="no runs to report on"):
        compare([])


def test_the_terminal_shows_texts_from_files_without_obeying_them(run):
    shown = printed(terminal_table(records(run("a", summary={"label": "[bold]x[/] [link=y]z"})), width=130))
    assert "[bold]x[/] [link=y]z" in shown


@pytest.mark.parametrize("width", [80, 130])
def test_the_terminal_table_fits(run, width):
    several = records(*(run(f"r{n}", seed=n, summary={"label": "iterative srht 1/10 4 bits"}) for n in range(2)))
    shown = printed(terminal_table(several, width=width), width)
    assert max(map(len, shown.splitlines())) <= width
    assert all(cell in shown for cell in ("0.969", "20.0 kB", "60.0 kB", "10.0 s"))
    assert ("up/client" in shown) == (width == 130)


def test_metrics_on_clients_are_columns_where_there_is_room(run):
    """80 columns show what they always show."""
    figures = {"clients_accuracy": 0.912, "clients_accuracy_worst": 0.34, "clients_accuracy_spread": 0.05}
    found = records(run("a", lines=[line | figures for line in metrics()]))
    assert (row(found, "a")["on clients"], row(found, "a")["worst tenth"]) == ("0.912", "0.340")
    assert "0.340" not in printed(terminal_table(found, width=80), 80)
    wide = printed(terminal_table(found, width=150), 150)
    assert "0.340" in wide
    assert max(map(len, wide.splitlines())) <= 150
    assert "0.340" in latex_table(found)


def test_latex_is_a_booktabs_table_with_its_caption_in_a_comment(run):
    lines = latex_table(records(run("fed_avg", up=1_500))).splitlines()
    assert lines[0] == r"% Needs \usepackage{booktabs}."
    assert lines[1].startswith(r"% \caption{digits $\cdot$ mlp 64-10 (650 parameters)")
    assert "counted at the serializer, headers included" in lines[1]
    assert lines[2:5] == [r"\begin{tabular}{lrrrrrrrr}", r"\toprule", lines[4]]
    assert lines[5:] == [
        r"\midrule",
        r"fed\_avg & 0.969 & 0.969 & 5 & 30.0 kB & 60.0 kB & 1.50 kB & 3.00 kB & 10.0 s \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_rows_keep_their_columns_whatever_the_label(run):
    lines = latex_table(records(run("a", summary={"label": NASTY, "model": NASTY}))).splitlines()
    rows = [line for line in lines if line.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {8}
    assert lines[1].startswith("% ")
    assert not any("alert" in line for line in lines[2:] if line not in rows)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b", r"a\_b"),
        ("50% & $5 #1", r"50\% \& \$5 \#1"),
        ("{x}", r"\{x\}"),
        (r"\input{f}", r"\textbackslash{}input\{f\}"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("<>|", r"\textless{}\textgreater{}\textbar{}"),
        ("--rate ---", r"-{}-rate -{}-{}-"),
        ("[4pt] *", "{[}4pt] {*}"),
        ("0.1–0.2 ε×½", r"0.1--0.2 $\varepsilon$$\times$$\frac12$"),
        ("a\nb\tc", "a b c"),
        ("1\u202f000\u00a0B", r"1\,000~B"),
        ("Zürich", "Zürich"),
    ],
)
def test_texts_are_escaped_for_latex(text, escaped):
    assert escape(text) == escaped


def test_the_latex_file_is_written_whole(run, tmp_path):
    folder = run("a")
    path = write_latex(records(folder), tmp_path / "new" / "table.tex")
    assert path.read_text() == latex_table(records(folder))
    assert list(path.parent.iterdir()) == [path]


def test_a_file_in_the_way_is_refused_with_a_sentence(run, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write .*file/table\.tex.* Choose another place"):
        write_latex(records(run("a")), tmp_path / "file" / "table.tex")


def test_html_is_escaped_and_has_row_and_column_headings(run):
    table = html_table(compare(records(run("a", summary={"label": NASTY}))))
    assert "<script" not in table
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; [bold]" in table
    assert table.count('scope="col"') == 9
    assert table.count('scope="row"') == 1


def test_every_epsilon_comes_with_what_it_is_about(run):
    claim = "at δ = 1e-05, client level, zero-out, against the server (PLD)"
    other = "at δ = 1e-05, example level, add-remove, against the public (PLD)"
    made = [
        run("plain"),
        run("b", config="x = 1", epsilon=lambda n: n / 10, summary={"privacy": claim}),
        run("c", config="x = 2", epsilon=lambda n: n / 10, summary={"privacy": other}),
    ]
    assert compare(records(*made[:2])).claims == [f"ε {claim}."]
    assert compare(records(*made)).claims == [f"b: ε {claim}.", f"c: ε {other}."]
    assert compare(records(made[0])).claims == []
    assert "client level, zero-out" in latex_table(records(*made))
    assert terminal_table(records(*made)).caption is not None


def test_without_a_server_a_row_has_bytes_per_node_and_per_edge_and_in_total(run):
    found = records(run("a", lines=without_server(metrics())))
    assert row(found, "a") == {
        "run": "a", "accuracy": "0.969", "best": "0.969", "farthest": "0.484", "consensus": "0.400", "rounds": "5",
        "total": "20.0 kB", "per node": "6.67 kB", "per edge": "10.0 kB", "time": "10.0 s",
    }  # fmt: skip
    narrow, wide = (printed(terminal_table(found, width=width), width) for width in (80, 130))
    assert all(cell in narrow for cell in ("farthest", "0.484", "0.400", "20.0 kB"))
    assert "per node" not in narrow
    assert "6.67 kB" in wide
    for shown in (narrow, wide, latex_table(found)):
        assert "the node whose model is farthest from the mean" in " ".join(shown.split()).replace("’", "'")
    assert max(map(len, narrow.splitlines())) <= 80


def test_with_and_without_a_server_share_a_column_of_all_bytes(run):
    found = records(run("a", lines=without_server(metrics())), run("b", config="x = 1"))
    peers, served = row(found, "a"), row(found, "b")
    assert (peers["total"], served["total"]) == ("20.0 kB", "80.0 kB")
    assert (peers["up"], served["up"], served["per edge"]) == ("—", "20.0 kB", "—")
    assert "total" not in row(found[1:], "b")


def test_without_accuracy_the_farthest_node_has_a_loss(run):
    lines = without_server(metrics(accuracy=lambda n: 0.0), accuracy=None, farthest_accuracy=None)
    assert row(records(run("a", lines=lines)), "a")["farthest"] == "0.0625"
