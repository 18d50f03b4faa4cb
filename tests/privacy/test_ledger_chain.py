"""A ledger from which lines are missing, or in which some were changed, is refused. One that a crash left behind is not."""

import errno
import os
import re
from pathlib import Path

import pytest

from runs.disk import WAYS, Disk
from sketchfed.errors import InputError, StorageError
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.privacy.ledger_file import head_of

CLAIM = Claim(unit="client", adjacency="zero-out", observer="server", delta=1e-5)
ONE = Charge(multiplier=10.0)
ADVICE = r"[Bb]ring .* start a new run in another folder"


def ledger_of(path: Path, rounds: int = 3) -> PrivacyLedger:
    ledger = PrivacyLedger(CLAIM, path)
    for round_ in range(rounds):
        ledger.intend(round=round_, draw="a", clients=[1, 2, round_], charge=ONE)
    return ledger


def unchained(path: Path, rounds: int = 3) -> PrivacyLedger:
    """A ledger as 0.1.0 wrote it."""
    ledger = ledger_of(path, rounds)
    plain = re.sub(rb',"chain":"\w+"', b"", path.read_bytes()).replace(b'"version":2', b'"version":1')
    path.write_bytes(plain.replace(b',"deviation":null,"size":null', b""))
    head_of(path).unlink()
    return ledger


def cut_last(lines):
    return lines[:-1]


def cut_last_two(lines):
    return lines[:-2]


def cut_half_a_line(lines):
    return [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]


def cut_middle(lines):
    return lines[:2] + lines[3:]


def change_a_number(lines):
    return [*lines[:2], lines[2].replace(b"10.0", b"90.0"), *lines[3:]]


def change_the_last_number(lines):
    return [*lines[:-1], lines[-1].replace(b"10.0", b"90.0")]


def change_the_claim(lines):
    return [lines[0].replace(b"zero-out", b"add-remove"), *lines[1:]]


def swap(lines):
    return [lines[0], lines[2], lines[1], *lines[3:]]


def repeat(lines):
    return [*lines, lines[-1]]


def take_hashes_away(lines):
    return [re.sub(rb',"chain":"\w+"', b"", line) for line in lines]


def add_a_line_without_hash(lines):
    return [*lines, *take_hashes_away(lines[-1:])]


def cut_to_the_claim(lines):
    return lines[:1]


EDITS = {
    cut_last: r"has 3 lines, and ledger.jsonl.head counted 4: its end was cut off",
    cut_last_two: r"has 2 lines, and ledger.jsonl.head counted 4",
    cut_half_a_line: r"has 3 lines, and ledger.jsonl.head counted 4",
    cut_to_the_claim: r"has 1 lines, and ledger.jsonl.head counted 4",
    cut_middle: r"line 3 of the privacy ledger .* does not follow from the lines up to it",
    change_a_number: r"line 3 of the privacy ledger .* does not follow",
    change_the_last_number: r"line 4 of the privacy ledger .* does not follow",
    change_the_claim: r"line 1 of the privacy ledger .* does not follow",
    swap: r"line 2 of the privacy ledger .* does not follow",
    repeat: r"line 5 of the privacy ledger .* does not follow",
    take_hashes_away: r"line 1 of the privacy ledger .* it has no hash",
    add_a_line_without_hash: r"line 5 of the privacy ledger .* has no hash, so something else",
}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edited_ledger_is_refused(tmp_path, edit):
    path = tmp_path / "ledger.jsonl"
    ledger_of(path)
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(StorageError, match=rf"{EDITS[edit]}.*{ADVICE}"):
        PrivacyLedger.load(path)


def test_a_ledger_that_is_gone_is_not_begun_anew(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger_of(path)
    path.unlink()
    with pytest.raises(StorageError, match=rf"is gone, and ledger.jsonl.head beside it says that it had 4 lines.*{ADVICE}"):
        PrivacyLedger(CLAIM, path)
    with pytest.raises(StorageError, match="cannot read the privacy ledger"):
        PrivacyLedger.load(path)


def test_a_ledger_without_its_head_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger_of(path)
    head_of(path).unlink()
    with pytest.raises(StorageError, match=rf"ledger.jsonl.head beside the privacy ledger .* is missing.*{ADVICE}"):
        PrivacyLedger.load(path)


def test_the_head_of_another_ledger_is_refused(tmp_path):
    path, other = tmp_path / "ledger.jsonl", tmp_path / "other.jsonl"
    ledger_of(path)
    ledger_of(other).intend(round=9, draw="b", clients=None, charge=ONE)
    for lines in (b'"lines":5', b'"lines":4'):
        head_of(path).write_bytes(head_of(other).read_bytes().replace(b'"lines":5', lines))
        with pytest.raises(StorageError, match=ADVICE):
            PrivacyLedger.load(path)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"format":"x","version":1,"lines":-1,"chain":""}'])
def test_a_damaged_head_is_refused(tmp_path, data):
    path = tmp_path / "ledger.jsonl"
    ledger_of(path)
    head_of(path).write_bytes(data)
    with pytest.raises(StorageError, match=rf"does not count the lines.*{ADVICE}"):
        PrivacyLedger.load(path)


# Ledgers of 0.1.0.


def test_an_old_ledger_is_read_with_a_note_and_chained_from_then_on(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    kept = unchained(path).entries
    old = PrivacyLedger.load(path)
    assert old.entries == kept
    assert "begun by sketchfed 0.1.0" in caplog.text
    assert not head_of(path).exists()  # reading writes nothing
    for round_ in (7, 8):
        old.intend(round=round_, draw="b", clients=None, charge=ONE)
    caplog.clear()
    assert PrivacyLedger.load(path).entries == old.entries
    assert not caplog.records
    lines = path.read_bytes().splitlines(keepends=True)
    for edit in (cut_last, cut_half_a_line, cut_middle, change_a_number, change_the_last_number, swap):
        path.write_bytes(b"".join(edit(lines)))
        with pytest.raises(StorageError, match=ADVICE):
            PrivacyLedger.load(path)


def test_a_ledger_that_was_made_to_look_old_is_refused_where_it_cannot_be_old(tmp_path):
    path = tmp_path / "ledger.jsonl"
    unchained(path)
    PrivacyLedger.load(path)
    with pytest.raises(StorageError, match=rf"looks like a ledger of sketchfed 0\.1\.0, and a later version wrote.*{ADVICE}"):
        PrivacyLedger.load(path, chained=True)


# What a crash leaves behind.


def released(path: Path, seen: list, *, old: bool = False) -> None:
    """Draws of noise, each told first, and after a resume as well."""
    ledger = PrivacyLedger.load(path) if old else PrivacyLedger(CLAIM, path)
    for round_ in range(3):
        ledger.intend(round=round_ + 10, draw="a", clients=[round_], charge=ONE)
        seen.append(round_ + 10)
    ledger = PrivacyLedger.load(path)
    ledger.settle(round=10, draw="a", clients=[0, 5], charge=ONE)
    ledger.intend(round=20, draw="a", clients=None, charge=ONE)
    seen.append(20)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("old", [False, True])
def test_a_crash_at_any_write_leaves_a_ledger_that_charges_what_was_released(tmp_path, way, old):
    folder, wrecks = tmp_path / "run", tmp_path / "wrecks"
    folder.mkdir()
    path, seen, told = folder / "ledger.jsonl", [], []
    disk = Disk(folder, wrecks=wrecks, way=way)
    with disk.watching():
        if old:  # what is there before is on the disk
            unchained_before(path)
        about_to = disk._about_to
        disk._about_to = lambda *arguments: (told.append(tuple(seen)), about_to(*arguments))[1]
        released(path, seen, old=old)
    first = len(disk.writes) - len(told)
    loaded = 0
    for number in range(first, len(disk.writes)):
        left = wrecks / str(number) / path.name
        if not left.exists():
            assert not told[number - first], disk.writes[number]
            PrivacyLedger(CLAIM, left)  # nothing was released, and the run may begin anew
            continue
        ledger = PrivacyLedger.load(left)
        charged = {entry.round for entry in ledger.entries if entry.clients != ()}
        assert charged >= set(told[number - first]), disk.writes[number]
        ledger.intend(round=99, draw="after", clients=None, charge=ONE)
        assert PrivacyLedger.load(left).entries == ledger.entries
        loaded += 1
    assert loaded > 15


def unchained_before(path: Path) -> None:
    """A ledger of 0.1.0, forced to the disk."""
    ledger_of(path, rounds=0)
    plain = re.sub(rb',"chain":"\w+"', b"", path.read_bytes()).replace(b'"version":2', b'"version":1')
    with path.open("wb") as file:
        file.write(plain)
        file.flush()
        os.fsync(file.fileno())
    head_of(path).unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


@pytest.mark.parametrize("step", range(8))
def test_a_disk_that_is_full_at_any_write_forgets_nothing(tmp_path, step):
    """What intend did not acknowledge may be charged, and what it did must be."""
    path = tmp_path / "run" / "ledger.jsonl"
    path.parent.mkdir()
    ledger = ledger_of(path)
    with pytest.raises(StorageError, match="cannot write"), Disk(path.parent, full_at=step).watching():
        ledger.intend(round=10, draw="b", clients=None, charge=ONE)
    kept = PrivacyLedger.load(path)
    assert kept.entries[: len(ledger.entries)] == ledger.entries
    assert len(kept.entries) - len(ledger.entries) in (0, 1)


def test_a_head_that_was_replaced_before_the_disk_complained_keeps_its_line(tmp_path, monkeypatch):
    path, real = tmp_path / "ledger.jsonl", os.fsync
    ledger = ledger_of(path)

    def full(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        ledger.intend(round=9, draw="b", clients=None, charge=ONE)
    monkeypatch.undo()
    assert [entry.round for entry in PrivacyLedger.load(path).entries] == [0, 1, 2, 9]
    with pytest.raises(StorageError, match="is not as this process left it"):
        ledger.intend(round=10, draw="b", clients=None, charge=ONE)


def test_a_ledger_that_exists_is_never_begun_anew(tmp_path):
    ledger_of(tmp_path / "ledger.jsonl", rounds=0)
    with pytest.raises(InputError, match="exists already"):
        PrivacyLedger(CLAIM, tmp_path / "ledger.jsonl")
