"""What DOME reveals: the coordinates of single changes and of their mean, in a subspace that everybody can rebuild."""

from sketchfed.algorithms import Dome, Replica, RoundContext
from sketchfed.attacks.knowledge.base import Heard, Knowledge, by_code
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, expect_kind, tensor_named


class DomeKnowledge(Knowledge[Dome]):
    """The subspace of a round follows from the broadcasts before it. Adam's steps are no linear function of a change."""

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        return by_code(self.algorithm, packet, dim, context)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> Heard:
        context = RoundContext(round=replica.round, seed=seed, client=0, replica=replica)
        code = self.algorithm.code(len(replica.weights), context)
        values = tensor_named(expect_kind(update, "sensed"), "values", shape=code.shape)
        return Heard(values if code.offset is None else values + code.offset, code.map)

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> None:
        """Nothing that an attack through a linear map can use."""
