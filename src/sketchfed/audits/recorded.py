"""A recorded run, and the views that it gives to each role. Who audits also knows the truth; views never hold it."""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sketchfed import vectors
from sketchfed.algorithms import RoundContext
from sketchfed.algorithms.dbcl import Dbcl
from sketchfed.attacks.view import Public, View
from sketchfed.config import Config
from sketchfed.engines import Exchange
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.protection import Protection
from sketchfed.protection.client import batches_of
from sketchfed.runs.loop import Loop, Run
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples
from sketchfed.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """What passed in a run, and what only its operator knows: the data, and the weights between rounds."""

    config: Config
    """With every default filled in."""
    workload: Workload
    exchanges: Sequence[Exchange]
    weights: Sequence[Tensor] = field(default=(), repr=False)
    """The server's before each round and after the last, where clients are not shown them."""
    final: Tensor | None = None
    metrics: Sequence[dict[str, Any]] = ()

    @property
    def roles(self) -> list[str]:
        """From which it can be looked at."""
        return ["server" if self._protection is None or self._protection.secure is None else "secure server"] + [
            "network",
            "client",
            "colluders",
        ]

    def view(self, role: str) -> View:
        """What a role knows of this run."""
        if role not in self.roles:
            raise UnknownNameError("role", role, self.roles)
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

    @cached_property
    def public(self) -> Public:
        """What everybody knows. Weights and noise seeds are taken out."""
        module = deepcopy(self.workload.module)
        algorithm = self.config.algorithm.fitted(module)
        start = algorithm.begin(vectors.flatten(module)).replica if self.workload.shared_start else None
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        protection = self._protection
        if protection is not None and protection.privacy is not None:
            protection = replace(protection, privacy=replace(protection.privacy, insecure_noise_seed=None))
        return Public(
            algorithm=algorithm,
            module=module,
            loss=self.workload.loss,
            seed=PublicSeed(self.config.seed),
            shape=self.workload.dataset.shape,
            sizes=tuple(len(part) for part in self.workload.parts),
            protection=protection,
            start=start,
        )

    def behind(self, index: int, clients: Sequence[int]) -> Examples:
        """The truth: the different examples behind the replies of clients in a round, those of one after the other's."""
        parts = [self._used(index, client) for client in clients]
        return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))

    def replied(self, index: int) -> tuple[int, ...]:
        """Who took part in a round."""
        stages = ("train", "masked")
        return tuple(
            each.client for each in self.exchanges if each.round == index and each.stage in stages and each.reply is not None
        )

    @cached_property
    def _protection(self) -> Protection | None:
        sizes = [len(part) for part in self.workload.parts]
        dim = vectors.Layout.of(self.workload.module).dim
        return self.config.protection(dim=dim, sizes=sizes, module=self.workload.module)

    @cached_property
    def _seen_most(self) -> list[tuple[int, int]]:
        """Clients by how often they were asked, the most often first, the lower of equals first."""
        asked = Counter(each.client for each in self.exchanges if each.stage in ("train", "keys"))
        return sorted(asked.items(), key=lambda item: (-item[1], item[0]))

    def _used(self, index: int, client: int) -> Examples:
        examples, protection, work = self.workload.examples(client), self._protection, self.config.algorithm.work
        context = RoundContext(round=index, seed=PublicSeed(self.config.seed), client=client)
        if protection is None or protection.privacy is None or protection.privacy.unit == "client":
            order, slices = work.order(len(examples.x), context.own)
            used = torch.unique(order[: slices[-1][1]])
            return Examples(examples.x[used], examples.y[used])
        if protection.privacy.batches == "poisson" and protection.privacy.insecure_noise_seed is None:
            raise InputError(
                "which examples were in a batch is this run's secret, so nothing that an attack finds can be compared with "
                "it. Audit the configuration instead of the run: it is run again with a known seed for noise."
            )
        secret = protection.secret(index, "client", client)
        parts = [batch for batch, _ in batches_of(protection, examples, context, secret)]
        return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def repeatable(config: Config) -> Config:
    """The same configuration with all that is drawn known, as a seed must give the same audit again.

    Noise is as strong as before, but whoever knows the seed could take it off; views do not. First weights that are a secret
    are drawn from the public seed, and views are not given them.
    """
    if config.privacy is not None and config.privacy.insecure_noise_seed is None:
        config = replace(config, privacy=replace(config.privacy, insecure_noise_seed=config.seed))
    if isinstance(config.algorithm, Dbcl):
        config = replace(config, algorithm=replace(config.algorithm, public_start=True))
    return config


def record(
    config: Config, workload: Workload, *, on_round: Callable[[dict[str, Any]], None] | None = None
) -> tuple[Recorded, Run]:
    """Train, with everything that passes recorded in memory."""
    exchanges: list[Exchange] = []
    loop = Loop(config, workload, exchanges.extend)
    weights = [] if config.algorithm.shows_weights else [loop.weights.clone()]

    def watch(line: dict[str, Any]) -> None:
        if weights:
            weights.append(loop.weights.clone())
        if on_round is not None:
            on_round(line)

    run = loop.finish(watch)
    recorded = Recorded(
        config=run.config,
        workload=workload,
        exchanges=exchanges,
        weights=weights,
        final=run.weights,
        metrics=run.metrics,
    )
    return recorded, run
