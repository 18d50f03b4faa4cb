"""The installed versions, and that of sketchfed that wrote a run's folder, for messages about folders that cannot be read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from sketchfed.errors import StorageError
from sketchfed.version import __version__


@cache
def installed() -> dict[str, str]:
    """The versions on which results depend."""
    others = {name: version(name) for name in ("torch", "numpy")}
    return {"sketchfed": __version__} | others | {"python": python_version()}


SUMMARY, IDENTITY = "summary.json", "identity.json"


def writer(folder: Path) -> str | None:
    """The version of sketchfed that wrote a run's summary. None if the summary does not say."""
    try:
        found = json.loads((folder / SUMMARY).read_bytes())["versions"]["sketchfed"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and found else None


def remedy(folder: Path, otherwise: str) -> str:
    """Return advice for a folder that cannot be read: use the version that wrote it.

    If that is this version, or is not known, return `otherwise`.
    """
    found = writer(folder)
    if found in (None, __version__):
        return otherwise
    return (
        f"The run was written by sketchfed {found}, but this is sketchfed {__version__}. Resume it with sketchfed {found}, "
        "or start it anew in another folder."
    )


@contextmanager
def naming_writer(folder: Path) -> Iterator[None]:
    """Add the advice of `remedy` to errors about files of a run's folder that cannot be used."""
    try:
        yield
    except StorageError as error:
        advice = remedy(folder, otherwise="")
        if not advice:
            raise
        raise type(error)(f"{error} {advice}") from error
