"""Commands that other distributions add to `sketchfed`, through the entry-point group `sketchfed.commands`.

An entry point names a function, as for `typer.Typer.command`, or a `typer.Typer` with commands of its own. It is imported
when its command or the list of all commands is asked for, so its module should import what is heavy inside its functions.
"""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sketchfed.errors import InputError

if TYPE_CHECKING:
    from click import Command, Context

GROUP = "sketchfed.commands"
OF_THE_LAB = ("reproduce", "bench")
"""Commands of sketchfed-lab that users may look for here."""


class ExtensibleGroup(TyperGroup):
    """The built-in commands and those of other distributions. A built-in command takes precedence."""

    def list_commands(self, ctx: "Context") -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *sorted(found.name for found in entry_points(group=GROUP) if found.name not in own)]

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        return super().get_command(ctx, cmd_name) or extension(cmd_name)


def extension(name: str) -> "Command | None":
    """The command with this name from another distribution. None if there is none.

    A command that cannot be imported is replaced by one that says so, as is a command of sketchfed-lab if that is not
    installed.
    """
    for found in entry_points(group=GROUP, name=name):
        return _loaded(found)
    if name in OF_THE_LAB:
        return _refusing(
            name,
            f"'sketchfed {name}' comes with sketchfed-lab, which is not installed: "
            "run 'pip install sketchfed-lab', or 'pip install ./lab' in a checkout of sketchfed.",
        )
    return None


def _loaded(found: EntryPoint) -> "Command":
    owner = found.dist.name if found.dist else "another distribution"
    try:
        loaded = found.load()
        if not callable(loaded):
            raise TypeError(f"it is a {type(loaded).__name__}, neither a function nor a typer.Typer")
        return _command(found.name, loaded)
    except Exception as error:  # whatever is wrong there, the other commands still work
        why = f"{found.value} failed with {type(error).__name__}: {error}"
        return _refusing(
            found.name, f"the command '{found.name}' of {owner} cannot be loaded: {why}. Mend or uninstall {owner}."
        )


def _command(name: str, loaded: Callable[..., object]) -> "Command":
    if isinstance(loaded, typer.Typer):
        command = get_command(loaded)
        command.name = name
        return command
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.command(name=name)(loaded)
    return get_command(app)


def _refusing(name: str, why: str) -> "Command":
    """A command that takes any arguments and refuses them with this sentence."""

    def refuse() -> None:
        raise InputError(why)

    refuse.__doc__ = f"Not available: {why}"
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name=name, context_settings=anything, add_help_option=False)(refuse)
    return get_command(app)
