"""Writing files so that a crash at any instant leaves the old one or the new one, never something between."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sketchfed.errors import StorageError


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says what to do; the run stays as it was last saved."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}. What was saved before is intact: make room or change the "
            "folder's permissions, then go on with --resume."
        ) from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step, on the disk before this returns."""
    with storing(path):
        fresh = path.with_name(path.name + ".new")
        try:
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and deletions in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
