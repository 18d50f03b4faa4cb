"""A recorded run, and the view of each role. The auditor also knows the truth, but views never contain it."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sketchfed import vectors
from sketchfed.algorithms import Replica, RoundContext
from sketchfed.algorithms.gossip_tracking import GossipTracking
from sketchfed.attacks.opened import Members, members_in
from sketchfed.attacks.public import Public
from sketchfed.attacks.view import View
from sketchfed.config import GIVEN, Config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.privacy.accounting import accounted
from sketchfed.protection import ClientWork, Protection, SecureSums
from sketchfed.rounds import Exchange
from sketchfed.rounds.network import receiver
from sketchfed.runs.checkpoint import Checkpoints
from sketchfed.runs.folder import METRICS, RunFolder
from sketchfed.runs.loop import Loop
from sketchfed.runs.result import Run
from sketchfed.runs.wire_file import WIRE, read_wire
from sketchfed.runs.workload import Workload, from_config
from sketchfed.training import Examples

NO_CLAIM = "nothing is claimed"
MOST_WEIGHTS = 2**26
"""The largest amount of numbers that is kept of the weights between rounds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What passed in a run, and what only its operator knows: the data, and the weights between rounds."""

    config: Config
    """The configuration with every default filled in."""
    workload: Workload
    exchanges: Sequence[Exchange]
    weights: Sequence[Tensor] = field(default=(), repr=False)
    """The server's weights before each round and after the last one. Empty if they would take too much memory.

    Without a server, they are the mean of the nodes' models.
    """
    nodes: Sequence[Tensor] = field(default=(), repr=False)
    """The models of all nodes of a graph before each round and after the last one, `(nodes, dim)`. Empty without a graph."""
    final: Tensor | None = None
    metrics: Sequence[dict[str, Any]] = ()

    @property
    def roles(self) -> list[str]:
        """The roles from which it can be seen."""
        if self.config.graph is not None:
            return ["neighbour"]
        secure = isinstance(self._protection, SecureSums)
        return ["secure server" if secure else "server", "network", "client", "colluders"]

    def view(self, role: str, node: int | None = None) -> View:
        """What a role knows of this run. `node` is the neighbour who looks; by default, one of those with the most links."""
        if role not in self.roles:
            raise UnknownNameError("role", role, self.roles)
        if node is not None and (role != "neighbour" or not 0 <= node < len(self.workload.parts)):
            raise InputError(
                f"no node {node} looks at this run as a {role}. Name a node of a graph, for role 'neighbour' only."
            )
        if role == "neighbour":
            return self._neighbour(self._seen_most[0][0] if node is None else node)
        count = {"client": 1, "colluders": 2}.get(role, 0)
        members = tuple(sorted(client for client, _ in self._seen_most[:count]))
        passed = [each for each in self.exchanges if not members or each.client in members]
        shown = self.config.algorithm.shows_weights or role.endswith("server")
        return View(
            role=role,
            public=self.public,
            exchanges=passed,
            members=members,
            own={client: self.workload.examples(client) for client in members},
            released=self.final if shown else None,
        )

    def _neighbour(self, node: int) -> View:
        passed = [each for each in self.exchanges if node in (each.client, receiver(each))]
        own = {node: self.workload.examples(node)}
        return View(role="neighbour", public=self.public, exchanges=passed, members=(node,), own=own)

    @cached_property
    def public(self) -> Public:
        """What everybody knows. Weights and noise seeds are taken out."""
        module = deepcopy(self.workload.module)
        algorithm = self._protection.algorithm
        graph, sizes = self.config.graph, tuple(len(part) for part in self.workload.parts)
        known = self.workload.shared_start or graph is not None  # nodes without a server begin with the same model
        start = algorithm.begin(vectors.flatten(module)).replica if known else None
        with torch.no_grad():
            for parameter in vectors.trainable(module).values():  # what is frozen is part of the model that everybody knows
                parameter.zero_()
        return Public(
            protection=self._protection.unseeded(),
            module=module,
            loss=self.workload.loss,
            seed=self.config.shared_seed,
            shape=self.workload.dataset.shape,
            sizes=sizes,
            start=start,
            topology=None if graph is None else graph.topology(len(sizes), self.config.shared_seed),
        )

    @property
    def claim(self) -> str:
        """What the run's ε refers to."""
        if self._protection.budget is None:
            return NO_CLAIM
        return accounted(self._protection.budget.claim, [self._protection.charge()]).text

    def behind(self, index: int, clients: Sequence[int]) -> Examples:
        """The truth: the distinct examples behind the replies of clients in a round, client by client."""
        if not clients:
            some = self.workload.examples(0)
            return Examples(some.x[:0], some.y[:0])
        parts = [self._used(index, client) for client in clients]
        return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))

    def change(self, index: int, node: int) -> Tensor:
        """The truth: the change that a node of a graph made in a round, without noise and before it mixed, `(dim,)`."""
        if not self.nodes:
            raise InputError(
                "the models of the nodes were not kept. Record a run with [graph], and a smaller model or fewer rounds."
            )
        if isinstance(self.config.algorithm, GossipTracking):
            raise InputError(
                "nodes of algorithm 'gossip_tracking' take a step before they train, and the models from which they trained "
                "were not kept. Look at another algorithm."
            )
        participant = self.public.participant
        context = RoundContext(round=index, seed=self.config.shared_seed, client=node, population=len(self.workload.parts))
        work = ClientWork(
            trainer=participant.trainer,
            replica=Replica(round=index, weights=self.nodes[index][node]),
            examples=self.workload.examples(node),
            memory=None,
            context=context,
        )
        return work.trained(participant.algorithm.work).values

    def replied(self, index: int) -> tuple[int, ...]:
        """The clients that took part in a round."""
        passed = [each for each in self.exchanges if each.round == index]
        if self.config.graph is not None:
            return tuple(sorted({each.client for each in passed}))
        replied = tuple(each.client for each in passed if each.stage == "train" and each.reply is not None)
        known = self._members.get(index)
        return replied or (() if known is None else tuple(sorted(known.survivors)))

    @cached_property
    def _members(self) -> dict[int, Members]:
        return members_in(self.exchanges)

    @cached_property
    def _protection(self) -> Protection:
        sizes = [len(part) for part in self.workload.parts]
        dim = vectors.Layout.of(self.workload.module).dim
        return self.config.protection(dim=dim, sizes=sizes, module=self.workload.module)

    @cached_property
    def _seen_most(self) -> list[tuple[int, int]]:
        """The clients, sorted by how often they were asked, the most frequent first. Ties go to the lower number."""
        asked = Counter(each.client for each in self.exchanges if self.config.graph or each.stage in ("train", "keys"))
        return sorted(asked.items(), key=lambda item: (-item[1], item[0]))

    def _used(self, index: int, client: int) -> Examples:
        examples, protection, work = self.workload.examples(client), self._protection, self.config.algorithm.work
        context = RoundContext(round=index, seed=self.config.shared_seed, client=client)
        if protection.batches is None:
            order, slices = work.order(len(examples.x), context.own)
            used = order[: slices[-1][1]]
        elif protection.batches.drawn_in_secret and protection.budget is not None and not protection.budget.claim.insecure:
            raise InputError(
                "which examples were in a batch is this run's secret, so nothing that an attack finds can be compared with "
                "it. Audit the configuration instead of the run: it is run again with a known seed for noise."
            )
        else:
            numbers, secret = torch.arange(len(examples.x)), protection.secret(index, "client", client)
            batches = protection.batches.draw(Examples(numbers, numbers), context, secret)
            used = torch.cat([batch.x for batch, _ in batches])
        different = torch.unique(used)
        return Examples(examples.x[different], examples.y[different])


def repeatable(config: Config) -> Config:
    """The same configuration with a known noise seed, because equal seeds must give equal audits.

    The noise is as strong as before. Anyone who knows the seed could remove it, but views do not contain it. Secret first
    weights are drawn from the public seed instead, and views do not get them.
    """
    if config.privacy is not None and config.privacy.insecure_noise_seed is None:
        config = replace(config, privacy=replace(config.privacy, insecure_noise_seed=config.seed))
    return replace(config, algorithm=replace(config.algorithm, public_start=True))


def record(
    config: Config, workload: Workload, *, on_round: Callable[[dict[str, Any]], None] | None = None
) -> tuple[Evidence, Run]:
    """Train, and record all messages in memory."""
    exchanges: list[Exchange] = []
    loop = Loop(config, workload, exchanges.extend)
    weights = [loop.weights.clone()] if loop.rounds * len(loop.weights) <= MOST_WEIGHTS else []
    clients = len(workload.parts)
    nodes = (
        [loop.models]
        if config.graph and config.engine.name == "local" and loop.rounds * clients * len(loop.weights) <= MOST_WEIGHTS
        else []
    )

    def watch(line: dict[str, Any]) -> None:
        if weights:
            weights.append(loop.weights.clone())
        if nodes:
            nodes.append(loop.models)
        if on_round is not None:
            on_round(line)

    run = loop.finish(watch)
    recorded = Evidence(
        config=run.config,
        workload=workload,
        exchanges=exchanges,
        weights=weights,
        nodes=nodes,
        final=run.weights,
        metrics=run.metrics,
    )
    return recorded, run


def recorded_run(path: Path, workload: Workload | None = None) -> Evidence | None:
    """Load what a run left in its folder. None if its messages were not recorded. The weights between rounds are not there.

    `workload` is what the run was given as objects. None if its configuration names the model and the data.
    """
    config = RunFolder.config(path)
    if not (path / WIRE).is_file():
        return None
    if workload is None and GIVEN in (config.model.name, config.data.name):
        raise InputError(
            f"the run in {path} was given its model and data as objects, which the folder does not hold. Audit it from Python "
            f"with the same objects: sketchfed.audit(model, loss, clients, test=test, recorded='{path}')."
        )
    workload = workload or from_config(config)
    weights = vectors.flatten(workload.module)
    algorithm = config.algorithm.resolved(len(weights), len(workload.parts), workload.module)
    saved = Checkpoints(path).load(algorithm.begin(weights))
    lines = (path / METRICS).read_text().splitlines() if (path / METRICS).exists() else []
    return Evidence(
        config=config,
        workload=workload,
        exchanges=read_wire(path / WIRE),
        final=None if saved is None else saved.state.replica.weights,
        metrics=[json.loads(line) for line in lines],
    )
