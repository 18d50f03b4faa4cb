"""Sweeps: many runs in parallel. Each result is saved as soon as it is known, and saved results are not computed again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sketchfed.errors import DivergedError, InputError, StorageError

Row = dict[str, Any]
"""A result: the `key` of its case, the `digest` of its configuration, and the measured values."""

CURVE = ("round", "loss", "accuracy", "uplink_bytes", "downlink_bytes", "broadcast_bytes")
"""The values at each point of the `curve` of a trained case, in this order. Bytes are totals since the first round."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of a sweep."""

    key: Mapping[str, Any]
    """Distinguishes this case from the others. It maps names to plain values, such as a size and a seed."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """The configuration, as for `sketchfed.run`."""

    @property
    def name(self) -> str:
        """The key as text. Equal keys have equal names."""
        return _name(self.key)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ for different configurations."""
        return sha256(json.dumps(self.tables, sort_keys=True, default=str).encode()).hexdigest()[:16]


def trained(case: Case) -> Row:
    """Train with the case's configuration in one thread, and return the results as a row.

    The row holds:

    - `curve`: a list for each scored round, with the values named in `CURVE`.
    - `diverged`: whether the loss or the weights became infinite or NaN. The curve ends there.
    - `seconds`: the duration.
    - `epsilon`, if the run is private: the ε that was spent.
    - `captured`, if it is measured: the share of the gradient's energy that each scored round's packets could carry.
    """
    from sketchfed.runs.starting import run

    lines: list[dict[str, Any]] = []
    diverged = False
    tables = {**case.tables, "engine": {"workers": 1, **case.tables.get("engine", {})}}
    try:
        run(tables, on_round=lines.append)
    except DivergedError:
        diverged = True
    curve = [[_short(line[field]) for field in CURVE] for line in lines if line["loss"] is not None]
    row: Row = {"diverged": diverged, "curve": curve, "seconds": lines[-1]["seconds"] if lines else 0.0}
    shares = [_short(line["captured"]) for line in lines if line["captured"] is not None]
    row |= {"captured": shares} if shares else {}
    spent = lines[-1]["epsilon"] if lines else None
    return row if spent is None else row | {"epsilon": spent}


def sweep(
    cases: Sequence[Case],
    path: Path | str,
    *,
    processes: int = 1,
    compute: Callable[[Case], Row] = trained,
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Compute all cases that have no result in the file yet, and return all results in the order of the cases.

    Each result is appended to the file as a line of JSON as soon as it is known. An interrupted sweep therefore continues where
    it stopped, and a sweep with additional cases computes only those. If a case fails, the cases that have already started are
    finished and saved before the error is raised.

    `cases` are the cases to compute, whose keys must differ. `path` is the file of results, which is created if it does not
    exist. `processes` says how many cases are computed at a time, each in its own process; with more than one, a script needs
    the usual `if __name__ == "__main__":`. `compute` computes a case; it must be defined in a module and return plain values by
    name. `on_row` is called with each row, first with the saved ones, then with each new one.

    Raises `InputError` if two cases have the same key, or if a result in the file was computed with another configuration.
    Raises `StorageError` if the file cannot be read or written.
    """
    wanted = _by_name(cases)
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise InputError(f"processes must be a positive integer, got {processes!r}.")
    path = Path(path)
    done = {name: row for row in read_rows(path) if (name := _name(row.get("key", {}))) in wanted}
    for name, row in done.items():
        _check_same(wanted[name], row, path)
        if on_row is not None:
            on_row(row)
    with _appending(path) as append:
        for name, row in _computed([case for name, case in wanted.items() if name not in done], processes, compute):
            done[name] = {"key": dict(wanted[name].key), **row, "digest": wanted[name].digest}
            append(done[name])
            if on_row is not None:
                on_row(done[name])
    return [done[name] for name in wanted]


def read_rows(path: Path | str) -> list[Row]:
    """Read the results in a file, oldest first. A last line that a crash cut off is left out. Without a file there are none."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot read results from {path}: {error}. Move the file away to compute them anew.") from error
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise StorageError(f"line {number} of {path} is not a result: {error}. Delete it to compute it again.") from error
        if not isinstance(row, dict):
            raise StorageError(f"line {number} of {path} is not a result but {line[:40]!r}. Delete that line.")
        rows.append(row)
    return rows


def _computed(cases: Sequence[Case], processes: int, compute: Callable[[Case], Row]) -> Iterator[tuple[str, Row]]:
    """Yield the name and the result of each case as soon as it is computed."""
    if processes == 1 or len(cases) < 2:
        yield from ((case.name, compute(case)) for case in cases)
        return
    failure: BaseException | None = None
    with ProcessPoolExecutor(min(processes, len(cases)), mp_context=get_context("spawn")) as pool:
        names: dict[Future[Row], str] = {pool.submit(compute, case): case.name for case in cases}
        pending = set(names)
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    if (error := future.exception()) is None:
                        yield names[future], future.result()
                    else:
                        failure = failure or error
                if failure is not None:
                    pending = {future for future in pending if not future.cancel()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failure is not None:
        raise failure


@contextmanager
def _appending(path: Path) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row to the file. A last line that a crash cut off is removed first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _drop_cut_line(path)
        with path.open("a", encoding="utf-8") as file:

            def append(row: Row) -> None:
                file.write(json.dumps(row) + "\n")
                file.flush()

            yield append
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"cannot write results to {path}: {error.strerror or error}. Results that were written before are kept. Make room "
            "or choose another file, and run the sweep again."
        ) from error


def _drop_cut_line(path: Path) -> None:
    """Keep only what `read_rows` reads, and end it with a newline. A file that is already in this form is not modified."""
    data = path.read_bytes()
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    try:
        json.loads(data[start:] or "0")
    except ValueError:
        path.write_bytes(data[:start])
        return
    if data and not data.endswith(b"\n"):
        path.write_bytes(data + b"\n")


def _by_name(cases: Sequence[Case]) -> dict[str, Case]:
    found: dict[str, Case] = {}
    for case in cases:
        if case.name in found:
            raise InputError(f"two cases of the sweep have the key {case.name}. Add a value that differs, such as a seed.")
        found[case.name] = case
    return found


def _check_same(case: Case, row: Row, path: Path) -> None:
    if row.get("digest", case.digest) != case.digest:
        raise InputError(
            f"{path} has a result for {case.name} that was computed with another configuration. Delete that line, or write to "
            "another file."
        )


def _name(key: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(key), sort_keys=True)
    except TypeError as error:
        raise InputError(f"the key of a case must hold plain values, such as numbers, got {dict(key)!r}: {error}.") from error


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
