"""What the messages between neighbours reveal, by algorithm."""

from collections.abc import Sequence

from sketchfed.algorithms import Dbcl
from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.gossip_exact import GossipExact
from sketchfed.algorithms.gossip_models import GossipModels
from sketchfed.algorithms.gossip_tracking import GossipTracking
from sketchfed.attacks.neighbours.differences import GossipReplay, TrackingReplay
from sketchfed.attacks.neighbours.models import PairwiseReplay, SharedReplay
from sketchfed.attacks.neighbours.scene import NeighbourChange, Scene
from sketchfed.attacks.neighbours.sums import told_in_sums
from sketchfed.errors import InputError
from sketchfed.protection import SecureSums


def told_by_neighbours(scene: Scene) -> Sequence[NeighbourChange]:
    """What a node learns of others' changes, in the order of rounds. Raises `InputError` with the reason if that is unknown."""
    algorithm = scene.algorithm
    if not scene.rounds:
        return []
    _ = scene.graph  # refuses graphs that change
    if isinstance(scene.protection, SecureSums):
        raise InputError(
            "under [secure], a node learns only a weighted sum of its neighbours' sketches, and no attack on such sums is "
            "written yet. Audit the same run without [secure], to see what its neighbours' own messages would tell."
        )
    if isinstance(algorithm, GossipExact):
        return list(told_in_sums(scene, algorithm))
    if isinstance(algorithm, Gossip):
        replay = (TrackingReplay if isinstance(algorithm, GossipTracking) else GossipReplay)(scene, algorithm)
        return replay.told() if replay.linear else replay.single()
    if isinstance(algorithm, GossipModels):
        return SharedReplay(scene, algorithm).told()
    if isinstance(algorithm, Dbcl):
        return PairwiseReplay(scene, algorithm).told()
    raise InputError(
        f"nobody has said what algorithm '{algorithm.name}' tells a neighbour, so attacks on its updates do not apply. Audit "
        "'gossip', 'gossip_tracking', 'gossip_exact', 'gossip_models' or 'dbcl'."
    )
