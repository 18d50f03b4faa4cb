"""Plans the number of neighbours and the threshold of a secure sum from the assumed shares of colluders and dropouts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sketchfed.caches import cached
from sketchfed.errors import InputError
from sketchfed.secure.graph import check_degree
from sketchfed.secure.terms import Terms

_COMPLETE = 32
"""Up to this many clients the graph is complete. It costs little, and leaves nothing to chance."""


class Neighbourhood(NamedTuple):
    """The numbers on which the security of a secure sum rests."""

    neighbours: int
    """The number k of neighbours of each client."""
    threshold: int
    """How many of a client and its neighbours, k + 1 together, must reveal shares to open a secret."""
    spread: int
    """The fewest of any k/2 clients in a row on the ring that must stay."""


def planned_terms(
    *,
    session: bytes,
    round: int,
    clients: Sequence[int],
    size: int,
    bits: int,
    colluders: float = 0.1,
    dropouts: float = 0.1,
    neighbours: int | None = None,
    threshold: int | None = None,
    least: int | None = None,
    insecure: float = 2**-40,
    incorrect: float = 2**-30,
) -> Terms:
    """Terms that hold against a share of `colluders` in league with the server, and finish despite a share of `dropouts`.

    Numbers that are given are kept, or refused if they do not hold. `planned_neighbourhood` plans the others. `least` is the
    fewest clients in an opened sum: by default those that remain after the assumed dropouts. If the threshold allows it, at
    least one client may drop out.
    """
    named = tuple(sorted(clients))
    count = len(named)
    neighbours, threshold, spread = planned_neighbourhood(
        count,
        colluders=colluders,
        dropouts=dropouts,
        neighbours=neighbours,
        threshold=threshold,
        insecure=insecure,
        incorrect=incorrect,
    )
    if least is None:
        least = max(threshold, count - max(math.floor(dropouts * count), 1))
    return Terms(
        session=session,
        round=round,
        clients=named,
        size=size,
        bits=bits,
        neighbours=neighbours,
        threshold=threshold,
        least=least,
        spread=spread,
    )


@cached(maxsize=256)
def planned_neighbourhood(
    count: int,
    *,
    colluders: float = 0.1,
    dropouts: float = 0.1,
    neighbours: int | None = None,
    threshold: int | None = None,
    insecure: float = 2**-40,
    incorrect: float = 2**-30,
) -> Neighbourhood:
    """Return the smallest number k of neighbours for which a threshold exists, and the middle one of its thresholds.

    Of n clients, γn collude and δn drop out, at places that do not depend on the random graph. A threshold t must satisfy four
    conditions for every client, with c colluders and d dropouts among its k neighbours:

    - 2t > k + 1 + c, and the same with the c colluders of the committee. Otherwise a lying server gets two lists of survivors
      signed (`Terms`). Each fails with probability `insecure` at most.
    - k − d ≥ t, or the secret of the client cannot be opened if it drops out, and k + 1 − d ≥ t with the d dropouts of the
      committee. Each fails with probability `incorrect` at most.
    - Of any k/2 clients in a row, more must stay than collude. Otherwise the ring falls apart, and the server gets sums of its
      parts. `spread` is one more than the number that colludes there, except with probability `insecure`. That many stay,
      except with probability `incorrect`.
    - t > k/2 + 1 + c, where c is the smaller number of colluders in two stretches of k/2 clients in a row. Otherwise a server
      that withholds shares at two cuts splits the ring. It fails with probability `insecure` at most for any two stretches.

    All counts are hypergeometric, and a union bound goes over clients. If the ring would need all other clients as neighbours,
    the graph is complete. Then γn and δn themselves are the worst case, and nothing is left to chance.

    Departs from Bell et al. 2020, Sec. 3. The first condition is the one against a lying server, so thresholds are higher than
    against an honest but curious one, which needs t > c only. The third holds against a lying server too: places on the ring
    are random, but the server chooses which clients it declares gone, so clients count them (`Terms.gap`). The fourth is not in
    that paper. At a cut, a client is not given the shares of clients beyond the cut, so it adds no masks with them. It refuses
    the list of survivors, but the server learns its seed all the same if t others reveal their shares of it. Those of its k
    neighbours that are declared gone do not reveal them, nor do those that refuse as well. At either end of an arc of clients
    that are cut off, these are all honest clients among k/2 − 1. That leaves k/2 + 1 others and the colluders among those
    k/2 − 1. docs/secure.md has the proof.
    """
    for name, share in {"colluders": colluders, "dropouts": dropouts}.items():
        if not 0 <= share < 1:
            raise InputError(f"the assumed share of {name} is a number from 0 to below 1, got {share!r}.")
    if type(count) is not int or count < 2:
        raise InputError(f"a secure sum is over at least two clients, got {count!r}. A sum of one hides nothing.")
    assumed = _Assumed(count, colluders, dropouts, insecure, incorrect)
    if neighbours is None:
        neighbours = _fewest(assumed)
    check_degree(neighbours, count)
    fitting = assumed.thresholds(neighbours)
    if not fitting:
        raise InputError(
            f"no threshold of {neighbours + 1} clients holds against a share of {colluders:g} colluders and finishes despite "
            f"{dropouts:g} dropouts: colluders and twice the dropouts must stay below the neighbourhood. "
            "Assume fewer of both, or take more neighbours."
        )
    if threshold is None:
        threshold = fitting[(len(fitting) - 1) // 2]
    if threshold not in fitting:
        raise InputError(
            f"threshold={threshold!r} of {neighbours + 1} clients does not hold against a share of {colluders:g} colluders, or "
            f"does not finish despite {dropouts:g} dropouts. Use {fitting[0]} to {fitting[-1]}, or change what is assumed."
        )
    return Neighbourhood(neighbours, threshold, assumed.spread(neighbours))


class _Assumed(NamedTuple):
    clients: int
    colluders: float
    dropouts: float
    insecure: float
    incorrect: float

    def thresholds(self, k: int) -> range:
        """The thresholds that are possible with k neighbours."""
        if k == self.clients - 1:
            bad, gone = (math.floor(share * self.clients) for share in (self.colluders, self.dropouts))
            return range((self.clients + bad) // 2 + 1, self.clients - gone + 1)
        most_gone = most_met(self.clients, self.dropouts, k // 2, self.incorrect / self.clients, others=self.clients)
        if self.spread(k) + most_gone > k // 2:
            return range(0)
        bad = max(
            most_met(self.clients, self.colluders, k, self.insecure / self.clients),
            most_met(self.clients, self.colluders, k + 1, self.insecure, others=self.clients),
        )
        gone = max(
            most_met(self.clients, self.dropouts, k, self.incorrect / self.clients),
            most_met(self.clients, self.dropouts, k + 1, self.incorrect, others=self.clients) - 1,
        )
        cut = most_met_twice(self.clients, self.colluders, k // 2, 2 * self.insecure / self.clients**2)
        return range(max((k + 1 + bad) // 2 + 1, k // 2 + 2 + cut), k - gone + 1)

    def spread(self, k: int) -> int:
        """One more than the colluders among k/2 clients in a row. 1 in a complete graph, where it has no meaning."""
        if k == self.clients - 1:
            return 1
        return 1 + most_met(self.clients, self.colluders, k // 2, self.insecure / self.clients, others=self.clients)


def _fewest(assumed: _Assumed) -> int:
    """The fewest neighbours on a ring for which there is a threshold, or all other clients if there is none.

    It is found by doubling, then bisection.
    """
    if assumed.clients <= _COMPLETE:
        return assumed.clients - 1
    least, most = 2, 2
    while most < assumed.clients - 1 and not assumed.thresholds(most):
        least, most = most + 2, 2 * most
    most = min(most, (assumed.clients - 1) // 2 * 2)
    while least < most:
        middle = (least + most) // 4 * 2
        least, most = (least, middle) if assumed.thresholds(middle) else (middle + 2, most)
    return least if least < assumed.clients - 1 and assumed.thresholds(least) else assumed.clients - 1


def most_met(count: int, share: float, k: int, odds: float, others: int | None = None) -> int:
    """The least m such that k random others include more than m of ⌊share·count⌋ marked clients with at most these odds."""
    others, marked = others or count - 1, math.floor(share * count)
    tail = 0.0
    for met in range(min(marked, k), max(0, k - (others - marked)), -1):
        tail += _odds(others, marked, k, met)
        if tail > odds:
            return met
    return max(0, k - (others - marked))


def most_met_twice(count: int, share: float, k: int, odds: float) -> int:
    """The least m such that both of two disjoint random sets of k clients include more than m marked ones with these odds."""
    marked = math.floor(share * count)
    least, most = 0, min(marked // 2, k)
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if _odds_of_both(count, marked, k, middle + 1) <= odds else (middle + 1, most)
    return least


def _odds_of_both(count: int, marked: int, k: int, least: int) -> float:
    """The probability that each of two disjoint random sets of k clients includes at least this many marked ones."""
    total = 0.0
    for first in range(least, min(marked, k) + 1):
        term = _odds(count, marked, k, first) * _odds_of_at_least(count - k, marked - first, k, least)
        total += term
        if term < 1e-9 * total:  # the rest is less than that again: far in the tail, terms fall faster than geometrically
            break
    return total


def _odds_of_at_least(count: int, marked: int, k: int, least: int) -> float:
    """The hypergeometric probability that k of `count` clients include at least this many of the marked ones."""
    term = total = _odds(count, marked, k, least) if least <= min(marked, k) else 0.0
    for met in range(least + 1, min(marked, k) + 1):
        if term:  # each term follows from the one before
            term *= (marked - met + 1) * (k - met + 1) / (met * (count - marked - k + met))
        else:  # the one before was too small for a float
            term = _odds(count, marked, k, met)
        total += term
        if term < 1e-12 * total:  # terms rise to one largest and fall from there on, so the rest is smaller still
            break
    return total


def _odds(count: int, marked: int, k: int, met: int) -> float:
    """The hypergeometric probability that k of `count` clients include exactly `met` of the marked ones."""
    if k - met > count - marked:
        return 0.0
    return math.exp(_log_ways(marked, met) + _log_ways(count - marked, k - met) - _log_ways(count, k))


def _log_ways(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)
