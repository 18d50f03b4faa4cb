"""Functions of the user's own: their names in messages, and whether they take what they will be called with."""

import inspect

from sketchfed.errors import InputError

TAKEN = {
    "train": ("model", "data", "context"),
    "evaluate": ("model", "data", "context"),
    "batch_loss": ("model", "batch"),
    "collate": ("examples",),
    "loss": ("outputs", "targets"),
    "metric": ("outputs", "targets"),
}
"""What each function is called with."""


def called_name(function: object, usual: str) -> str:
    """The name of a function as its author wrote it. One without a name is called by what it is for.

    >>> called_name(len, "loss"), called_name(lambda: 0, "loss")
    ('len', 'loss')
    """
    name = getattr(function, "__name__", None) or type(function).__name__
    return usual if name == "<lambda>" else str(name)


def check_function(function: object, usual: str) -> None:
    """Raise `InputError` unless a function can be called with what a run hands it."""
    taken = TAKEN[usual]
    call = f"{usual}({', '.join(taken)})"
    if not callable(function):
        raise InputError(f"{usual} must be a function {call}, got {function!r}. Pass the function itself.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as functions that are written in C
        return
    try:
        signature.bind(*taken)
    except TypeError as error:
        name = called_name(function, usual)
        raise InputError(f"'{name}' cannot be called as {call}: {error}. It has {signature}. Change its parameters.") from None
