"""Commands of other distributions: found by entry points, loaded when they are needed, and never in the way of ours."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import typer

from command_line import refused, run
from sketchfed.cli import extensions

MODULE = "own_commands_for_this_test"


def greet(name: str = "world") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


@pytest.fixture
def installed(monkeypatch):
    """Make these the only commands that other distributions have: a name, and what its entry point names."""

    def install(**commands: object) -> None:
        module = ModuleType(MODULE)
        for name, thing in commands.items():
            setattr(module, name, thing)
        monkeypatch.setitem(sys.modules, MODULE, module)
        points = [EntryPoint(name, f"{MODULE}:{name}", extensions.GROUP) for name in commands]
        offer(*points)

    def offer(*points: EntryPoint) -> None:
        def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
            assert group == "sketchfed.commands"
            return [point for point in points if name in (None, point.name)]

        monkeypatch.setattr(extensions, "entry_points", entry_points)

    install.offer = offer
    return install


def test_a_function_is_a_command_with_its_options_and_help(installed):
    installed(greet=greet)
    assert run("greet").stdout == "hello world\n"
    assert run("greet", "--name", "lab").stdout == "hello lab\n"
    assert "Say hello." in run("--help").stdout
    assert "--name" in run("greet", "--help").stdout


def test_an_app_is_a_group_of_commands(installed):
    group = typer.Typer(help="Two greetings.")
    group.command(name="one")(greet)
    group.command(name="other")(lambda: typer.echo("bye"))
    installed(greetings=group)
    assert run("greetings", "one").stdout == "hello world\n"
    assert run("greetings", "other").stdout == "bye\n"
    assert "Two greetings." in run("--help").stdout


def test_a_built_in_command_cannot_be_replaced(installed):
    installed()
    ours = run("--help").stdout
    installed(sketches=greet)
    assert "hello" not in run("sketches").stdout
    assert run("--help").stdout == ours


def broken_points() -> list[EntryPoint]:
    return [
        EntryPoint("missing", "no_such_module_anywhere:command", extensions.GROUP),
        EntryPoint("without", "sketchfed.errors:command", extensions.GROUP),
        EntryPoint("number", "sketchfed:__version__", extensions.GROUP),
    ]


def test_a_broken_command_breaks_nothing_else(installed):
    installed.offer(*broken_points())
    shown = run("--help")
    assert shown.exit_code == 0
    assert all(point.name in shown.stdout for point in broken_points())
    assert run("sketches").exit_code == 0


@pytest.mark.parametrize("point", broken_points(), ids=lambda point: point.name)
def test_a_broken_command_says_what_is_wrong_with_it(installed, monkeypatch, capsys, point):
    installed.offer(point)
    said = refused(monkeypatch, capsys, point.name, "--some", "option")
    assert f"the command '{point.name}' of another distribution cannot be loaded: {point.value}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [["reproduce"], ["reproduce", "table-1", "--set", "trials=3"], ["bench", "--help"]])
def test_without_the_lab_its_commands_say_how_to_install_it(installed, monkeypatch, capsys, arguments):
    installed()
    said = refused(monkeypatch, capsys, *arguments)
    assert said.strip().count("\n") == 0
    assert f"'sketchfed {arguments[0]}' comes with sketchfed-lab, which is not installed: run 'pip install" in said
    assert arguments[0] not in run("--help").stdout


def test_an_unknown_command_is_still_unknown(installed):
    installed()
    result = run("reproduced")
    assert result.exit_code == 2
    assert "No such command" in result.output


def test_a_built_in_command_does_not_even_look_for_others(monkeypatch):
    def looked(**_: object) -> None:
        raise AssertionError("somebody looked for other commands")

    monkeypatch.setattr(extensions, "entry_points", looked)
    assert run("sketches", "--dim", "64", "--size", "8").exit_code == 0
    assert isinstance(run("reproduce").exception, AssertionError)
