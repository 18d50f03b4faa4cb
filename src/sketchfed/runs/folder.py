"""A run's folder: config.toml, metrics.jsonl, summary.json, privacy.jsonl, the checkpoint, and later the report."""

import fcntl
import json
import os
import shutil
from collections.abc import Container, Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import IO, Any

from sketchfed.config import Config, load_config
from sketchfed.errors import InputError, StorageError
from sketchfed.privacy.accounting import Claim
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.runs.checkpoint import Checkpoints
from sketchfed.storage import replace_file, storing, sync_folder

CONFIG, METRICS, SUMMARY, LOCK = "config.toml", "metrics.jsonl", "summary.json", ".lock"
PRIVACY = "privacy.jsonl"
KEYS = (
    "round", "loss", "accuracy", "participants", "uplink_bytes", "downlink_bytes", "broadcast_bytes", "captured", "epsilon",
    "seconds",
)  # fmt: skip
"""What a line of metrics tells."""
_LATER = {"captured": None}
"""What lines of older runs do not tell yet."""


class RunFolder:
    """Where a run is kept. Only one process at a time may hold it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path)
        self._metrics: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new folder for a run; one that holds a run already is not touched."""
        folder = cls(cls.free(path))
        with storing(path):
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
        folder._take()
        return folder

    @staticmethod
    def free(path: Path) -> Path:
        """The path, if it holds no run yet."""
        if (path / CONFIG).exists():
            raise InputError(f"{path} holds a run already. Go on with it by --resume, or choose another name or --out.")
        return path

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The folder of a run that was begun, to go on with it."""
        folder = cls(path)
        folder._take()
        return folder

    @staticmethod
    def config(path: Path) -> Config:
        """The configuration of a run that was begun."""
        if not (path / CONFIG).is_file():
            raise InputError(f"{path} holds no run: it has no {CONFIG}. Start one with: sketchfed run CONFIG.")
        return load_config(path / CONFIG)

    def keep(self, config: Config) -> None:
        """Write the configuration, unless it is there: from now on this is a run that can be resumed."""
        if not (self.path / CONFIG).exists():
            replace_file(self.path / CONFIG, config.to_toml().encode())

    def check_room(self, needed: int) -> None:
        """Refuse to start on a disk where not even the checkpoints will fit."""
        with storing(self.path):
            free = shutil.disk_usage(self.path).free
        if free < needed:
            raise StorageError(
                f"{self.path} has {free / 1e6:,.1f} MB of free space; checkpoints of this model take {needed / 1e6:,.1f} MB. "
                "Make room, or choose another folder with --out."
            )

    def metrics(self, rounds: int) -> list[dict[str, Any]]:
        """The lines of the first so many rounds; those after the last checkpoint are cut off, for they will come again."""
        path = self.path / METRICS
        try:
            lines = [_LATER | json.loads(text) for text in path.read_bytes().splitlines()[:rounds]] if path.exists() else []
            kept = b"".join(_line(line) for line in lines)
            whole = [line["round"] for line in lines if line.keys() == set(KEYS)] == list(range(1, rounds + 1))
        except (OSError, ValueError, TypeError):
            whole = False
        if not whole:
            raise StorageError(
                f"{path} should tell of rounds 1 to {rounds}, as the checkpoint beside it does, but does not. It was changed "
                "or damaged; start the run anew in another folder."
            )
        replace_file(path, kept)
        with storing(path):
            self._metrics = path.open("ab", buffering=0)
        return lines

    def append(self, line: dict[str, Any]) -> None:
        """Add the line of a round."""
        assert self._metrics is not None
        left = _line(line)
        with storing(self.path / METRICS):
            while left:  # a disk that fills up takes a part, and complains the next time
                left = left[self._metrics.write(left) :]

    def sync(self) -> None:
        """Make sure that all lines so far are on the disk: before the checkpoint that counts on them."""
        assert self._metrics is not None
        with storing(self.path / METRICS):
            os.fsync(self._metrics.fileno())

    def privacy(self, claim: Claim, *, begun: bool) -> PrivacyLedger:
        """The ledger of what the run has spent; one that has `begun` has it already.

        It is never cut back to the checkpoint: what has left was seen.
        """
        path = self.path / PRIVACY
        return PrivacyLedger.load(path, claim) if begun or path.exists() else PrivacyLedger(claim, path)

    def summarise(self, summary: dict[str, Any]) -> None:
        replace_file(self.path / SUMMARY, json.dumps(summary, indent=1).encode())

    def close(self) -> None:
        for file in (self._metrics, self._lock):
            if file is not None:
                file.close()

    def _take(self) -> None:
        with storing(self.path / LOCK):
            self._lock = (self.path / LOCK).open("ab")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                if not isinstance(error, BlockingIOError):
                    raise
                raise InputError(f"another process is working on {self.path}. Wait for it, or choose another folder.") from None


def _line(line: dict[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def is_finished(path: Path) -> bool:
    """Whether the run in a folder came to its end."""
    try:
        return json.loads((path / SUMMARY).read_bytes())["finished"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def free_path(parent: Path, name: str, taken: Container[Path] = ()) -> Path:
    """A path below `parent` that holds no run yet and is not taken: the name, or the name with the next number."""
    return next(path for path in numbered(parent, name) if path not in taken and not (path / CONFIG).exists())


def latest_path(parent: Path, name: str) -> Path:
    """The path below `parent` of the last run of that name; the name itself if there is none."""
    return [parent / name, *takewhile(lambda path: (path / CONFIG).exists(), numbered(parent, name))][-1]


def numbered(parent: Path, name: str) -> Iterator[Path]:
    """Paths to try for a name: the name, the name with 2, with 3, and so on."""
    yield parent / name
    yield from (parent / f"{name}-{number}" for number in count(2))
