"""What a node must never forget, in one SQLite file below its home: sums joined, answers given, settings agreed to, ε spent.

Flower's context can be copied, and several processes may serve one node at a time. So everything that must happen once is
decided here, by transactions. A stage of a secure sum goes through three steps:

1. `claim` takes the row of the stage, before anything secret is computed. One process gets it.
2. The process computes the reply.
3. `settle` commits the reply, the client's next state and what it costs in one transaction. Only then is the reply handed on.

The same request again gets the stored bytes. Another request for the same stage is refused. So is a request whose row is
claimed but has no reply: another process works on it, or one died while it did, and its keys are not used a second time.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from typing import Self

from sketchfed.errors import InputError, SecureSumError, StorageError
from sketchfed.nodes.database import PATIENCE, damaged, opened, reading

log = logging.getLogger("sketchfed")

TRAIN = "train"
"""The stage of a reply with noise and without masks."""
REPLIES = 8
"""The number of latest answers of a run whose bytes are kept. Older answers cannot be repeated any more."""
QUIET = 30.0
"""The days after which a run without messages is over, so that its secrets and replies are deleted."""
SUMS = 4
"""The number of latest sums of a run whose secrets are kept. Older ones are over."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What is answered once: a stage within a scope, by one identity."""

    who: bytes
    """The public identity of the client."""
    session: bytes
    scope: bytes
    """The digest of a secure sum, or of a request."""
    stage: str


@dataclass(frozen=True, kw_only=True)
class StageClaim:
    """The right to answer, for the process that has it."""

    key: Key
    owner: bytes


class NodeStore:
    """The store of one node, for the time of one message. Close it, and do not carry it over a fork."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection, fresh = opened(path)
        self._process = os.getpid()
        if fresh:
            log.warning("made a new store, %s: this node remembers no earlier runs and nothing that it spent before.", path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything inside happens at once or not at all, and is on the disk afterwards. One process is inside at a time."""
        if os.getpid() != self._process:
            raise StorageError(f"the store {self.path} was opened before a fork. Open it again in the new process.")
        with reading(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    # Answers

    def claim(self, key: Key, request: bytes) -> StageClaim | bytes:
        """The right to answer a request, or the bytes of the answer that was given to the same request before."""
        digest, owner = sha256(request).digest(), token_bytes(16)
        with self.transaction() as rows:
            found = rows.execute(
                "SELECT request, reply FROM answers WHERE who = ? AND scope = ? AND stage = ?", (key.who, key.scope, key.stage)
            ).fetchone()
            if found is None:
                rows.execute(
                    "INSERT INTO answers (who, scope, stage, session, request, owner, seen) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (key.who, key.scope, key.stage, key.session, digest, owner, time.time()),
                )
                return StageClaim(key=key, owner=owner)
            if key.stage == TRAIN and found[1] is None:  # noise is drawn anew, and who had the claim cannot settle any more
                rows.execute("UPDATE answers SET owner = ? WHERE who = ? AND scope = ?", (owner, key.who, key.scope))
                return StageClaim(key=key, owner=owner)
        before, reply = found
        if before != digest:
            raise SecureSumError(
                f"this client has answered stage '{key.stage}' of this sum, or is about to, and the server asks again with "
                "other words. Each stage is answered once: two answers would cancel the mask."
            )
        if reply is None:
            raise SecureSumError(
                f"stage '{key.stage}' was begun and has no answer: another process works on it, or one died, or the answer is "
                "too old to be kept. This client does not begin it again with the same keys."
            )
        return bytes(reply)

    def settle(
        self,
        claim: StageClaim,
        reply: bytes,
        *,
        joins: bytes | None = None,
        sum: tuple[bytes, bytes | None] | None = None,
        spend: Callable[[sqlite3.Connection], None] | None = None,
    ) -> bytes:
        """Commit an answer with all that follows from it, and return it.

        `joins` is the digest of a sum that the client joins with this answer. `sum` has a digest and the client's secret state
        after this answer, None if it is over. `spend` writes down what the answer costs, or raises if that is too much.
        """
        key, now = claim.key, time.time()
        with self.transaction() as rows:
            if joins is not None:
                try:
                    rows.execute(
                        "INSERT INTO sums (who, digest, session, seen) VALUES (?, ?, ?, ?)", (key.who, joins, key.session, now)
                    )
                except sqlite3.IntegrityError:
                    raise SecureSumError(
                        "this client has joined a sum on the same terms before, and joins only once. Ask again under another "
                        "session or round."
                    ) from None
            if sum is not None:
                digest, secret = sum
                own = "" if joins is not None else " AND secret IS NOT NULL"  # a sum that was given up stays so
                moved = rows.execute(f"UPDATE sums SET secret = ? WHERE who = ? AND digest = ?{own}", (secret, key.who, digest))
                if moved.rowcount != 1:
                    raise SecureSumError(f"this sum was given up while stage '{key.stage}' was worked on. Nothing is sent.")
            if spend is not None:
                spend(rows)
            kept = rows.execute(
                "UPDATE answers SET reply = ?, seen = ? WHERE owner = ? AND reply IS NULL", (reply, now, claim.owner)
            )
            if kept.rowcount != 1:
                raise SecureSumError(f"stage '{key.stage}' was given up while this process worked on it. It sends nothing.")
            _prune(rows, key)
        if sum is not None and sum[1] is None:
            self._forget_deleted()
        return reply

    def release(self, claim: StageClaim) -> None:
        """Give a claim back: nothing was computed, because the request could not be read."""
        with self.transaction() as rows:
            rows.execute("DELETE FROM answers WHERE owner = ? AND reply IS NULL", (claim.owner,))

    def abandon(self, who: bytes, digest: bytes) -> None:
        """End a client's part in a sum. Its secrets are deleted, and nothing of it will be answered."""
        with self.transaction() as rows:
            rows.execute("UPDATE sums SET secret = NULL WHERE who = ? AND digest = ?", (who, digest))
        self._forget_deleted()

    # Sums

    def joined(self, who: bytes, session: bytes) -> set[bytes]:
        """The digests of the sums that a client joined in a run. They are kept for ever."""
        with reading(self.path):
            rows = self._connection.execute("SELECT digest FROM sums WHERE who = ? AND session = ?", (who, session))
            return {bytes(digest) for (digest,) in rows}

    def sum_of(self, who: bytes, session: bytes, prefix: bytes = b"") -> bytes:
        """The digest of the sum that a client joined last in a run, among those that begin with some bytes."""
        with reading(self.path):
            found = self._connection.execute(
                "SELECT digest FROM sums WHERE who = ? AND session = ? AND substr(digest, 1, ?) = ? "
                "ORDER BY number DESC LIMIT 1",
                (who, session, len(prefix), prefix),
            ).fetchone()
        if found is None:
            raise SecureSumError("this client has not joined a secure sum, or lost what it held of it: it joins the next one.")
        return bytes(found[0])

    def secret(self, who: bytes, digest: bytes) -> bytes:
        """A client's secret state in a sum. Empty if the sum is over, or was never joined."""
        with reading(self.path):
            found = self._connection.execute("SELECT secret FROM sums WHERE who = ? AND digest = ?", (who, digest)).fetchone()
        return b"" if found is None or found[0] is None else bytes(found[0])

    # Runs

    def pin(self, who: bytes, session: bytes, digest: bytes, client: int, *, hides: bool) -> None:
        """Hold on to the settings that a run began with, and to this client's number in it. Others are refused.

        Runs that hide nothing are not held on to. But a run that began to hide something cannot become one of them.
        """
        with self.transaction() as rows:
            found = rows.execute("SELECT digest, client FROM runs WHERE who = ? AND session = ?", (who, session)).fetchone()
            if found is None:
                if hides:
                    row = (who, session, digest, client, time.time())
                    rows.execute("INSERT INTO runs (who, session, digest, client, seen) VALUES (?, ?, ?, ?, ?)", row)
                return
        if bytes(found[0]) != digest:
            raise InputError(
                "the server changed the run's settings after this node had agreed to others. It takes no part any more: "
                "settings that differ are another run."
            )
        if found[1] != client:
            raise InputError(
                f"this node is asked as client {client}, and took part as client {found[1]} before. It is one client."
            )

    def enrol(self, session: bytes, most: int, rule: str, told: str) -> None:
        """Count a run that this node is asked to join. Refuse it by this rule if more than `most` came within a day.

        With each new run, what old ones left behind is pruned.
        """
        now = time.time()
        with self.transaction() as rows:
            if rows.execute("SELECT 1 FROM enrolments WHERE session = ?", (session,)).fetchone():
                return
            (recent,) = rows.execute("SELECT COUNT(*) FROM enrolments WHERE seen > ?", (now - 86_400,)).fetchone()
            if recent >= most:
                raise InputError(
                    f"{recent} runs asked this node to join within a day. It joins no more of them for now. ({rule})"
                ).telling(f"too many runs asked this node to join within a day. It joins no more of them for now. ({told})")
            rows.execute("DELETE FROM enrolments WHERE seen < ?", (now - 10 * 86_400,))
            rows.execute("INSERT INTO enrolments (session, seen) VALUES (?, ?)", (session, now))
        self.prune(QUIET)

    def commit(self, who: bytes, session: bytes, opening: bytes, nonce: bytes) -> bytes:
        """The random bytes with which a client takes part in a run's draw: `nonce`, or those that it committed to before.

        `opening` is what the server committed to, with a digest of the settings for which it draws.
        """
        with self.transaction() as rows:
            _forget_draws(rows, QUIET)
            found = rows.execute("SELECT server, nonce FROM draws WHERE who = ? AND session = ?", (who, session)).fetchone()
            if found is None:
                row = (who, session, opening, nonce, time.time())
                rows.execute("INSERT INTO draws (who, session, server, nonce, seen) VALUES (?, ?, ?, ?, ?)", row)
                return nonce
        if bytes(found[0]) != opening:
            raise InputError("the server commits to a draw for the second time in one run, to something else. It has one try.")
        return bytes(found[1])

    def opening(self, who: bytes, session: bytes) -> bytes:
        """What the server of a run committed to, and for which settings, when this client did."""
        with self.transaction() as rows:
            _forget_draws(rows, QUIET)
            found = rows.execute("SELECT server FROM draws WHERE who = ? AND session = ?", (who, session)).fetchone()
        if found is None:
            raise InputError("this client has committed to nothing in this run, so it has nothing to reveal.")
        return bytes(found[0])

    def reveal(self, who: bytes, session: bytes, roll: bytes) -> bytes:
        """What a client committed to, now that it knows everybody's commitments. It is told for one roll only."""
        with self.transaction() as rows:
            _forget_draws(rows, QUIET)
            found = rows.execute("SELECT roll, nonce FROM draws WHERE who = ? AND session = ?", (who, session)).fetchone()
            if found is None:
                raise InputError("this client has committed to nothing in this run, so it has nothing to reveal.")
            if found[0] is None:
                rows.execute("UPDATE draws SET roll = ? WHERE who = ? AND session = ?", (roll, who, session))
        if found[0] is not None and bytes(found[0]) != roll:
            raise InputError("the server shows other commitments than before. Clients of a run are fixed once they have drawn.")
        return bytes(found[1])

    def draw(self, who: bytes, session: bytes) -> tuple[bytes, bytes, bytes] | None:
        """The server's opening, this client's random bytes and the roll for which it revealed them.

        None if it did not, or so long ago that the draw does not count any more.
        """
        with self.transaction() as rows:
            _forget_draws(rows, QUIET)
            found = rows.execute(
                "SELECT server, nonce, roll FROM draws WHERE who = ? AND session = ? AND roll IS NOT NULL", (who, session)
            ).fetchone()
        return None if found is None else (bytes(found[0]), bytes(found[1]), bytes(found[2]))

    def meet(self, who: bytes, directory: Mapping[int, bytes], session: bytes, *, strict: tuple[str, str] | None) -> None:
        """Pin the identities of the clients of the first run. In later runs, warn of strangers, or refuse them.

        Strangers are not pinned. They are warned of in every run that they are in, until the node has a directory. `strict` is
        the rule of the policy that refuses them, and what the server is told of it, or None.
        """
        with self.transaction() as rows:
            known = {bytes(key): client for key, client in rows.execute("SELECT public, client FROM identities")}
            if not known:
                rows.executemany(
                    "INSERT INTO identities (public, client, session, seen) VALUES (?, ?, ?, ?)",
                    [(key, client, session, time.time()) for client, key in directory.items()],
                )
                return
            under_way = rows.execute("SELECT 1 FROM sums WHERE who = ? AND session = ? LIMIT 1", (who, session)).fetchone()
        strangers = {client: key for client, key in directory.items() if key not in known}
        if not strangers:
            return
        client = min(strangers)
        said = "had another identity before" if client in known.values() else "was never seen before"
        text = (
            f"{len(strangers)} of {len(directory)} clients of this run have identities that this node does not know; client "
            f"{client} {said}, now {strangers[client].hex()[:8]}. Either clients are new, or the server plays them itself."
        )
        if strict is not None:
            refused = "clients of this run have identities that this node does not know. It takes no part."
            raise SecureSumError(f"{text} This node takes no part. ({strict[0]})").telling(
                f"{len(strangers)} of {len(directory)} {refused} ({strict[1]})"
            )
        if under_way is None:
            log.warning("IDENTITIES CHANGED: %s Compare them with their owners, or give this node a directory.", text)

    def prune(self, days: float) -> None:
        """Delete secrets, draws and stored replies of runs that were quiet for this long.

        Digests stay, so nothing can be repeated. A run whose draw is gone cannot begin or go on.
        """
        old = time.time() - days * 86_400
        with self.transaction() as rows:
            done = rows.execute(f"UPDATE sums SET secret = NULL WHERE secret IS NOT NULL AND {_SILENT}", (old,)).rowcount
            done += rows.execute(f"UPDATE answers SET reply = NULL WHERE reply IS NOT NULL AND {_SILENT}", (old,)).rowcount
            done += _forget_draws(rows, days)
        if done:
            self._forget_deleted()

    def check(self) -> None:
        """Read the whole file and refuse it if anything in it is damaged."""
        with reading(self.path):
            (said,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise damaged(self.path, said)

    def _forget_deleted(self) -> None:
        """Empty the write-ahead log, which still has pages from before a deletion. While others read, it stays for later."""
        with reading(self.path):
            self._connection.execute("PRAGMA busy_timeout = 500")
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")


_SILENT = "session NOT IN (SELECT session FROM answers WHERE seen > ?)"


def _forget_draws(rows: sqlite3.Connection, days: float) -> int:
    """Delete draws that were not used for this long, also if nothing else was pruned since. Returns their number."""
    old = time.time() - days * 86_400
    return rows.execute(f"DELETE FROM draws WHERE seen < ? AND {_SILENT}", (old, old)).rowcount


def _prune(rows: sqlite3.Connection, key: Key) -> None:
    """Drop the bytes of a run's older answers and the secrets of its older sums.

    A row of a sum's stage stays, without its reply: the stage is not answered again. A row of training goes: what is computed
    anew gets new noise and is charged again.
    """
    old = (
        "who = ? AND session = ? AND reply IS NOT NULL AND number NOT IN "
        "(SELECT number FROM answers WHERE who = ? AND session = ? ORDER BY number DESC LIMIT ?)"
    )
    values = (key.who, key.session, key.who, key.session, REPLIES)
    rows.execute(f"DELETE FROM answers WHERE {old} AND stage = ?", (*values, TRAIN))
    rows.execute(f"UPDATE answers SET reply = NULL WHERE {old}", values)
    rows.execute(
        "UPDATE sums SET secret = NULL WHERE who = ? AND session = ? AND secret IS NOT NULL AND number NOT IN "
        "(SELECT number FROM sums WHERE who = ? AND session = ? ORDER BY number DESC LIMIT ?)",
        (key.who, key.session, key.who, key.session, SUMS),
    )
