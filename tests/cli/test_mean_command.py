import csv
import io
import json

import pytest
from typer.testing import CliRunner

from sketchfed.cli import app
from sketchfed.codecs import CODECS
from sketchfed.errors import InputError

SMALL = ("--dim", "64", "--clients", "5", "--correlation", "2.4", "--trials", "3")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["mean", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(*arguments: str) -> list[dict]:
    return [json.loads(line) for line in run(*SMALL, *arguments, "--format", "json").splitlines()]


def test_the_table_has_every_codec_and_fits_a_terminal():
    said = run(*SMALL, "--size", "8")
    assert "5 vectors of 64 numbers (normal), R = 2.4, ‖mean‖² = 0.68" in said
    assert "8 numbers, 3 trials" in said
    for name in CODECS:
        assert f"\n {name} " in said
    assert said.count("R known") == said.count("R avg") == 2
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_equal_size_means_equal_size_and_everything_is_recorded():
    found = rows("--size", "8")
    assert {row["codec"] for row in found} == set(CODECS)
    assert all(row["numbers"] == 8 for row in found if row["codec"] != "dense")
    (one,) = [row for row in found if row["codec"] == "rand_k" and not row["variant"]]
    assert one["predicted"] == pytest.approx((64 / 8 - 1) / 5)
    assert one["correlation"] == pytest.approx(2.4, abs=1e-6)
    assert one["mean_square"] == pytest.approx(3.4 / 5)
    assert (one["dim"], one["clients"], one["trials"], one["vectors"], one["seed"]) == (64, 5, 3, "normal", 7)
    assert all(row["error"] >= 0 and row["bytes"] > 0 and row["standard_error"] is not None for row in found)


def test_equal_bytes_are_not_exceeded_and_few_bits_buy_numbers():
    found = rows("--bytes", "100", "--codec", "sketched", "--codec", "rand_proj_spatial")
    assert all(row["bytes"] <= 100 for row in found)
    exact, rounded = (row for row in found if row["codec"] == "sketched")
    assert rounded["bits"] == 4
    assert rounded["numbers"] > 3 * exact["numbers"]


def test_what_does_not_fit_is_left_out_with_the_reason():
    said = run(*SMALL, "--bytes", "100", "--codec", "dense", "--codec", "rand_k")
    assert "left out: codec 'dense' cannot send less than all 64 numbers" in " ".join(said.split())
    assert "\n rand_k " in said


def test_the_same_seed_gives_the_same_errors_and_another_seed_others():
    first, second, third = (
        [row["error"] for row in rows("--size", "8", "--codec", "sketched", *more)] for more in ((), (), ("--seed", "8"))
    )
    assert first == second != third


def test_the_table_can_be_pasted_into_a_paper_or_read_by_a_program():
    latex = run(*SMALL, "--codec", "rand_k_spatial", "--format", "latex")
    assert r"\begin{tabular}{lrrrrrr}" in latex
    assert r"rand\_k\_spatial, R known & 1 $\times$ 32 & " in latex
    table = list(csv.DictReader(io.StringIO(run(*SMALL, "--codec", "rand_k_spatial", "--format", "csv"))))
    assert [row["variant"] for row in table] == ["", "R known", "R avg"]
    assert float(table[1]["predicted"]) <= float(table[2]["predicted"])


def test_sizes_and_correlations_have_defaults():
    (one,) = rows_of_defaults("--dim", "128", "--clients", "6")
    assert one["numbers"] == 2
    assert one["correlation"] == pytest.approx(3, abs=1e-6)


def rows_of_defaults(*arguments: str) -> list[dict]:
    said = run(*arguments, "--trials", "2", "--codec", "top_k", "--format", "json")
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.parametrize("shape", ["power_law", "base"])
def test_other_vectors(shape):
    (one,) = [json.loads(run(*SMALL, "--vectors", shape, "--codec", "top_k", "--size", "8", "--format", "json"))]
    assert one["vectors"] == shape
    assert one["error"] < 0.7


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--correlation", "21"], "must be from −1 to 20 (identical vectors), got 21"),
        (["--correlation", "-2"], "must be from −1 to 20 (identical vectors), got -2"),
        (["--dim", "16", "--size", "17"], "size 17 exceeds dim 16"),
        (["--size", "0"], "size must be a positive integer, got 0"),
        (["--size", "5", "--bytes", "100"], "--size 5 and --bytes 100 contradict each other"),
        (["--bytes", "0"], "a budget must be a positive number of bytes per packet, got 0"),
        (["--bytes", "20"], "cannot send less than"),
        (["--trials", "0"], "trials must be a positive integer, got 0"),
        (["--clients", "0"], "clients must be a positive integer, got 0"),
        (["--dim", "0"], "dim must be a positive integer, got 0"),
        (["--codec", "randk"], "no codec named 'randk'. Did you mean 'rand_k'"),
        (["--format", "tex"], "no format named 'tex'"),
        (["--vectors", "gauss"], "no shape of vectors named 'gauss'"),
    ],
)
def test_wrong_input_is_refused(arguments, why):
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(app, ["mean", *arguments], catch_exceptions=False)
    assert why in str(refused.value)


def test_a_bar_appears_when_it_takes_long(monkeypatch):
    monkeypatch.setattr("sketchfed.cli.mean._PATIENCE", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = CliRunner().invoke(app, ["mean", *SMALL, "--codec", "dense"], catch_exceptions=False)
    assert "rounds" in result.stderr
    assert "rounds" not in result.stdout
