"""The clients of a round, and the randomness that all parties share. Everyone can compute both from the public seed."""

from collections import Counter

from sketchfed.kernels.draws import subset
from sketchfed.seeds import PublicSeed


def round_seed(seed: PublicSeed, index: int) -> PublicSeed:
    """The shared seed of a round. Sketches of different rounds are independent (Song et al. 2023, Thm 4.2, property 1)."""
    return seed.child("round", index)


def cohort(seed: PublicSeed, index: int, *, population: int, count: int) -> list[int]:
    """The clients of a round: `count` clients, drawn uniformly without replacement, in ascending order."""
    return [int(client) for client in subset(round_seed(seed, index).child("cohort").stream, dim=population, size=count)]


def most_participations(seed: PublicSeed, *, rounds: int, population: int, count: int) -> int:
    """The largest number of rounds, among the first `rounds`, in which any one client takes part."""
    counts: Counter[int] = Counter()
    for index in range(rounds):
        counts.update(cohort(seed, index, population=population, count=count))
    return max(counts.values())
