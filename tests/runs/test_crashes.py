"""A run that fails at any of its writes goes on as if it had never stopped."""

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiny
import torch
from disk import WAYS, Disk

import sketchfed
from sketchfed.errors import StorageError
from sketchfed.runs import Run
from sketchfed.runs.checkpoint import MEMORIES
from sketchfed.storage import sync_folder

MEMORIES_OF_CLIENTS = {"kind": "projection", "data": {"name": "tiny:data", "clients": 2}}
HISTORY = {"kind": "few bits, few participants, momentum"}
SWEEPS = [(MEMORIES_OF_CLIENTS, way) for way in WAYS] + [(HISTORY, "power"), ({"kind": "fetchsgd"}, "killed")]
RARE_SWEEPS = [(HISTORY, "killed"), ({"kind": "fedavg", "model": {"name": "tiny:model"}}, "killed")]
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


def failing(tables: dict, folder: Path, *, way: str) -> Disk:
    """The disk of a run that goes to its end, or on from where it was, with what failing on the way would have left."""
    disk = Disk(folder, wrecks=folder.with_name("wrecks"), way=way)
    with disk.watching():
        begin_or_resume(tables, folder)
    return disk


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        pytest.param(settings, way, id=f"{settings['kind']}-{way}", marks=[pytest.mark.slow] * ((settings, way) in RARE_SWEEPS))
        for settings, way in SWEEPS + RARE_SWEEPS
    ],
)
def test_a_run_survives_failure_at_every_write(folders, settings, way):
    tables = config(**settings)
    whole, disk = sketchfed.run(tables), failing(tables, folders / "run", way=way)
    tried = 0
    for tried, (where, wreck) in enumerate(disk.failures(), start=1):  # noqa: B007
        assert same(begin_or_resume(tables, wreck), whole), where
        assert is_tidy(wreck), where
    assert len(disk.writes) > 30
    assert tried > (20 if way == "killed" else 8)
    written = {write.partition(" ")[0] for write in disk.writes}
    assert {"mkdir", "open", "write", "fsync", "replace"} <= written
    assert ("unlink" in written) == (settings is MEMORIES_OF_CLIENTS)


def test_a_full_disk_is_a_sentence_whatever_is_written_and_the_run_goes_on_after(folders):
    """For each kind of write, the last of its kind: memories of clients are alike."""
    tables = config(**MEMORIES_OF_CLIENTS)
    whole, writes = sketchfed.run(tables), failing(tables, folders / "run", way="killed").writes
    kinds = {re.sub(r"\d+-\d+", "memory", write): number for number, write in enumerate(writes)}
    assert len(kinds) > 30
    for kind, number in kinds.items():
        folder = folders / str(number)
        with pytest.raises(StorageError) as error, Disk(folder, full_at=number).watching():
            begin_or_resume(tables, folder)
        assert str(error.value).startswith(f"cannot write {folder}"), kind
        assert "No space left on device. What was saved before is intact: make room" in str(error.value), kind
        assert str(error.value).endswith("then go on with --resume."), kind
        assert same(begin_or_resume(tables, folder), whole), kind
        assert is_tidy(folder), kind


def test_a_run_survives_failure_while_it_is_resumed(folders):
    tables = config(**MEMORIES_OF_CLIENTS)
    whole, first = sketchfed.run(tables), failing(tables, folders / "first" / "run", way="killed")
    (begun,) = (wreck for where, wreck in first.failures() if "write 1-2.safetensors.new" in where)
    again = failing(tables, shutil.copytree(begun, folders / "again" / "run"), way="killed")
    tried = 0
    for tried, (where, wreck) in enumerate(again.failures(), start=1):  # noqa: B007
        assert same(begin_or_resume(tables, wreck), whole), where
        assert is_tidy(wreck), where
    assert tried > 15
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
    disk = Disk(folder, wrecks=tmp_path / "wrecks", way="power")
    with disk.watching():
        write(folder / "kept", forced=True)
        write(folder / "empty", forced=False)
        sync_folder(folder)
        write(folder / "lost", forced=True)
        (folder / "lost").replace(folder / "kept")
    *_, (where, left) = disk.failures()
    assert where == "open lost, write 6"  # nothing that comes after it is forced
    assert {path.name: path.read_bytes() for path in left.iterdir()} == {"kept": b"words", "empty": b""}
