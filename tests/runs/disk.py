"""A file system that fails at a chosen write, in one of several ways, for one folder."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Crash(BaseException):
    """The process ends here: nothing that handles errors gets to see it."""


WAYS = ("killed", "power", "mixed", "full")
"""What happens at the chosen write.

killed   the process ends before it, or in the middle where bytes are written
power    the machine loses power before it, and with it whatever was not yet forced to the disk
mixed    the same, but the folder's own names were written out by chance: disks do not keep the order of what is not forced
full     no space is left, or only for half of the bytes
"""


class Disk:
    """Counts what is written below `folder`, and fails at number `fail_at`.

    A write is whatever changes something: opening for writing, writing, fsync, replacing, deleting, making a folder.
    What survives a loss of power is kept in a model: a file's bytes as of its last fsync, a folder's names as of its own.
    """

    def __init__(self, folder: Path, *, fail_at: int, way: str) -> None:
        self.folder, self.writes = folder, []
        self._fail_at, self._way = fail_at, way
        self._file_at: dict[Path, int] = {}  # which file each path names
        self._opened: dict[int, int] = {}  # which file each descriptor writes to
        self._forced: dict[int, bytes] = {}  # bytes of each file as of its last fsync
        self._names: dict[Path, dict[str, int]] = {}  # names in each folder as of its last fsync
        self._files = 0

    @property
    def failed(self) -> bool:
        return len(self.writes) > self._fail_at

    def _about_to(self, what: str, half: Callable[[], object] = lambda: None) -> None:
        self.writes.append(what)
        if len(self.writes) != self._fail_at + 1:
            return
        if self._way in ("power", "mixed") and self.folder.exists():
            self._lose_power()
        else:
            half()
        if self._way == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise Crash(what)

    def _lose_power(self) -> None:
        if self._way == "mixed":
            self._names[self.folder] = self._listed(self.folder)
        shutil.rmtree(self.folder)
        os.mkdir(self.folder)  # noqa: PTH102 (Path.mkdir is watched, and so is Path.open)
        for parent, names in sorted(self._names.items()):
            for name, number in names.items() if os.path.isdir(parent) else ():  # noqa: PTH112
                if number < 0:
                    os.mkdir(parent / name)  # noqa: PTH102
                else:
                    with open(parent / name, "wb") as file:  # noqa: PTH123
                        file.write(self._forced.get(number, b""))

    def _listed(self, folder: Path) -> dict[str, int]:
        return {path.name: -1 if path.is_dir() else self._named(path) for path in folder.iterdir()}

    def _named(self, path: Path) -> int:
        if path not in self._file_at:
            self._files += 1
            self._file_at[path] = self._files
        return self._file_at[path]

    @contextmanager
    def watching(self):
        """Everything below goes through this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name, watched in (
                (Path, "open", self._open),
                (Path, "replace", self._replace),
                (Path, "unlink", self._unlink),
                (Path, "mkdir", self._mkdir),
                (os, "fsync", self._fsync),
            ):
                patch.setattr(owner, name, watched(getattr(owner, name)))
            yield self

    def _open(self, real):
        def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if "r" in mode or self.folder not in path.parents:
                return real(path, mode, *arguments, **options)
            self._about_to(f"open {path.name}")
            file = real(path, mode, *arguments, **options)
            self._opened[file.fileno()] = self._named(path)
            return _Watched(file, path.name, self._about_to)

        return opened

    def _replace(self, real):
        def replaced(path: Path, target: Path) -> Path:
            self._about_to(f"replace {target.name}")
            self._file_at[target] = self._file_at.pop(path)
            return real(path, target)

        return replaced

    def _unlink(self, real):
        def unlinked(path: Path, missing_ok: bool = False) -> None:
            self._about_to(f"unlink {path.name}")
            self._file_at.pop(path, None)
            real(path, missing_ok=missing_ok)

        return unlinked

    def _mkdir(self, real):
        def made(path: Path, *arguments: Any, **options: Any) -> None:
            if not path.exists():
                self._about_to(f"mkdir {path.name}")
            real(path, *arguments, **options)

        return made

    def _fsync(self, real):
        def forced(descriptor: int) -> None:
            """In the model alone: the real disk would only take its time."""
            for folder in (self.folder, *self.folder.iterdir()) if self.folder.exists() else ():
                if folder.is_dir() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
                    self._about_to(f"fsync {folder.name}/")
                    self._names[folder] = self._listed(folder)
                    return
            if descriptor in self._opened:
                number = self._opened[descriptor]
                path = next(path for path, named in self._file_at.items() if named == number)
                self._about_to(f"fsync {path.name}")
                self._forced[number] = path.read_bytes()

        return forced


class _Watched:
    """A file whose writes are counted."""

    def __init__(self, file: Any, name: str, about_to: Callable[..., None]) -> None:
        self._file, self._name, self._about_to = file, name, about_to

    def write(self, data: bytes) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._about_to(f"write {self._name}", half)
        return self._file.write(data)

    def __enter__(self) -> "_Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
