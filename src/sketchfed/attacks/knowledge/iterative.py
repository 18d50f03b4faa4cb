"""What iterative sketching reveals: sketches of single changes to the server, the mean sketch to everybody."""

from sketchfed.algorithms import Iterative, Replica, RoundContext, round_seed
from sketchfed.attacks.knowledge.base import Heard, Knowledge, mean_change
from sketchfed.codecs.linear import RoundTrip
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


class IterativeKnowledge(Knowledge[Iterative]):
    """The sketch of a round follows from the public seed, so everybody knows the map behind the numbers."""

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        code = self.algorithm.sketch.codec(dim).linear(context.shared, context.client)
        return Heard(code.decoded(packet), code.map)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> Heard:
        dim, shared = len(replica.weights), round_seed(seed, replica.round)
        return Heard(self.algorithm.mean_sketch(update, shared, dim), self.algorithm.sketch.codec(dim).sketch(shared))

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        found = mean_change(self.algorithm, before, after)
        if found is None:
            return None
        codec = self.algorithm.sketch.codec(len(before.weights))
        moved = found if self.algorithm.form == "unbiased" else found / codec.shares
        return Heard(moved, RoundTrip.of(codec.sketch(round_seed(seed, before.round))))
