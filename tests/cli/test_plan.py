import pytest
import torch
from typer.testing import CliRunner

from sketchfed.cli.plan import app
from sketchfed.data import DataSet
from sketchfed.errors import InputError
from sketchfed.planner import Problem, plan
from sketchfed.sketches import SKETCHES


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def data_set(outputs=2):
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(60, 12, generator=generator), torch.arange(60) % outputs
    return DataSet(
        name="small", x_train=x, y_train=y, x_test=x, y_test=y, outputs=outputs, shape=(12,), prepare=lambda rows: rows
    )


def test_without_options_it_plans_for_every_family():
    said = run()
    assert "199,210 → 19,921, 1 local step" in said
    assert all(name in said for name in ("dense", *SKETCHES))


def test_it_shows_what_the_planner_says():
    said = run("--dim", "1024", "--size", "64", "--smoothness", "2", "--target", "0.001", "--local-steps", "3")
    rows = plan(Problem(smoothness=2.0, strong_convexity=0.01), dim=1024, size=64, target=0.001, local_steps=3)
    for row in rows:
        (line,) = [line for line in said.splitlines() if line.split()[:1] == [row.family]]
        assert f"{row.rounds:,}" in line
        assert f"{row.relative:.2f}×" in line
    assert "3 local steps" in said


def test_the_paper_s_own_figures_are_an_option():
    said = run("--dim", "1000", "--size", "10", "--published-alpha", "--analysis", "published")
    (count,) = [line for line in said.splitlines() if line.split()[:1] == ["count"]]
    assert count.split()[1] == "300.00"
    assert float(count.split()[2]) == pytest.approx(1 / (8 * 301), rel=1e-2)
    assert "as printed" in said


def test_constants_are_measured_on_data(monkeypatch):
    monkeypatch.setattr("sketchfed.data.load", lambda name: data_set())
    said = run("--data", "small", "--clients", "3", "--size", "4", "--analysis", "curvature")
    assert "12 → 4" in said
    assert "tr(H)/λ" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--data", "small", "--dim", "13"], "--dim 13 contradicts --data small, which has 12 features"),
        (["--analysis", "sharp"], "no analysis named 'sharp'. Did you mean 'sharpened'?"),
        (["--analysis", "curvature"], "needs the problem's top_curvature"),
        (["--dim", "5", "--size", "9"], "size 9 exceeds dim 5"),
        (["--strong-convexity", "2"], "strong_convexity 2 exceeds smoothness 1"),
    ],
)
def test_wrong_input_is_refused(monkeypatch, arguments, why):
    monkeypatch.setattr("sketchfed.data.load", lambda name: data_set())
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert why in str(refused.value)


def test_data_with_more_than_two_classes_is_refused(monkeypatch):
    monkeypatch.setattr("sketchfed.data.load", lambda name: data_set(outputs=3))
    with pytest.raises(InputError, match="is a classification with 3 outputs"):
        CliRunner().invoke(app, ["--data", "small"], catch_exceptions=False)
