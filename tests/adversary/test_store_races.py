"""Processes that answer one stage at a time, that die, and that hold copies: never two different answers."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from answering import KEY, SESSION, SUM, WHO

from sketchfed.errors import SecureSumError, StorageError
from sketchfed.nodes.store import REPLIES, TRAIN, Key, NodeStore, StageClaim

SCRIPT = Path(__file__).with_name("answering.py")


@pytest.fixture
def path(tmp_path):
    """A store in which a client joined a sum."""
    with NodeStore(tmp_path / "store.sqlite") as store:
        joining = store.claim(Key(who=WHO, session=SESSION, scope=b"k" * 32, stage="secure.keys"), b"terms")
        store.settle(joining, b"keys", joins=SUM, sum=(SUM, b"before"))
    return tmp_path / "store.sqlite"


def started(path, *requests, point="", wait=2.0):
    """Processes that answer these requests, all at the same moment."""
    at = str(time.time() + wait)
    command = [sys.executable, str(SCRIPT), str(path)]
    return [
        subprocess.Popen([*command, request, point, at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for request in requests
    ]


def sent(processes):
    """The answers that left, and how often one was refused."""
    said = [process.communicate(timeout=120) for process in processes]
    return [out.strip() for out, _ in said if out], sum("refused" in err for _, err in said)


def test_processes_that_race_on_one_request_give_one_answer(path):
    answers, refused = sent(started(path, *["same"] * 6))
    assert len(answers) + refused == 6
    assert len(set(answers)) == 1
    assert set(sent(started(path, "same", wait=0))[0]) == set(answers), "whoever comes later gets it too"


def test_processes_that_race_on_different_requests_give_one_answer(path):
    """Two answers of one stage would differ by x₁ − x₂, because the mask is the same."""
    answers, refused = sent(started(path, *(f"request {number}" for number in range(6))))
    assert len(answers) == 1
    assert refused == 5


@pytest.mark.parametrize("point", ["claimed", "computed", "committing", "committed"])
def test_a_process_that_is_killed_leaves_no_room_for_a_second_answer(path, point):
    (killed,) = started(path, "same", point=point, wait=0)
    assert sent([killed]) == ([], 0)
    assert killed.returncode == -signal.SIGKILL
    assert sent(started(path, "other", wait=0)) == ([], 1)
    first, second = (sent(started(path, "same", wait=0)) for _ in range(2))
    if point == "committed":
        assert len(first[0]) == 1
        assert first == second, "the answer was made, so the same one is sent"
    else:
        assert first == second == ([], 1), "keys that may have been used are not used again"
    with NodeStore(path) as store:
        store.check()


def test_a_claim_that_another_process_gave_up_cannot_be_settled(path):
    with NodeStore(path) as one, NodeStore(path) as other:
        claim = one.claim(KEY, b"request")
        assert isinstance(claim, StageClaim)
        other.abandon(WHO, SUM)
        with pytest.raises(SecureSumError, match="given up"):
            one.settle(claim, b"reply", sum=(SUM, b"after"))
        assert other.secret(WHO, SUM) == b""


def test_training_that_died_is_done_again_and_the_first_cannot_answer_any_more(path):
    """Noise is drawn anew, and only one of the two answers is ever stored."""
    key = Key(who=WHO, session=SESSION, scope=b"t" * 32, stage=TRAIN)
    with NodeStore(path) as one, NodeStore(path) as other:
        first, second = one.claim(key, b"task"), other.claim(key, b"task")
        other.settle(second, b"second")
        with pytest.raises(SecureSumError):
            one.settle(first, b"first")
        assert one.claim(key, b"task") == b"second"


def test_a_sum_is_joined_once_for_ever_in_every_session(path):
    with NodeStore(path) as store:
        for session in (SESSION, b"t" * 16):
            claim = store.claim(Key(who=WHO, session=session, scope=session * 2, stage="secure.keys"), b"other bytes")
            with pytest.raises(SecureSumError, match="joins only once"):
                store.settle(claim, b"keys", joins=SUM, sum=(SUM, b"new keys"))
        assert store.secret(WHO, SUM) == b"before"


def test_pruning_never_allows_a_repeat(path):
    with NodeStore(path) as store:
        store.settle(store.claim(KEY, b"request"), b"reply", sum=(SUM, b"after"))
        store.prune(days=-1)
        assert store.secret(WHO, SUM) == b""
        for request in (b"request", b"other"):
            with pytest.raises(SecureSumError):
                store.claim(KEY, request)
        claim = store.claim(Key(who=WHO, session=b"t" * 16, scope=b"n" * 32, stage="secure.keys"), b"terms again")
        with pytest.raises(SecureSumError, match="joins only once"):
            store.settle(claim, b"keys", joins=SUM, sum=(SUM, b"new"))


def test_old_answers_are_dropped_and_not_given_again(path):
    with NodeStore(path) as store:
        keys = [
            Key(who=WHO, session=SESSION, scope=bytes([number]) * 32, stage="secure.shares") for number in range(REPLIES + 3)
        ]
        for key in keys:
            store.settle(store.claim(key, b"request"), b"reply")
        with pytest.raises(SecureSumError, match="too old"):
            store.claim(keys[0], b"request")
        assert store.claim(keys[-1], b"request") == b"reply"


def test_secrets_of_a_finished_sum_are_in_no_file(path):
    secret = b"the mask key of this sum, and nobody else's"
    with NodeStore(path) as store:
        store.settle(store.claim(KEY, b"request"), b"reply", sum=(SUM, secret))
        assert any(secret in file.read_bytes() for file in path.parent.iterdir())
        last = Key(who=WHO, session=SESSION, scope=SUM, stage="secure.unmask")
        store.settle(store.claim(last, b"request"), b"shares", sum=(SUM, None))
        assert not any(secret in file.read_bytes() for file in path.parent.iterdir())


def test_only_its_owner_reads_the_store(path):
    with NodeStore(path) as store:
        store.settle(store.claim(KEY, b"request"), b"reply", sum=(SUM, b"after"))
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + b"\0" * 4000], ids=len)
def test_a_damaged_store_is_refused_and_left_as_it_is(path, content):
    path.write_bytes(content)
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    with pytest.raises(StorageError, match="move the file away"):
        NodeStore(path)
    assert path.read_bytes() == content


def test_a_store_of_another_program_or_version_is_refused(tmp_path, path):
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StorageError, match="not a store of a sketchfed node"):
        NodeStore(other)
    shutil.copy(path, other)
    with sqlite3.connect(other) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StorageError, match="version 9"):
        NodeStore(other)


def test_pages_that_were_overwritten_are_found(path):
    with NodeStore(path) as store:
        for number in range(50):
            key = Key(who=WHO, session=SESSION, scope=bytes([number]) * 32, stage="secure.shares")
            store.settle(store.claim(key, b"request"), bytes(3000))
    data = bytearray(path.read_bytes())
    data[4096 : len(data) - 4096] = os.urandom(len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StorageError, match="damaged"):
        _read_all(path)


def _read_all(path):
    with NodeStore(path) as store:
        store.check()


def test_processes_that_make_the_store_at_the_same_time_share_it(tmp_path):
    answers, refused = sent(started(tmp_path / "fresh.sqlite", *["same"] * 4))
    assert answers == [], "nobody joined this sum"
    assert refused == 4
    assert [file.name for file in tmp_path.iterdir()] == ["fresh.sqlite"]


def test_a_store_is_not_carried_over_a_fork(path):
    with NodeStore(path) as store:
        child = os.fork()
        if child == 0:
            try:
                store.claim(KEY, b"request")
            except StorageError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
