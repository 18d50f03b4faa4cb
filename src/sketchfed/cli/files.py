"""Where commands write."""

from pathlib import Path

from sketchfed.errors import InputError


def writable(folder: Path) -> Path:
    """Make a folder for results now: better to fail before the work than after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write results to {folder}: {error.strerror}. Choose another folder with --out.") from None
    return folder
