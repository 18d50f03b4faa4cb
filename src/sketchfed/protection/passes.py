"""Passes over the data in place of hidden batches: whose turn it is to use which examples, and who pays for it when.

In its i-th participation, counted from 0, a client with m batches uses batch i mod m of pass ⌊i/m⌋, whether or not those before
got through. So an example is in one sum a pass, and pays for one a pass (Nicolas et al. 2025, Sec. 3.4): sums in which it is
not depend on it only through what was released before.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sketchfed.algorithms.base import cohort
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.seeds import PublicSeed
from sketchfed.training.private import passed_batches

Counts = npt.NDArray[np.int64]


class Passes:
    """The turns of all clients, from what everybody knows: the public seed, and how many examples each of them has.

    Rounds are asked for in order, or nearly: going on from the round before costs one cohort, going back begins at round 0.
    """

    def __init__(self, sizes: Sequence[int], *, batch: int, cohort: int) -> None:
        """`sizes` are the clients' examples, `batch` how many of them are used at a time, `cohort` the clients of a round."""
        self._batches = np.array([passed_batches(size, batch) for size in sizes], dtype=np.int64)
        self._cohort, self._everybody = cohort, cohort == len(sizes)
        self._kept: tuple[PublicSeed, int, Counts, Counts] | None = None

    def turn(self, seed: PublicSeed, index: int, client: int) -> int:
        """How often a client was chosen before round `index`."""
        if self._everybody:
            return index
        return int(self._before(seed, index)[0][client])

    def most(self, seed: PublicSeed, rounds: int) -> int:
        """How many passes the client begins in so many rounds that begins the most."""
        return int((-(-self._before(seed, rounds)[0] // self._batches)).max())

    def owing(self, ledger: PrivacyLedger, seed: PublicSeed, index: int, clients: Sequence[int]) -> tuple[list[int], list[int]]:
        """Of clients of a round, those who have to pay for one more draw of noise, and those who have paid for it already.

        A client has paid for a draw if its present pass was charged more often than this round's batch was released. So in a
        pass it is charged as often as that one of its batches was released that was released most often: once, or once more
        after a secure sum that was opened in vain, and once more for all rounds together that are run again after a crash.
        Charges of later rounds, which a crash took back, are not counted: some of them may be of the next pass.
        """
        turns, begun = self._before(seed, index)
        released = Counter(client for entry in ledger.of_round(index) for client in (*(entry.clients or ()), *entry.covered))
        owing: list[int] = []
        paid: list[int] = []
        for client in clients:
            since = index if turns[client] % self._batches[client] == 0 else int(begun[client])
            charged = ledger.charged(client, since=since, until=index)
            (paid if charged > released[client] else owing).append(client)
        return owing, paid

    def _before(self, seed: PublicSeed, index: int) -> tuple[Counts, Counts]:
        """Before a round: how often each client was chosen, and in which round it last began a pass (−1: it never did)."""
        if self._everybody:
            return np.full_like(self._batches, index), (index - 1) // self._batches * self._batches if index else self._never()
        kept = self._kept  # threads may ask at the same time: what they read is never changed
        if kept is None or kept[0] != seed or kept[1] > index:
            kept = seed, 0, np.zeros_like(self._batches), self._never()
        if kept[1] < index:
            turns, begun = kept[2].copy(), kept[3].copy()
            for past in range(kept[1], index):
                chosen = np.array(cohort(seed, past, population=len(turns), count=self._cohort))
                begun[chosen[turns[chosen] % self._batches[chosen] == 0]] = past
                turns[chosen] += 1
            kept = seed, index, turns, begun
        self._kept = kept
        return kept[2], kept[3]

    def _never(self) -> Counts:
        return np.full_like(self._batches, -1)
