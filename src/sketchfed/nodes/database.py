"""The file behind a node's store: made in one step, opened with care, never replaced by an empty one."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from urllib.parse import quote

from sketchfed.errors import StorageError
from sketchfed.storage import storing, sync_folder

APPLICATION, VERSION = 0x534B4644, 1
"""What SQLite files of ours carry in their header ("SKFD"), and the version of their tables."""
PATIENCE = 30.0
"""Seconds to wait for another process that writes."""

_TABLES = """
CREATE TABLE runs (
    who BLOB NOT NULL, session BLOB NOT NULL, digest BLOB NOT NULL, client INTEGER NOT NULL, seen REAL NOT NULL,
    PRIMARY KEY (who, session)
);
CREATE TABLE draws (
    who BLOB NOT NULL, session BLOB NOT NULL, server BLOB NOT NULL, nonce BLOB NOT NULL, roll BLOB, seen REAL NOT NULL,
    PRIMARY KEY (who, session)
);
CREATE TABLE enrolments (session BLOB PRIMARY KEY, seen REAL NOT NULL);
CREATE TABLE identities (public BLOB PRIMARY KEY, client INTEGER NOT NULL, session BLOB NOT NULL, seen REAL NOT NULL);
CREATE TABLE sums (
    number INTEGER PRIMARY KEY AUTOINCREMENT, who BLOB NOT NULL, digest BLOB NOT NULL, session BLOB NOT NULL, secret BLOB,
    seen REAL NOT NULL, UNIQUE (who, digest)
);
CREATE TABLE answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, who BLOB NOT NULL, scope BLOB NOT NULL, stage TEXT NOT NULL,
    session BLOB NOT NULL, request BLOB NOT NULL, owner BLOB NOT NULL, reply BLOB, seen REAL NOT NULL,
    UNIQUE (who, scope, stage)
);
CREATE TABLE spending (
    number INTEGER PRIMARY KEY AUTOINCREMENT, data TEXT NOT NULL, who BLOB NOT NULL, session BLOB NOT NULL,
    round INTEGER NOT NULL, unit TEXT NOT NULL, adjacency TEXT NOT NULL, observer TEXT NOT NULL, charge TEXT NOT NULL,
    counted INTEGER NOT NULL, pass INTEGER, batch INTEGER, seen REAL NOT NULL
);
CREATE INDEX spending_data ON spending (data);
CREATE INDEX spending_run ON spending (who, session);
CREATE INDEX answers_run ON answers (who, session);
CREATE INDEX sums_run ON sums (who, session);
"""


def opened(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A connection to the store, and whether the store was made just now.

    A file that is not a store, or a damaged one, is refused. An empty store in its place would forget which sums were joined
    and what was spent.
    """
    fresh = not path.exists() and _made(path)
    with reading(path):
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection, fresh


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what SQLite says into an error that says what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise StorageError(
                f"another process has held the store {path} for {PATIENCE:g} s. End it, or wait until it is done."
            ) from error
        raise StorageError(
            f"cannot use the store {path}: {error}. Make room on the disk or mend the permissions of its folder. Until then "
            "this node takes no part."
        ) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} is not a store of a sketchfed node, or it is damaged: {why}. It says which secure sums this node joined and "
        "what it spent of its privacy, so the node takes no part without it. Bring back the whole file from before the damage "
        "only if the node answered nothing since. Otherwise move the file away, make new identities, and count the lifetime ε "
        "of its data as spent."
    )


def _made(path: Path) -> bool:
    """Make an empty store under another name and give it its own when it is whole. False if another process came first."""
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f"{path.name}.{token_hex(4)}")
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with reading(draft), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("PRAGMA journal_mode = WAL")
            try:
                os.link(draft, path)
            except FileExistsError:
                return False
        finally:
            for left in path.parent.glob(f"{draft.name}*"):
                left.unlink()
        sync_folder(path.parent)
    return True


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise damaged(path, "its header is another program's" if application else "its header is empty")
    if version != VERSION:
        raise StorageError(
            f"{path} is a store of version {version}, and this sketchfed reads version {VERSION}. Use the one that wrote it."
        )
