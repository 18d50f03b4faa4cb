"""The file of a privacy ledger: lines that only grow, each with a hash over all lines before it.

A changed, added, removed or moved line breaks the chain. Lines that are cut off at the end do not, so a small file beside the
ledger, its head, keeps the number of lines and the last hash. Neither stops somebody who rewrites both on purpose.

A new line is on the disk first, then the head that counts it. A crash between them leaves a line more than the head counts.
It was never acknowledged, and is charged all the same. The head is there before the first line, and says 0.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from sketchfed.errors import StorageError
from sketchfed.storage import replace_file, storing

HEAD_FORMAT, HEAD_VERSION = "sketchfed privacy ledger head", 1
_CHAIN = b',"chain":"'
_HEX = 64


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    lines: int
    chain: str


class LedgerFile:
    """The lines of a ledger on the disk. `append` returns when a line, and the head that counts it, are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contents: list[bytes] = []
        """The lines that were read, without their hashes."""
        self.chained = False
        """Whether the last line has a hash. Those of 0.1.0 have none."""
        self.counted = True
        """Whether there is a head. Ledgers of 0.1.0 have none."""
        self._lines, self._end, self._chain = 0, 0, ""

    @classmethod
    def create(cls, path: Path, first: bytes) -> "LedgerFile":
        """Begin a ledger with its first line. Refused if the head of one that was deleted is still there."""
        head = _read_head(path)
        if head is not None and head.lines:
            raise StorageError(
                f"the privacy ledger {path} is gone, and {head_of(path).name} beside it says that it had {head.lines:,} lines: "
                "nobody knows what was spent. Bring the ledger back, or start a new run in another folder."
            )
        made = cls(path)
        made._write_head()  # first, so that a ledger with hashes never lacks one
        line, made._chain = _sealed("", first)
        replace_file(path, line)
        made._lines, made._end, made.chained = 1, len(line), True
        return made

    @classmethod
    def open(cls, path: Path) -> "LedgerFile":
        """Read all lines and check that none is changed or missing. A last line that a crash cut off is left out."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"cannot read the privacy ledger {path}: {error.strerror or error}. Without it nobody knows what was spent: "
                "bring it back, or start a new run in another folder."
            ) from error
        *lines, _cut = data.split(b"\n")
        if not lines:
            raise damaged(path, 1, "the first line is missing")
        made, chains = cls(path), [""]
        for number, line in enumerate(lines, 1):
            content, found = _opened(line)
            chains.append(_link(chains[-1], content))
            if found is None and made.chained:
                raise damaged(path, number, "unlike the line before it has no hash, so something else than sketchfed wrote it")
            if found is not None and found != chains[-1]:
                raise damaged(path, number, "its hash does not follow from the lines up to it, so one was changed or removed")
            made.chained = found is not None
            made.contents.append(content)
        made._compare(_read_head(path), chains)
        made._lines, made._end, made._chain = len(lines), sum(len(line) + 1 for line in lines), chains[-1]
        return made

    def append(self, content: bytes) -> None:
        """Add a line. If that fails, the file is as it was."""
        if not self.counted:
            self._write_head()  # from here on lines have hashes, and a ledger with hashes has a head
        line, chain = _sealed(self._chain, content)
        with storing(self.path), self.path.open("r+b", buffering=0) as file:
            file.seek(self._end)
            beyond = file.read()
            if os.fstat(file.fileno()).st_size < self._end or b"\n" in beyond:
                raise StorageError(
                    f"{self.path} is not as this process left it: another one works on the same run, or cut it short. Stop "
                    "the other, and go on with --resume."
                )
            before = self._lines, self._chain
            try:
                file.truncate(self._end)  # what a crash left of a line
                file.seek(self._end)
                left = line
                while left:  # a disk that fills up takes a part, and complains the next time
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
                self._lines, self._chain = self._lines + 1, chain
                self._write_head()
            except (OSError, StorageError):
                self._lines, self._chain = before
                if (head := _read_head(self.path)) is None or head.lines <= self._lines:
                    file.truncate(self._end)  # else the line counts, and whoever resumes the run will find it
                raise
        self._end, self.chained, self.counted = self._end + len(line), True, True

    def _compare(self, head: _Head | None, chains: list[str]) -> None:
        """Refuse lines that are not those which the head counted."""
        beside, lines = head_of(self.path).name, len(chains) - 1
        if head is None and self.chained:
            raise StorageError(
                f"{beside} beside the privacy ledger {self.path} is missing, so nobody knows whether lines of the ledger are, "
                "too. Bring both back, or start a new run in another folder."
            )
        self.counted = head is not None
        if head is None:
            return
        if head.lines > lines:
            raise StorageError(
                f"the privacy ledger {self.path} has {lines:,} lines, and {beside} counted {head.lines:,}: its end was cut "
                "off, so nobody knows what was spent. Bring back a copy of the whole file, or start a new run in another "
                "folder."
            )
        if chains[head.lines] != head.chain:
            raise StorageError(
                f"the first {head.lines:,} lines of the privacy ledger {self.path} are not those that {beside} counted: one "
                "was changed, or the files are of two runs. Bring back copies of both, or start a new run in another folder."
            )

    def _write_head(self) -> None:
        head = _Head(HEAD_FORMAT, HEAD_VERSION, self._lines, self._chain)
        replace_file(head_of(self.path), msgspec.json.encode(head) + b"\n")


def head_of(path: Path) -> Path:
    """The file beside a ledger that counts its lines."""
    return path.with_name(path.name + ".head")


def damaged(path: Path, line: int, why: str) -> StorageError:
    return StorageError(
        f"line {line} of the privacy ledger {path} is not what a ledger writes: {why}. It was changed or damaged, so nobody "
        "knows what was spent. Bring back a copy of the whole file, or start a new run in another folder."
    )


def _read_head(path: Path) -> _Head | None:
    try:
        data = head_of(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"cannot read {head_of(path)}, which counts the lines of a privacy ledger: {error.strerror or error}. Make it "
            "readable, or start a new run in another folder."
        ) from error
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (ValueError, RecursionError):
        head = None
    if head is None or (head.format, head.version) != (HEAD_FORMAT, HEAD_VERSION) or head.lines < 0:
        raise StorageError(
            f"{head_of(path)} does not count the lines of a privacy ledger as this sketchfed does: it was changed or damaged, "
            "or a later version wrote it. Bring back copies of both files, or start a new run in another folder."
        )
    return head


def _link(before: str, content: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + content).hexdigest()


def _sealed(before: str, content: bytes) -> tuple[bytes, str]:
    """A line with its hash as the last key of its JSON object, and that hash."""
    chain = _link(before, content)
    return content[:-1] + _CHAIN + chain.encode() + b'"}\n', chain


def _opened(line: bytes) -> tuple[bytes, str | None]:
    """A line without its hash, and the hash if it has one."""
    at = len(line) - len(_CHAIN) - _HEX - 2
    if at < 0 or line[at : at + len(_CHAIN)] != _CHAIN or line[-2:] != b'"}':
        return line, None
    return line[:at] + b"}", line[at + len(_CHAIN) : -2].decode("latin-1")
