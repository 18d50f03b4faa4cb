"""What a node's data has spent of its privacy: for each run, and for each data set over all runs, servers and sessions.

Charges carry no adjacency: noise over clip, sampling and the number of releases. So charges of all runs on a data set compose,
whatever their δ or accountant, as long as they are about the same unit. The lifetime ε is worked out for neighbours of which
one unit contributes nothing ("zero-out"), at the δ of the policy. A run whose claim is about another unit than what was spent
before is refused: no sound rule adds the two.
"""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sketchfed.errors import InputError
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.protection import Protection
from sketchfed.protection.batches import batch_of
from sketchfed.protection.passes import passed_batches
from sketchfed.seeds import PublicSeed

_CLOSE = 1 + 1e-9
"""A budget that calibration used up to the last digit is not exceeded by rounding."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The most that may be spent, at a δ, and the rule that says so."""

    epsilon: float
    delta: float
    rule: str
    told: str = ""
    """The rule as a server may know it."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """One answer with noise: whose data it is about, in which round of which run, and what it costs."""

    data: str
    who: bytes
    session: bytes
    round: int
    claim: Claim
    charge: Charge
    run: Limit | None = None
    """What the run itself promised, or what the policy allows for a run if that is less."""
    lifetime: Limit | None = None
    turn: tuple[int, int] | None = None
    """With passes: the pass and the batch. Each example is in one batch of a pass."""

    def check(self, rows: sqlite3.Connection) -> bool:
        """Refuse a release that costs too much. Returns whether it costs anything: a pass is charged once."""
        counted = self._counted(rows)
        also = {self.charge: 1} if counted else {}
        if self.run is not None:
            spent = _charges(rows, "who = ? AND session = ?", (self.who, self.session))
            total = epsilon_of(_sum(spent, also), self.claim)
            if total > self.run.epsilon * _CLOSE:
                raise InputError(
                    f"round {self.round + 1} would bring what this run costs this client to ε = {total:.4g}, by its own books, "
                    f"above {self.run.rule}. It has answered {sum(spent.values())} times. It takes no part any more."
                )
        if self.lifetime is not None:
            self._check_lifetime(rows, also, self.lifetime)
        return counted

    def spend(self, rows: sqlite3.Connection) -> None:
        """Write the release down. Call it in the transaction in which the answer is settled."""
        counted = self.check(rows)
        turn: tuple[int | None, int | None] = (None, None) if self.turn is None else self.turn
        charge = msgspec.json.encode(self.charge).decode()
        about = (self.claim.unit, self.claim.adjacency, self.claim.observer)
        rows.execute(
            "INSERT INTO spending (data, who, session, round, unit, adjacency, observer, charge, counted, pass, batch, seen) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self.data, self.who, self.session, self.round, *about, charge, int(counted), *turn, time.time()),
        )

    def _check_lifetime(self, rows: sqlite3.Connection, also: Mapping[Charge, int], limit: Limit) -> None:
        others = rows.execute("SELECT unit FROM spending WHERE data = ? AND unit != ? LIMIT 1", (self.data, self.claim.unit))
        if other := others.fetchone():
            raise InputError(
                f"data set '{self.data}' was charged at {other[0]} level before, and this run claims ε at {self.claim.unit} "
                f"level. The two cannot be added. Use privacy.unit = '{other[0]}'. {limit.rule}"
            ).telling(
                f"the data of this node is charged at {other[0]} level, and this run claims ε at {self.claim.unit} level. The "
                f"two cannot be added. Use privacy.unit = '{other[0]}'. {limit.told}"
            )
        spent = _charges(rows, "data = ?", (self.data,))
        claim = Claim(unit=self.claim.unit, adjacency="zero-out", observer=self.claim.observer, delta=limit.delta)
        total = epsilon_of(_sum(spent, also), claim)
        if total > limit.epsilon * _CLOSE:
            raise InputError(
                f"this answer would bring what data set '{self.data}' has spent over all runs to ε = {total:.4g} at δ = "
                f"{limit.delta:g}. Its lifetime budget is used up. {limit.rule}"
            ).telling(f"this answer would cost more than what is left of the lifetime budget of this node's data. {limit.told}")

    def _counted(self, rows: sqlite3.Connection) -> bool:
        """Whether this release is charged. Within a pass, as often as its most frequently released batch."""
        if self.turn is None:
            return True
        where, values = "who = ? AND session = ? AND pass = ?", (self.who, self.session, self.turn[0])
        (charged,) = rows.execute(f"SELECT COUNT(*) FROM spending WHERE {where} AND counted = 1", values).fetchone()
        (released,) = rows.execute(
            f"SELECT COUNT(*) FROM spending WHERE {where} AND batch = ?", (*values, self.turn[1])
        ).fetchone()
        return bool(charged <= released)


def turn_of(protection: Protection, seed: PublicSeed, index: int, client: int) -> tuple[int, int] | None:
    """The pass and the batch that a client uses in a round, if its data is cut into passes."""
    if protection.budget is None or protection.budget.passes is None:
        return None
    turn = protection.budget.passes.turn(seed, index, client)
    return divmod(turn, passed_batches(protection.sizes[client], batch_of(protection.algorithm.work)))


def spent_on(rows: sqlite3.Connection, data: str, *, delta: float) -> float:
    """ε that a data set has spent over all runs, at a δ. 0 if nothing."""
    found = rows.execute("SELECT DISTINCT unit, observer FROM spending WHERE data = ?", (data,)).fetchall()
    if not found:
        return 0.0
    claim = Claim(unit=found[0][0], adjacency="zero-out", observer=found[0][1], delta=delta)
    return epsilon_of(_charges(rows, "data = ?", (data,)), claim)


def _charges(rows: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> dict[Charge, int]:
    found = rows.execute(f"SELECT charge, COUNT(*) FROM spending WHERE {where} AND counted = 1 GROUP BY charge", values)
    return {msgspec.json.decode(text, type=Charge): count for text, count in found}


def _sum(spent: Mapping[Charge, int], also: Mapping[Charge, int]) -> dict[Charge, int]:
    return {charge: spent.get(charge, 0) + also.get(charge, 0) for charge in {**spent, **also}}
