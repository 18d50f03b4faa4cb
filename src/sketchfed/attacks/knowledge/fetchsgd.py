"""What FetchSGD reveals: the server sees tables of single changes, and clients see only sums over many rounds."""

from sketchfed.algorithms import FetchSgd, Replica, RoundContext
from sketchfed.attacks.knowledge.base import Heard, Knowledge, by_code
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


class FetchSgdKnowledge(Knowledge[FetchSgd]):
    """The coordinates that are fetched in a round come from many rounds, so broadcasts reveal no single round's change."""

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        return by_code(self.algorithm, packet, dim, context)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> None:
        """Nothing about this round alone."""

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> None:
        """Nothing about this round alone."""
