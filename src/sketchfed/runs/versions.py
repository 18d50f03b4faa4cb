"""Finds the version of sketchfed that wrote a run's folder, for messages about folders that cannot be read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sketchfed.errors import StorageError
from sketchfed.version import __version__

SUMMARY, IDENTITY = "summary.json", "identity.json"


def writer(folder: Path) -> str | None:
    """The version of sketchfed that wrote a run's summary. None if the summary does not say."""
    try:
        version = json.loads((folder / SUMMARY).read_bytes())["versions"]["sketchfed"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and version else None


def remedy(folder: Path, otherwise: str) -> str:
    """Return advice for a folder that cannot be read: use the version that wrote it.

    If that is this version, or is not known, return `otherwise`.
    """
    version = writer(folder)
    if version in (None, __version__):
        return otherwise
    return (
        f"The run was written by sketchfed {version}, but this is sketchfed {__version__}. Resume it with sketchfed {version}, "
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
