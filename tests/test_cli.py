import subprocess
import sys

import pytest

from command_line import refused, run
from sketchfed.sketches import SKETCHES


def test_sketches_shows_every_family():
    result = run("sketches")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in SKETCHES)
    assert "3 dim/size" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["sketches", "--dim", "5", "--size", "9"], "size 9 exceeds dim 5"),
        (["sketches", "--size", "0"], "size must be from 1"),
    ],
)
def test_wrong_input_is_a_sentence_and_exit_code_two(monkeypatch, capsys, tmp_path, arguments, why):
    monkeypatch.chdir(tmp_path)
    said = refused(monkeypatch, capsys, *arguments)
    assert why in said
    assert "Traceback" not in said


def test_version_and_help_answer():
    assert run("--version").stdout.startswith("sketchfed 0.")
    assert "audit" in run("--help").stdout


def test_the_command_is_installed():
    said = subprocess.run(
        [sys.executable, "-m", "sketchfed.cli", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.startswith("sketchfed ")
