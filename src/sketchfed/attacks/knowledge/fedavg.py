"""What FedAvg reveals: each reply as its codec decodes it, and the models before and after a round."""

import torch

from sketchfed.algorithms import FedAvg, Replica, RoundContext, round_seed
from sketchfed.attacks.knowledge.base import Heard, Knowledge, mean_change
from sketchfed.codecs import Codec
from sketchfed.codecs.linear import RoundTrip
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


class FedAvgKnowledge(Knowledge[FedAvg]):
    """Replies are read through the codec's linear map, if it declares one, or else as what it decodes from one packet.

    A codec that sends the largest coordinates also reveals that the others are small, so what it decodes is used unchanged.
    With error feedback, a reply contains errors of earlier rounds, and so does what is heard.
    """

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        codec = self._codec(dim)
        code = codec.linear(context.shared, context.client)
        if code is None:
            values, known = codec.decode([packet], context.shared), None
        else:
            values, known = code.decoded(packet), code.map
        expected = None if context.replica is None else context.replica.prediction
        if expected is not None:
            values = values + (expected if known is None else known.apply(expected))
        return Heard(values, known)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> None:
        """FedAvg broadcasts whole models, no updates."""

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        found, codec = mean_change(self.algorithm, before, after), self._codec(len(before.weights))
        if found is None:
            return None
        code = codec.linear(round_seed(seed, before.round))
        known = RoundTrip.of(code.map) if code is not None and code.shared and code.map is not None else None
        expected = torch.zeros_like(found) if before.prediction is None else before.prediction
        decoded = (found - expected) / (codec.shrinkages if self.algorithm.error_feedback else 1.0)
        return Heard(decoded + (expected if known is None else known.apply(expected)), known)

    def _codec(self, dim: int) -> Codec:
        return self.algorithm.codec.codec(dim, self.algorithm.sketch)
