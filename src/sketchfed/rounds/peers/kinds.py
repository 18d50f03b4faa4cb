"""Which algorithms run on graphs, and with which protections."""

from sketchfed.algorithms import Algorithm, Dbcl
from sketchfed.algorithms.gossip import Gossip
from sketchfed.algorithms.gossip_exact import GossipExact
from sketchfed.algorithms.gossip_models import GossipModels
from sketchfed.algorithms.gossip_tracking import GossipTracking
from sketchfed.errors import InputError
from sketchfed.graphs import Topology
from sketchfed.protection import NoisySent, Protection, SecureNoise, SecureSums
from sketchfed.rounds.peers.base import GraphPeer
from sketchfed.rounds.peers.exact import ExactPeer
from sketchfed.rounds.peers.gossip import GossipPeer
from sketchfed.rounds.peers.models import ModelsPeer, PairwisePeer, SharedPeer
from sketchfed.rounds.peers.secure import FEWEST, SecurePeer, hiding
from sketchfed.rounds.peers.tracking import TrackingPeer

_KINDS: dict[type[Algorithm], type[GraphPeer]] = {
    GossipTracking: TrackingPeer,
    Gossip: GossipPeer,
    GossipExact: ExactPeer,
    GossipModels: SharedPeer,
    Dbcl: PairwisePeer,
}
_NAMES = "'gossip', 'gossip_models', 'gossip_tracking', 'gossip_exact' or 'dbcl'"


def peer_of(protection: Protection) -> type[GraphPeer]:
    """The kind of node that an algorithm runs on, with its protection. Refused if it needs a server."""
    algorithm = protection.algorithm
    for kind, peer in _KINDS.items():
        if isinstance(algorithm, kind):
            return SecurePeer if peer is SharedPeer and isinstance(protection, SecureSums) else peer
    raise InputError(
        f"[graph] has no server, and algorithm '{algorithm.name}' needs one. Use algorithm {_NAMES}, or remove [graph]."
    )


def check_served(algorithm: Algorithm) -> None:
    """Refuse, without [graph], algorithms that need one."""
    if not algorithm.served:
        raise InputError(
            f"algorithm '{algorithm.name}' runs between neighbours. Add [graph], such as [graph] with name = \"ring\", or use "
            "algorithm 'fedavg', which has a server."
        )


def check_sums(algorithm: Algorithm) -> None:
    """Refuse secure sums where a neighbour must read each message by itself."""
    if not isinstance(algorithm, GossipModels):
        raise InputError(
            f"[secure] does not go with algorithm '{algorithm.name}' on a graph: a neighbour must read each message by itself. "
            "Use algorithm 'gossip_models', in which a node needs only a sum of what its neighbours say, or use a server."
        )


def check_graph(protection: Protection) -> None:
    """Refuse algorithms and protections that do not work between neighbours."""
    algorithm, steps = (
        protection.algorithm,
        "Use privacy.unit = 'example' with privacy.placement = 'steps', or remove [privacy].",
    )
    kind = peer_of(protection)
    if algorithm.correction:
        raise InputError(
            f"{algorithm.correction} does not go with [graph]: what a node keeps for it may change only if its update counts, "
            "and nobody tells a node whether its sum arrived. Remove it, or use a server."
        )
    if kind is ExactPeer and algorithm.participation != 1 and protection.budget is not None:
        raise InputError(
            f"algorithm.participation = {algorithm.participation:g} does not go with [privacy] on a graph: nodes that missed "
            "updates may be in another round, so a node may take part more often than planned. Remove participation."
        )
    if kind is ExactPeer and protection.budget is not None and protection.budget.passes is not None:
        raise InputError(
            "privacy.batches = 'passes' does not go with algorithm 'gossip_exact' on a graph: if an update is lost, nodes take "
            "the same batch again, and a pass pays for each example once. Use batches = 'poisson'."
        )
    if isinstance(protection, SecureNoise):
        raise InputError(
            "privacy.name = 'discrete_gaussian' hides changes, and nodes of algorithm 'gossip_models' send sketches of their "
            f"whole model. {steps}"
        )
    if protection.central:
        raise InputError(
            "privacy.observer = 'public' trusts a server with the noise, and [graph] has none. Remove observer: nodes add the "
            "noise themselves, against their neighbours."
        )
    if not isinstance(protection, NoisySent):
        return
    if issubclass(kind, ModelsPeer):
        raise InputError(
            f"privacy.placement = 'sent' bounds and hides changes, and nodes of algorithm '{algorithm.name}' send sketches of "
            f"their whole model. {steps}"
        )
    if kind is TrackingPeer:
        raise InputError(
            "privacy.placement = 'sent' hides one change a round, and algorithm 'gossip_tracking' also says where the model "
            f"is. {steps} Algorithm 'gossip' takes it."
        )
    if kind is GossipPeer and protection.batches is not None:
        raise InputError(
            "privacy.unit = 'example' with placement = 'sent' bounds the change that one example makes in one round, and a "
            f"message of algorithm 'gossip' also holds what was left of earlier rounds. {steps}"
        )


def check_neighbourhoods(protection: Protection, topology: Topology) -> None:
    """Refuse secure sums over so few neighbours that they hide nothing, or in which one has nearly all the weight."""
    if not isinstance(protection, SecureSums):
        return
    graph, weights = topology.graph(0), topology.weights(0)
    node = min(range(graph.nodes), key=graph.degree)
    if graph.degree(node) < FEWEST:
        raise InputError(
            f"[secure] sums what a node's neighbours say, and node {node} has {graph.degree(node)} of them. A sum over fewer "
            f"than {FEWEST} hides nothing. Use a graph with more links, such as 'random_regular', or remove [secure]."
        )
    for node in range(graph.nodes):
        count = hiding(float(weights[node, each]) for each in graph.neighbours(node))
        if count < FEWEST:
            raise InputError(
                f"[secure] sums what a node's neighbours say, and in the sum of node {node}, only {count} have a weight of at "
                f"least a tenth of the largest one. {FEWEST} must, or the sum shows what a single neighbour says. Use a "
                "graph whose nodes have similar numbers of neighbours, such as 'random_regular', or other graph.weights."
            )
