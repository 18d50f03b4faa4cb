"""What a node of algorithm 'gossip_exact' learns: sums of the sketches of those below it, and the mean over all nodes."""

from collections.abc import Iterator

from torch import Tensor

from sketchfed.algorithms import Replica, cohort
from sketchfed.algorithms.gossip_exact import SUM, GossipExact
from sketchfed.attacks.knowledge.base import Heard
from sketchfed.attacks.neighbours.scene import NeighbourChange, Scene
from sketchfed.graphs import Tree
from sketchfed.rounds.peers.exact import tree_of
from sketchfed.wire import Packet, split, unpack


def told_in_sums(scene: Scene, algorithm: GossipExact) -> Iterator[NeighbourChange]:
    """Each child's sum is that of all nodes below it: of the child alone, if it is a leaf.

    The update that comes down is the mean over all. Less the sum that the node passed up, it is that of the others.
    """
    tree, replica = tree_of(scene.topology.at(0), scene.graph.centre), scene.start
    for index in scene.rounds:
        if replica.round != index:
            return
        taking_part = set(_cohort(scene, algorithm, index))
        for child in tree.children(scene.node):
            packet = _sum(scene, index, child, scene.node)
            if packet is None:
                continue  # nobody below it takes part
            below = tuple(sorted(_below(tree, child) & taking_part))
            yield _told(scene, algorithm, replica, below, _mean(scene, algorithm, packet))
        update = _update(scene, tree, index)
        if update is None:
            return
        own = None if scene.node == tree.root else _sum(scene, index, scene.node, tree.parent[scene.node])
        inside = _below(tree, scene.node) & taking_part
        others = tuple(sorted(taking_part - inside))
        if others and (own is not None or not inside):
            values = algorithm.mean_sketch(update, scene.context(index, 0).shared, scene.dim) * len(taking_part)
            if own is not None:
                values = values - _mean(scene, algorithm, own) * own.clients
            yield _told(scene, algorithm, replica, others, values / len(others))
        replica = algorithm.follow(replica, update, scene.seed)


def _told(scene: Scene, algorithm: GossipExact, replica: Replica, nodes: tuple[int, ...], values: Tensor) -> NeighbourChange:
    sketch = algorithm.sketch.codec(scene.dim).sketch(scene.context(replica.round, 0).shared)
    return NeighbourChange(round=replica.round, nodes=nodes, weights=replica.weights, heard=Heard(values.float(), sketch))


def _cohort(scene: Scene, algorithm: GossipExact, index: int) -> list[int]:
    population = scene.graph.nodes
    return cohort(scene.seed, index, population=population, count=algorithm.planned(population))


def _mean(scene: Scene, algorithm: GossipExact, packet: Packet) -> Tensor:
    return algorithm.total(packet, scene.dim).double() * 2.0**-algorithm.grid / packet.clients


def _parts(scene: Scene, index: int, sender: int, to: int) -> list[bytes]:
    return [bytes(part) for part in split(scene.message(index, sender, to), most=8)]


def _sum(scene: Scene, index: int, sender: int, to: int) -> Packet | None:
    """The sum that a node passed to its parent. None if nobody below it takes part."""
    found = (unpack(part) for part in _parts(scene, index, sender, to))
    return next((packet for packet in found if packet.kind == SUM), None)


def _update(scene: Scene, tree: Tree, index: int) -> Packet | None:
    """The update of a round, as it came down to the node, or as the root passed it down."""
    if scene.node == tree.root:
        sender, to = scene.node, next(iter(tree.children(scene.node)))
    else:
        sender, to = tree.parent[scene.node], scene.node
    found = (unpack(part) for part in _parts(scene, index, sender, to))
    return next((packet for packet in found if packet.kind not in (SUM, "begin", "behind")), None)


def _below(tree: Tree, node: int) -> set[int]:
    """A node and all nodes below it."""
    return {node}.union(*(_below(tree, child) for child in tree.children(node)))
