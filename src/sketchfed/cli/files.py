"""The folders that commands write to."""

from pathlib import Path

from sketchfed.errors import InputError


def writable(folder: Path) -> Path:
    """Create a folder for results now, because it is better to fail before the work than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write results to {folder}: {error.strerror}. Choose another folder with --out.") from None
    return folder
