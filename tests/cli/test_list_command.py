import re

import pytest
from typer.testing import CliRunner

from sketchfed.cli import app
from sketchfed.cli.catalogue import _registries
from sketchfed.errors import UnknownNameError

KINDS = (
    "sketches",
    "codecs",
    "algorithms",
    "combine_rules",
    "server_optimisers",
    "mechanisms",
    "graphs",
    "models",
    "data",
    "partitions",
    "loops",
    "losses",
    "batch_losses",
    "optimisers",
    "schedules",
    "metrics",
    "attacks",
    "knowledge",
    "engines",
)
METRICS = """
def half(outputs, targets):
    \"\"\"Always a half.

    Nothing else.
    \"\"\"
    return 0.5
"""


def listed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["list", *arguments], env={"COLUMNS": "240"}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_every_kind_is_listed_with_every_name():
    shown = listed()
    assert tuple(_registries()) == KINDS
    for kind, registry in _registries().items():
        assert bool(re.search(rf"^{kind} *$", shown, re.MULTILINE)) == bool(registry.names())
        for name in registry.built_in:
            assert re.search(rf"^  {name} .* sketchfed *$", shown, re.MULTILINE), name


def test_a_kind_can_be_asked_for():
    shown = listed("codecs")
    assert re.search(r"^  eden  .*a random rotation.*  Vargaftik et al\. 2022  .*sketchfed *$", shown, re.MULTILINE)
    assert "srht" not in shown
    with pytest.raises(UnknownNameError, match=r"no kind of parts named 'codec'\. Did you mean 'codecs'"):
        listed("codec")


def test_parts_of_installed_packages_are_listed_with_where_they_come_from(installed):
    announced = {"half": "halves:half", "gone": "halves:gone", "accuracy": "halves:half"}
    installed("halves", announced, METRICS, group="sketchfed.metrics")
    shown = listed("metrics")
    assert re.search(r"^  half +Always a half\. +halves 1\.2 \(entry point\) *$", shown, re.MULTILINE)
    assert "cannot be used: metric 'gone' of halves 1.2 (entry point halves:gone) cannot be loaded: AttributeError" in shown
    assert "halves 1.2 announces 'accuracy' too, which has no effect: built-in parts are not replaced." in shown
