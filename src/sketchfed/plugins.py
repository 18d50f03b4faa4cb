"""A user's own parts, named in a configuration as `package.module:function`."""

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from sketchfed.errors import InputError


def resolve(reference: str, kind: str) -> Callable[..., Any]:
    """What `package.module:function` names; `kind` says in errors what it was wanted for, such as "data set".

    Modules of the current folder are found too, after those that are installed.

    >>> resolve("math:sqrt", "activation")(9)
    3.0
    """
    module_name, colon, attribute = reference.partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module_name.split("."))):
        raise InputError(
            f"{reference!r} does not name a {kind}: write 'package.module:function', the module's dotted name, a colon, "
            "and the function's name."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file of the current folder hides an installed module
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(_broken(reference, kind, module_name, error)) from error
        raise InputError(
            f"{kind} {reference!r}: there is no module {error.name!r}. Install it, or start from the folder that holds it; "
            f"the current folder is {here}."
        ) from error
    except Exception as error:
        raise InputError(_broken(reference, kind, module_name, error)) from error
    if not hasattr(module, attribute):
        raise InputError(f"{kind} {reference!r}: module {module_name!r} has no {attribute!r}. Check the name after the colon.")
    found = getattr(module, attribute)
    if not callable(found):
        raise InputError(
            f"{kind} {reference!r} is a {type(found).__name__}, which cannot be called. Name a function that returns a {kind}."
        )
    return found  # type: ignore[no-any-return]


def check_options(
    function: Callable[..., object], options: dict[str, Any], *, owner: str, besides: tuple[str, ...] = ()
) -> None:
    """Refuse options that `function` does not take, or that it needs and lacks.

    `owner` names it in errors, such as "data set 'mnist'"; parameters in `besides` are not options.
    """
    try:
        parameters = [p for name, p in signature(function).parameters.items() if name not in besides]
    except ValueError:  # some functions written in C do not tell
        return
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for option in options:
            if option not in known:
                raise InputError(f"{owner} has no option {option!r}; it has {', '.join(known) or 'none'}.")
    for p in parameters:
        if p.default is p.empty and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in options:
            raise InputError(f"{owner} needs the option {p.name!r}. Give it a value.")


def _broken(reference: str, kind: str, module: str, error: Exception) -> str:
    return f"{kind} {reference!r}: importing {module!r} failed with {type(error).__name__}: {error}. Mend that module."
