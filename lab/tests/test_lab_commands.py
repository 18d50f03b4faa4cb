import json

import pytest

from command_line import refused, run
from sketchfed.sketches import SKETCHES


def test_reproduce_and_bench_list_what_there_is():
    assert "table-1" in run("reproduce").stdout
    assert "kernels" in run("bench").stdout
    assert "harness" not in run("bench").stdout


def test_reproduce_writes_measured_beside_published(tmp_path):
    result = run("reproduce", "table-1", "--out", str(tmp_path), "--set", "trials=20", "--set", "sizes=[8]", "--set", "dim=64")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {row["family"] for row in rows} >= set(SKETCHES)
    count = next(row for row in rows if row["family"] == "count")
    assert count["published_alpha"] == 3 * 64 / 8
    assert count["exact_alpha"] == 63 / 8
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    assert "| count | 8 | 24 |" in (tmp_path / "table.md").read_text()


def test_the_same_seed_reproduces_the_same_figures(tmp_path):
    for name in ("first", "second"):
        run("reproduce", "table-1", "--out", str(tmp_path / name), "--set", "trials=5", "--set", "sizes=[8]", "--set", "dim=64")
    assert (tmp_path / "first" / "results.jsonl").read_text() == (tmp_path / "second" / "results.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["reproduce", "table-2"], "no experiment named 'table-2'. Did you mean 'table-1'?"),
        (["reproduce", "table-1", "--set", "trails=3"], "no setting named 'trails'. Did you mean 'trials'?"),
        (["reproduce", "table-1", "--set", "trials=many"], "KEY=VALUE with a TOML value, got 'trials=many'"),
        (["reproduce", "table-1", "--set", "trials"], "'trials' must be a positive integer, got None"),
        (["reproduce", "table-1", "--set", "trials=0"], "'trials' must be a positive integer, got 0"),
        (["reproduce", "table-1", "--set", "sizes=64"], "'sizes' must be a list of positive integers"),
        (["bench", "kernel"], "no benchmark named 'kernel'. Did you mean 'kernels'?"),
    ],
)
def test_wrong_input_is_a_sentence_and_exit_code_two(monkeypatch, capsys, tmp_path, arguments, why):
    monkeypatch.chdir(tmp_path)
    said = refused(monkeypatch, capsys, *arguments)
    assert why in said
    assert "Traceback" not in said


def test_an_unwritable_folder_is_refused_before_the_work(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "Choose another folder with --out" in refused(
        monkeypatch, capsys, "reproduce", "table-1", "--out", str(tmp_path / "file")
    )
