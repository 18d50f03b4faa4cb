"""What every rank of a run without a server makes of its nodes, and what a rank does that outlives rank 0."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch

from sketchfed.algorithms import Replica
from sketchfed.config import Config
from sketchfed.rounds import Participant
from sketchfed.rounds.peers import PeerGroup, peer_of
from sketchfed.rounds.rank_control import Control, Homes, LinkTransport
from sketchfed.rounds.rank_group import NodeRank, RankGroup
from sketchfed.rounds.rank_hub import Hub
from sketchfed.rounds.rank_links import RankLinks
from sketchfed.rounds.rank_sockets import Tls
from sketchfed.rounds.ranks import OnCall, shared_out
from sketchfed.runs.problem import FederatedProblem
from sketchfed.storage import replace_file

log = logging.getLogger("sketchfed")


def layout_of(sizes: Sequence[int], ranks: int) -> Homes:
    """The rank of each node, by the number of its examples.

    >>> layout_of([10, 10, 30, 10], ranks=2).homes
    (1, 1, 0, 1)
    """
    places = shared_out(range(len(sizes)), sizes, ranks, fixed={})
    return Homes(homes=tuple(places[node] for node in range(len(sizes))), ranks=ranks)


def _control(config: Config, problem: FederatedProblem, hub: Hub, run: int) -> Control:
    layout = layout_of(problem.sizes, hub.size)
    engine, store = config.engine, hub.store(run)
    links = RankLinks(
        hub.launch,
        layout.places,
        deadline=engine.deadline,
        wait=engine.wait,
        store=store,
        listen=engine.listen,
        routes={int(rank): address for rank, address in engine.routes.items()},
        tls=_tls(config),
    )
    control = Control(links, layout, hub.is_alive)
    links.connect(control.others if hub.launch.leads else {0, *_neighbours(config, problem, layout, links.rank)} - {links.rank})
    return control


def _tls(config: Config) -> Tls | None:
    """How this rank proves who it is. None if it does not."""
    engine = config.engine
    if not engine.certificate:
        return None
    return Tls(certificate=Path(engine.certificate), key=Path(engine.key), authority=Path(engine.authority))


def _neighbours(config: Config, problem: FederatedProblem, layout: Homes, rank: int) -> set[int]:
    """The ranks on which neighbours of this rank's nodes live in round 1."""
    if config.graph is None:
        return set()
    graph = config.graph.topology(len(problem.sizes), config.shared_seed).graph(0)
    return {layout.homes[other] for node in layout.nodes(rank) for other in graph.neighbours(node)}


def _group(config: Config, participant: Participant, problem: FederatedProblem, start: Replica) -> dict[str, Any]:
    """What a group of nodes is made of, wherever they are."""
    return {
        "kind": peer_of(participant.protection),
        "participant": participant,
        "start": start,
        "topology": config.graph.topology(len(problem.sizes), participant.seed) if config.graph is not None else None,
        "examples": problem.examples,
        "judged": problem.judged,
        "workers": config.engine.threads,
    }


def leading(
    config: Config, participant: Participant, problem: FederatedProblem, start: Replica, hub: Hub, on_traffic: OnCall
) -> RankGroup:
    """The nodes of the run, seen from rank 0. The other ranks call `following` at the same time."""
    control = _control(config, problem, hub, hub.runs)
    return RankGroup(control=control, on_traffic=on_traffic, **_group(config, participant, problem, start))


def take_rounds(
    config: Config, participant: Participant, problem: FederatedProblem, start: Replica, hub: Hub, run: int
) -> PeerGroup | None:
    """Run all rounds of this rank's nodes. Return them if rank 0 is gone; otherwise it has what the run came to."""
    control = _control(config, problem, hub, run)
    nodes, transport = control.layout.nodes(control.rank), LinkTransport(control.links)
    group = PeerGroup(**_group(config, participant, problem, start), nodes=nodes, transport=transport)
    try:
        rank = NodeRank(group, control, rounds=config.algorithm.rounds, guarded=participant.protection.budget is not None)
        return None if rank.run() else group
    finally:
        group.close()
        control.links.close()


def keep_models(group: PeerGroup, rank: int, folder: Path) -> None:
    """Write the models of this rank's nodes to a folder, because rank 0 is no longer there to ask for them."""
    path = folder / f"models-of-rank-{rank}.safetensors"
    models = {f"node.{node}": group.weights(node).contiguous() for node in group.peers}
    replace_file(path, safetensors.torch.save(models))
    log.warning(
        "rank 0 is gone. Rank %d finished all rounds by itself and wrote the models of its nodes to %s", rank, path.name
    )
