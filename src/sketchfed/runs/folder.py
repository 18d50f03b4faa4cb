"""The folder of a run: config.toml, identity.json, metrics.jsonl, summary.json, privacy.jsonl, checkpoint and report."""

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Container, Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import IO, Any

from sketchfed.config import Config, load_config
from sketchfed.errors import InputError, StorageError
from sketchfed.privacy.claims import Claim
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.runs.checkpoint import Checkpoints
from sketchfed.runs.versions import IDENTITY, SUMMARY, naming_writer, remedy
from sketchfed.storage import replace_file, storing, sync_folder
from sketchfed.tables import read_toml

CONFIG, METRICS, LOCK = "config.toml", "metrics.jsonl", ".lock"
PRIVACY, GRAPH = "privacy.jsonl", "graph.json"
_LATER = {"captured": None}
"""Values for keys that are missing from the metrics of older runs."""


class RunFolder:
    """The folder in which a run is kept. Only one process at a time may hold it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path)
        self._metrics: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Create the folder for a new run. A folder that already holds a run is refused and not modified."""
        folder = cls(cls.free(path))
        with storing(path):
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
        folder._take()
        return folder

    @staticmethod
    def free(path: Path) -> Path:
        """Return the path if it does not hold a run yet, else raise an error."""
        if (path / CONFIG).exists():
            raise InputError(f"{path} already holds a run. Continue it with --resume, or choose another name or --out.")
        return path

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open the folder of an existing run, to continue the run."""
        folder = cls(path)
        folder._take()
        return folder

    @staticmethod
    def config(path: Path) -> Config:
        """Read the configuration of an existing run."""
        if not (path / CONFIG).is_file():
            raise InputError(f"{path} holds no run: it has no {CONFIG}. Start one with: sketchfed run CONFIG.")
        try:
            return load_config(path / CONFIG)
        except InputError as error:
            advice = remedy(path, otherwise="")
            if not advice:
                raise
            raise InputError(f"{error} {advice}") from error

    @property
    def begun(self) -> bool:
        """Whether this is a run that can be resumed."""
        return (self.path / CONFIG).exists()

    def keep(self, config: Config) -> None:
        """Write the configuration unless the file exists. From then on, the run can be resumed."""
        if not self.begun:
            replace_file(self.path / CONFIG, config.to_toml().encode())

    def check_room(self, needed: int) -> None:
        """Refuse to start on a disk that has no room for the checkpoints."""
        with storing(self.path):
            free = shutil.disk_usage(self.path).free
        if free < needed:
            raise StorageError(
                f"{self.path} has {free / 1e6:,.1f} MB of free space; checkpoints of this model take {needed / 1e6:,.1f} MB. "
                "Make room, or choose another folder with --out."
            )

    def metrics(self, rounds: int, keys: Collection[str]) -> list[dict[str, Any]]:
        """Return the metrics of the first `rounds` rounds, and check that each line has exactly these `keys`.

        Lines after the last checkpoint are deleted from the file, because those rounds will run again.
        """
        path = self.path / METRICS
        try:
            lines = [_LATER | json.loads(text) for text in path.read_bytes().splitlines()[:rounds]] if path.exists() else []
            kept = b"".join(_line(line) for line in lines)
            whole = [line["round"] for line in lines if line.keys() == set(keys)] == list(range(1, rounds + 1))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            whole = False
        if not whole:
            advice = remedy(self.path, otherwise="It was changed or damaged; start the run anew in another folder.")
            raise StorageError(
                f"{path} should hold rounds 1 to {rounds}, like the checkpoint in the same folder, but does not. {advice}"
            )
        replace_file(path, kept)
        with storing(path):
            self._metrics = path.open("ab", buffering=0)
        return lines

    def append(self, line: dict[str, Any]) -> None:
        """Append the metrics of one round."""
        left, file = _line(line), self._opened
        with storing(self.path / METRICS):
            while left:  # a disk that fills up writes a part first, and fails at the next call
                left = left[file.write(left) :]

    def sync(self) -> None:
        """Make sure that all lines are on disk. Call this before saving the checkpoint that relies on them."""
        with storing(self.path / METRICS):
            os.fsync(self._opened.fileno())

    @property
    def _opened(self) -> IO[bytes]:
        if self._metrics is None:
            raise StorageError(f"{self.path / METRICS} is not open for writing. Call `metrics` first.")
        return self._metrics

    def privacy(self, claim: Claim, *, begun: bool, chained: bool = False) -> PrivacyLedger:
        """Return the ledger of the run's privacy costs. If the run has `begun`, its ledger must already exist.

        Its lines must have hashes if the checkpoint says that they had (`chained`), or if 0.1.0 did not begin the run.
        The ledger is never cut back to the checkpoint, because what was sent after the checkpoint has been seen.
        """
        path = self.path / PRIVACY
        if not begun and not path.exists():
            return PrivacyLedger(claim, path)
        with naming_writer(self.path):
            return PrivacyLedger.load(path, claim, chained=chained or not self._of_the_first_version)

    @property
    def _of_the_first_version(self) -> bool:
        """Whether sketchfed 0.1.0 began the run: it saved no identity, and not all of today's settings."""
        settings = read_toml(self.path / CONFIG).get("algorithm", {}) if self.begun else {}
        return not (self.path / IDENTITY).exists() and "public_start" not in settings

    def summarise(self, summary: dict[str, Any]) -> None:
        replace_file(self.path / SUMMARY, json.dumps(summary, indent=1).encode())

    def keep_graph(self, described: dict[str, Any]) -> None:
        """Write what a run without a server tells about its graph."""
        replace_file(self.path / GRAPH, json.dumps(described, allow_nan=False).encode())

    def close(self) -> None:
        if self._lock is not None and not self._lock.closed:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # worker processes of DataLoaders may hold the same file open
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
    """Whether the run in a folder is finished."""
    try:
        return json.loads((path / SUMMARY).read_bytes())["finished"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def free_path(parent: Path, name: str, taken: Container[Path] = ()) -> Path:
    """A path below `parent` that holds no run and is not in `taken`: the name, or the name with the next free number."""
    return next(path for path in numbered(parent, name) if path not in taken and not (path / CONFIG).exists())


def latest_path(parent: Path, name: str) -> Path:
    """The path below `parent` of the latest run with this name, or the name itself if there is none."""
    return [parent / name, *takewhile(lambda path: (path / CONFIG).exists(), numbered(parent, name))][-1]


def numbered(parent: Path, name: str) -> Iterator[Path]:
    """Yield the paths to try for a name: `name`, `name-2`, `name-3`, and so on."""
    yield parent / name
    yield from (parent / f"{name}-{number}" for number in count(2))
