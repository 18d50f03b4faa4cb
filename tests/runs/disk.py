"""A disk that keeps, for one folder, what a failure at any write would leave there; or one that is full at a chosen write."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WAYS = ("killed", "power", "mixed")
"""What a failure leaves behind.

killed   the process ends before the write, or in the middle where bytes are written
power    the machine loses power before it, and with it whatever was not yet forced to the disk
mixed    the same, but the folder's own names were written out by chance: disks do not keep the order of what is not forced
"""


class Disk:
    """Counts what is written below `folder`.

    A write is whatever changes something: opening for writing, writing, fsync, replacing, deleting, making a folder.
    With `wrecks`, `wrecks / str(number)` is what a failure at that write leaves behind; the work itself goes on. A run is thus
    done once for all its failures, and nothing that handles errors gets to see them.
    At number `full_at` no space is left, or only for half of the bytes.
    What survives a loss of power is kept in a model: a file's bytes as of its last fsync, a folder's names as of its own.
    """

    def __init__(self, folder: Path, *, wrecks: Path | None = None, way: str = "killed", full_at: int | None = None) -> None:
        self.folder, self.writes = folder, []
        self._wrecks, self._way, self._full_at = wrecks, way, full_at
        self._file_at: dict[Path, int] = {}  # which file each path names
        self._opened: dict[int, int] = {}  # which file each descriptor writes to
        self._forced: dict[int, bytes] = {}  # bytes of each file as of its last fsync
        self._names: dict[Path, dict[str, int]] = {}  # names in each folder as of its last fsync
        self._files = 0

    def failures(self) -> Iterator[tuple[str, Path]]:
        """Each write that could fail, with what that leaves behind; not again if that is what the write before left."""
        assert self._wrecks is not None
        before = None
        for number, write in enumerate(self.writes):
            left = _contents(self._wrecks / str(number))
            if left != before:
                yield f"{write}, write {number}", self._wrecks / str(number)
            before = left

    def _about_to(self, what: str, half: Callable[[Path], object] = lambda folder: None) -> None:
        """Count a write. `half` does half of it below a folder."""
        number = len(self.writes)
        self.writes.append(what)
        if self._wrecks is not None and self.folder.exists():
            self._leave(self._wrecks / str(number), half)
        if number == self._full_at:
            half(self.folder)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _leave(self, wreck: Path, half: Callable[[Path], object]) -> None:
        if self._way == "killed":
            shutil.copytree(self.folder, wreck)
            half(wreck)
            return
        names = self._names | ({self.folder: self._listed(self.folder)} if self._way == "mixed" else {})
        os.makedirs(wreck)  # noqa: PTH103 (Path.mkdir is watched, and so is Path.open)
        for parent, kept in sorted(names.items()):
            there = wreck / parent.relative_to(self.folder)
            for name, number in kept.items() if os.path.isdir(there) else ():  # noqa: PTH112
                if number < 0:
                    os.mkdir(there / name)  # noqa: PTH102
                else:
                    with open(there / name, "wb") as file:  # noqa: PTH123
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
            if not set(mode) & set("wax+") or self.folder not in path.parents:
                return real(path, mode, *arguments, **options)
            self._about_to(f"open {path.name}")
            file = real(path, mode, *arguments, **options)
            self._opened[file.fileno()] = self._named(path)
            return _Watched(file, path.relative_to(self.folder), self._about_to)

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

    def __init__(self, file: Any, path: Path, about_to: Callable[..., None]) -> None:
        self._file, self._path, self._about_to = file, path, about_to

    def write(self, data: bytes) -> int:
        def half(folder: Path) -> None:
            with open(folder / self._path, "ab") as file:  # noqa: PTH123
                file.write(data[: len(data) // 2])

        self._file.flush()
        self._about_to(f"write {self._path.name}", half)
        return self._file.write(data)

    def __enter__(self) -> "_Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _contents(folder: Path) -> dict[Path, bytes | None]:
    """All that is in a folder, and the folder itself unless it is not there."""
    paths = [folder, *folder.rglob("*")] if folder.exists() else []
    return {path.relative_to(folder): None if path.is_dir() else path.read_bytes() for path in paths}
