"""A run that fails at any of its writes goes on as if it had never stopped."""

import os
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiny
import torch
from disk import WAYS, Crash, Disk

import sketchfed
from sketchfed.errors import StorageError
from sketchfed.runs import Run
from sketchfed.runs.checkpoint import MEMORIES
from sketchfed.storage import sync_folder

MEMORIES_OF_CLIENTS = {"kind": "projection", "data": {"name": "tiny:data", "clients": 2}}
HISTORY = {"kind": "few bits, few participants, momentum"}
SWEEPS = [(MEMORIES_OF_CLIENTS, way) for way in WAYS]
SWEEPS += [(HISTORY, "power"), (HISTORY, "killed"), ({"kind": "fetchsgd"}, "killed")]
SWEEPS += [({"kind": "fedavg", "model": {"name": "tiny:model"}}, "killed")]
"""Memories are most of what is written; the others differ in what the checkpoint has to hold."""


@pytest.fixture(autouse=True)
def _fsync_is_for_free(monkeypatch):
    """What it is good for is in the model of the disk; here it would only take its time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def folders():
    """Where folders are made: in memory if the system has a place for that, since disks take their time for each file."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made)


def config(*, kind: str, **changes: object) -> dict:
    """Two rounds, each saved."""
    tables = tiny.tables(kind, rounds=2, checkpoint_seconds=0, workers=1)
    if kind == "projection":
        tables["algorithm"]["participation"] = 1.0
    return tables | changes


def begin_or_resume(tables: dict, folder: Path) -> Run:
    """What `sketchfed run --resume CONFIG` does."""
    return sketchfed.resume(folder) if (folder / "config.toml").exists() else sketchfed.run(tables, folder=folder)


def same(run: Run, whole: Run) -> bool:
    def lines(of: Run) -> list[dict]:
        return [{key: value for key, value in line.items() if key != "seconds"} for line in of.metrics]

    return torch.equal(run.weights, whole.weights) and lines(run) == lines(whole)


def is_tidy(folder: Path) -> bool:
    """Nothing half-written is left, and one memory a client at most."""
    owners = [file.name.partition("-")[0] for file in (folder / MEMORIES).glob("*")]
    return not list(folder.rglob("*.new")) and len(owners) == len(set(owners))


def failure(tables: dict, disk: Disk) -> BaseException | None:
    """What a run comes to on a disk that fails."""
    with disk.watching():
        try:
            begin_or_resume(tables, disk.folder)
        except (Crash, StorageError) as error:
            return error
    return None


@pytest.mark.parametrize(("settings", "way"), SWEEPS, ids=[f"{settings['kind']}-{way}" for settings, way in SWEEPS])
def test_a_run_survives_failure_at_every_write(folders, settings, way):
    tables = config(**settings)
    whole = sketchfed.run(tables)
    for number in count():
        disk = Disk(folders / str(number), fail_at=number, way=way)
        error = failure(tables, disk)
        if error is None:
            break
        where = f"after {disk.writes[-1]}, write {number}"
        assert isinstance(error, StorageError if way == "full" else Crash), where
        assert same(begin_or_resume(tables, disk.folder), whole), where
        assert is_tidy(disk.folder), where
        if way == "full":
            assert str(error).startswith(f"cannot write {disk.folder}"), where
            assert "No space left on device. What was saved before is intact: make room" in str(error), where
            assert str(error).endswith("then go on with --resume."), where
    assert number == len(disk.writes) > 30
    written = {write.partition(" ")[0] for write in disk.writes}
    assert {"mkdir", "open", "write", "fsync", "replace"} <= written
    assert ("unlink" in written) == (settings is MEMORIES_OF_CLIENTS)


def test_a_run_survives_failure_while_it_is_resumed(folders):
    tables = config(**MEMORIES_OF_CLIENTS)
    whole = sketchfed.run(tables)
    for number in count():
        folder = folders / str(number)
        first = Disk(folder, fail_at=50, way="killed")
        assert failure(tables, first) is not None
        assert first.writes[-1].endswith(".safetensors.new")
        again = Disk(folder, fail_at=number, way="killed")
        if failure(tables, again) is None:
            break
        assert same(begin_or_resume(tables, folder), whole), f"after {again.writes[-1]}, write {number}"
        assert is_tidy(folder), f"after {again.writes[-1]}, write {number}"
    assert number > 20
    assert again.writes[1].startswith("unlink")  # what the first failure left behind


def test_losing_power_loses_what_was_not_forced(tmp_path):
    """The model of the disk itself: without fsync a new file is empty, and a new name is gone."""

    def write(path: Path, *, forced: bool) -> None:
        with path.open("wb") as file:
            file.write(b"words")
            file.flush()
            if forced:
                os.fsync(file.fileno())

    folder = tmp_path / "run"
    folder.mkdir()
    with Disk(folder, fail_at=9, way="power").watching():
        write(folder / "kept", forced=True)
        write(folder / "empty", forced=False)
        sync_folder(folder)
        write(folder / "lost", forced=True)
        with pytest.raises(Crash):
            (folder / "lost").replace(folder / "kept")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"kept": b"words", "empty": b""}
