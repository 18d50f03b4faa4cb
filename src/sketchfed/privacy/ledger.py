"""What a run has spent: every release, on the disk before its noise is drawn, so that no crash can forget it.

A ledger is a file of JSON lines that only grows: the claim, then what was intended and what came of it. `LedgerFile` notices
lines that are missing or changed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sketchfed.errors import InputError, StorageError
from sketchfed.privacy.accounting import worst_bound, worst_epsilon
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.ledger_file import LedgerFile, damaged

FORMAT, VERSION = "sketchfed privacy ledger", 2
log = logging.getLogger("sketchfed")
UNCHAINED = 1
"""The version whose lines have no hashes, of sketchfed 0.1.0."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One draw of noise: in which round, whom it touched (None: everybody), and what it cost them.

    Until it is settled it is an intent: noise may have been drawn and seen, so it is charged in full. `covered` are those whom
    it touched as well, and who have paid before: where an example is in one sum a pass, the charge for one does for all.
    """

    round: int
    draw: str
    clients: tuple[int, ...] | None
    charge: Charge
    settled: bool
    covered: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.round < 0:
            raise InputError(f"round must be 0 or more, got {self.round}.")
        named = (*(self.clients or ()), *self.covered)
        if any(client < 0 for client in named):
            raise InputError(f"clients are numbered from 0, got {min(named)}.")
        if self.covered and (self.clients is None or not set(self.clients).isdisjoint(self.covered)):
            raise InputError("a client is charged for a draw of noise or covered, not both. Name it once.")


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    claim: Claim


class PrivacyLedger:
    """The releases of a run and their ε under one claim.

    `intend` before noise is drawn, `settle` when it is known who was in the sum. Both are on the disk when they return.
    A round that is run again with new noise has another `draw` and is charged again; the same draw again is the same noise.
    """

    def __init__(self, claim: Claim, path: Path | None = None) -> None:
        self.claim = claim
        self.path = path
        self._entries: dict[tuple[int, str], LedgerEntry] = {}
        self._rounds: dict[int, list[tuple[int, str]]] = {}
        self._charged: dict[int, list[int]] | None = None
        self._spent = _Spent()
        self._file: LedgerFile | None = None
        if path is not None:
            if path.exists():
                raise InputError(f"{path} exists already: a ledger is never begun anew. Go on with it by PrivacyLedger.load.")
            self._file = LedgerFile.create(path, msgspec.json.encode(_Head(FORMAT, VERSION, claim)))

    @classmethod
    def load(cls, path: Path, claim: Claim | None = None, *, chained: bool = False) -> "PrivacyLedger":
        """Go on with a ledger. A last line that a crash cut off was never acknowledged, and is left out.

        With a claim, the ledger must be about that one. `chained` says that the ledger was not left by sketchfed 0.1.0, so that
        it must have hashes.
        """
        file = LedgerFile.open(path)
        try:
            head = msgspec.json.decode(file.contents[0], type=_Head)
        except (ValueError, RecursionError) as error:
            raise damaged(path, 1, str(error)) from None
        if head.version == VERSION and not file.chained:
            raise damaged(path, 1, "it has no hash")
        if chained and not file.chained:
            raise damaged(path, 1, "it looks like a ledger of sketchfed 0.1.0, and a later version wrote this run")
        if head.format != FORMAT or head.version not in (UNCHAINED, VERSION):
            raise StorageError(
                f"{path} is a '{head.format}' of version {head.version}; this sketchfed reads a '{FORMAT}' of version "
                f"{VERSION}. Go on with the version that began the run."
            )
        if claim is not None and claim != head.claim:
            raise StorageError(
                f"{path} is about ε {head.claim.text}, not {claim.text}. What was spent under one claim cannot be "
                "carried over to another: put the settings back, or start a new run."
            )
        if not file.counted:
            log.warning("%s was begun by sketchfed 0.1.0: nobody can see whether lines of that time are missing.", path)
        ledger = cls(head.claim)
        decoder = msgspec.json.Decoder(LedgerEntry)
        for number, line in enumerate(file.contents[1:], 2):
            try:
                ledger._note(decoder.decode(line))
            except (ValueError, RecursionError) as error:
                raise damaged(path, number, str(error)) from None
        file.contents.clear()
        ledger.path, ledger._file = path, file
        return ledger

    @property
    def chained(self) -> bool:
        """Whether its file has hashes by now. That of a run which 0.1.0 began gets them with the first new line."""
        return self._file is not None and self._file.chained

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All draws, each in its last state, in the order in which they were first intended."""
        return tuple(self._entries.values())

    def of_round(self, round: int) -> tuple[LedgerEntry, ...]:
        """The draws of one round."""
        return tuple(self._entries[key] for key in self._rounds.get(round, ()))

    def charged(self, client: int, *, since: int, until: int) -> int:
        """How many draws of rounds `since` to `until` are charged to a client by its number."""
        if self._charged is None:  # where nobody asks, it is not kept
            self._charged = {}
            for entry in self._entries.values():
                self._index(entry, add=True)
        return sum(since <= round <= until for round in self._charged.get(client, ()))

    def intend(
        self, *, round: int, draw: str, clients: Sequence[int] | None, charge: Charge, covered: Sequence[int] = ()
    ) -> None:
        """Write down a release before its noise is drawn."""
        known = _sorted(covered) or ()
        self._add(
            LedgerEntry(round=int(round), draw=draw, clients=_sorted(clients), charge=charge, settled=False, covered=known)
        )

    def settle(self, *, round: int, draw: str, clients: Sequence[int] | None, charge: Charge) -> None:
        """Write down what really happened; it takes the place of the intent of that round and draw.

        `clients` are all whom the noise touched; those among them whom the intent covered stay so.
        """
        if (round, draw) not in self._entries:
            raise InputError(f"draw '{draw}' of round {round} was never intended. Call `intend` before the noise is drawn.")
        touched = _sorted(clients)
        covered: tuple[int, ...] = ()
        if before := self._entries[round, draw].covered:
            if touched is None:
                raise InputError(f"draw '{draw}' of round {round} covers some clients, so say by name whom it touched.")
            paid = set(before)
            covered = tuple(client for client in touched if client in paid)
            touched = tuple(client for client in touched if client not in paid)
        self._add(LedgerEntry(round=int(round), draw=draw, clients=touched, charge=charge, settled=True, covered=covered))

    def epsilon(self, *, also: tuple[Sequence[int] | None, Charge] | None = None) -> float:
        """ε of the client who spent the most; with `also`, as if those clients were charged that too."""
        spent = self._spent
        if also is not None:
            clients, charge = also
            spent = spent.copy()
            spent.add(_sorted(clients), charge, 1)
        return worst_epsilon(spent.charges, spent.profiles(), self.claim)

    @property
    def text(self) -> str:
        """What must be said with its ε, with the accountant that found it."""
        _, accountant = worst_bound(self._spent.charges, self._spent.profiles(), self.claim)
        return replace(self.claim, accountant=accountant).text

    def _add(self, entry: LedgerEntry) -> None:
        before = self._entries.get((entry.round, entry.draw))
        self._check(entry, before)
        if self._file is not None:
            self._file.append(msgspec.json.encode(entry))
        self._note(entry)

    def _note(self, entry: LedgerEntry) -> None:
        key = (entry.round, entry.draw)
        before = self._entries.get(key)
        self._check(entry, before)
        if before is not None:
            self._spent.add(before.clients, before.charge, -1)
            self._index(before, add=False)
        else:
            self._rounds.setdefault(entry.round, []).append(key)
        self._spent.add(entry.clients, entry.charge, 1)
        self._index(entry, add=True)
        self._entries[key] = entry

    def _index(self, entry: LedgerEntry, *, add: bool) -> None:
        if self._charged is not None:
            for client in entry.clients or ():
                rounds = self._charged.setdefault(client, [])
                rounds.append(entry.round) if add else rounds.remove(entry.round)

    @staticmethod
    def _check(entry: LedgerEntry, before: LedgerEntry | None) -> None:
        if before is None or not before.settled:
            return
        if (entry.clients, entry.covered, entry.charge.noise) != (before.clients, before.covered, before.charge.noise):
            raise InputError(
                f"draw '{entry.draw}' of round {entry.round} is settled, and now comes with other clients or another charge. "
                "The same noise on two sums cancels in their difference. Draw new noise under another name."
            )


class _Spent:
    """The number of each charge for every client: one row per client, one column per charge. Row 0 is for unnamed clients."""

    def __init__(self) -> None:
        self.charges: list[Charge] = []
        self._columns: dict[Charge, int] = {}
        self._rows: dict[int, int] = {}
        self._counts = np.zeros((1, 0), dtype=np.int64)

    def add(self, clients: Sequence[int] | None, charge: Charge, times: int) -> None:
        if charge not in self._columns:
            self._columns[charge] = len(self.charges)
            self.charges.append(charge)
        rows = [0] if clients is None else [self._rows.setdefault(client, len(self._rows) + 1) for client in clients]
        self._grow()
        self._counts[rows, self._columns[charge]] += times

    def profiles(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        counts = self._counts[: len(self._rows) + 1, : len(self.charges)].copy()
        counts[1:] += counts[0]
        return counts

    def copy(self) -> "_Spent":
        made = _Spent()
        made.charges, made._columns, made._rows = list(self.charges), dict(self._columns), dict(self._rows)
        made._counts = self._counts.copy()
        return made

    def _grow(self) -> None:
        rows, columns = self._counts.shape
        wanted = (len(self._rows) + 1, len(self.charges))
        if wanted[0] > rows or wanted[1] > columns:
            bigger = [size if size >= least else 2 * least for size, least in zip((rows, columns), wanted, strict=True)]
            grown = np.zeros((bigger[0], bigger[1]), dtype=np.int64)
            grown[:rows, :columns] = self._counts
            self._counts = grown


def _sorted(clients: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if clients is None else tuple(sorted({int(client) for client in clients}))
