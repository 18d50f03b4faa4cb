"""How commands are tried: in this process, and what they refuse."""

import sys

import pytest
from typer.testing import CliRunner

from sketchfed.cli import app, main


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def refused(monkeypatch, capsys, *arguments: str) -> str:
    """What the command line says on standard error when it refuses, with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["sketchfed", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    return capsys.readouterr().err
