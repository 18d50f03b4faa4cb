"""Passes over the data instead of hidden batches: which examples a client uses in each round, and when they are charged.

In its i-th participation, counted from 0, a client with m batches uses batch i mod m of pass ⌊i/m⌋, whether or not its earlier
replies arrived. So each example is in one sum per pass, and is charged once per pass (Nicolas et al. 2025, Sec. 3.4). All other
sums depend on the example only through what was released before.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sketchfed.algorithms import cohort
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.seeds import PublicSeed

Counts = npt.NDArray[np.int64]


def passed_batches(examples: int, batch: int) -> int:
    """The number of batches in a pass over this many examples. The last batch may be smaller."""
    return max(1, -(-examples // batch))


class Passes:
    """The turns of all clients, computed from public knowledge: the public seed and the number of examples of each client.

    Ask for rounds in order if possible. Moving to the next round draws one cohort, but going back starts again at round 0.
    """

    def __init__(self, sizes: Sequence[int], *, batch: int, cohort: int) -> None:
        """`sizes` are the clients' numbers of examples, `batch` the size of a batch, `cohort` the number of clients a round."""
        self._batches = np.array([passed_batches(size, batch) for size in sizes], dtype=np.int64)
        self._cohort, self._everybody = cohort, cohort == len(sizes)
        self._kept: tuple[PublicSeed, int, Counts, Counts] | None = None

    def turn(self, seed: PublicSeed, index: int, client: int) -> int:
        """The number of times that a client was chosen before round `index`."""
        if self._everybody:
            return index
        return int(self._before(seed, index)[0][client])

    def most(self, seed: PublicSeed, rounds: int) -> int:
        """The largest number of passes that any one client begins in the first `rounds` rounds."""
        return int((-(-self._before(seed, rounds)[0] // self._batches)).max())

    def owing(self, ledger: PrivacyLedger, seed: PublicSeed, index: int, clients: Sequence[int]) -> tuple[list[int], list[int]]:
        """Split the clients of a round into those that must pay for one more draw of noise and those that have already paid.

        A client has paid for a draw if its current pass was charged more often than this round's batch was released. So within
        a pass, a client is charged as often as its most frequently released batch. That is once, plus once if a secure sum was
        opened without success, plus once in total for all rounds that run again after a crash. Charges of later rounds that a
        crash undid are not counted, because some of them may belong to the next pass.
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
        """How often each client was chosen before a round, and the round in which it last began a pass (−1 if never)."""
        if self._everybody:
            return np.full_like(self._batches, index), (index - 1) // self._batches * self._batches if index else self._never()
        kept = self._kept  # threads may call this at the same time, so the kept arrays are never modified
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
