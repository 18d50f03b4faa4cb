"""What DBCL reveals: sketched changes to the server, and to clients the parameters that are not sketched."""

import torch

from sketchfed.algorithms import Dbcl, Replica, RoundContext
from sketchfed.attacks.knowledge.base import Coordinates, Heard, Knowledge, by_code
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet


class DbclKnowledge(Knowledge[Dbcl]):
    """Two broadcasts are compared in their plain parameters. What two sketched broadcasts reveal is for attacks to find out."""

    def heard(self, packet: Packet, dim: int, context: RoundContext) -> Heard:
        return by_code(self.algorithm, packet, dim, context)

    def told(self, update: Packet, replica: Replica, seed: PublicSeed) -> None:
        """DBCL broadcasts whole (sketched) models, no updates."""

    def between(self, before: Replica, after: Replica, seed: PublicSeed) -> Heard | None:
        if after.round != before.round + 1 or not self.algorithm.moves_by_mean:
            return None
        forms = [self.algorithm.given(seed, replica.round).sketch for replica in (before, after)]
        old, new = (form.seen.views(replica.weights) for form, replica in zip(forms, (before, after), strict=True))
        places = forms[0].seen.views(torch.arange(forms[0].size))
        plain = [name for name in old if name not in forms[0].sketches]
        if not plain:
            return None
        rate = self.algorithm.rate_at(before.round)
        changes = torch.cat([(new[name] - old[name]).reshape(-1) for name in plain]) / rate
        return Heard(changes, Coordinates(torch.cat([places[name].reshape(-1) for name in plain]), forms[0].size))
