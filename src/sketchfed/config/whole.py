"""All settings of a run: what they are together, and what is made of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import tomli_w
from torch import nn

from sketchfed.algorithms import (
    ALGORITHMS,
    Algorithm,
    CombineSettings,
    FedAvg,
    ServerSettings,
)
from sketchfed.algorithms.beside import extended
from sketchfed.algorithms.chosen import ChosenPart
from sketchfed.algorithms.settings import decoding_on
from sketchfed.config.settings import DataSettings, EngineSettings, ModelSettings
from sketchfed.devices import device_named
from sketchfed.errors import FaultyPartError, InputError
from sketchfed.graphs import GraphSettings
from sketchfed.parts import short
from sketchfed.protection import PrivacySettings, Protection, SecureSettings, completed_work, make_protection
from sketchfed.rounds import AsynchronousSettings, Participant
from sketchfed.rounds.peers.kinds import check_graph, check_neighbourhoods, check_served, check_sums
from sketchfed.seeds import PublicSeed
from sketchfed.tables import (
    Table,
    flat,
)
from sketchfed.training import Trainer, TrainingSettings

CHOSEN: dict[str, tuple[str, type[ChosenPart]]] = {
    kind.key: (name, kind) for name, kind in (("combine", CombineSettings), ("server_optimiser", ServerSettings))
}
"""The keys of [algorithm] that name a part whose options are in a table of that key: the field, and the settings."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    name: str = ""
    seed: int = 0
    joint: str = ""
    """32 hexadecimal digits: randomness that the server and the clients of a federation drew together. Cohorts, groups, batches
    and sketches follow from it, so that no server can choose them. If absent, they follow from `seed`."""
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    algorithm: Algorithm = field(default_factory=FedAvg)
    privacy: PrivacySettings | None = None
    secure: SecureSettings | None = None
    asynchronous: AsynchronousSettings | None = None
    graph: GraphSettings | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if self.name and (not self.name.isprintable() or set(self.name) & set('/\\:*?"<>|') or self.name.startswith(".")):
            raise InputError(
                "name becomes the name of a folder, so it must not begin with a dot or contain slashes or other special "
                f"characters; got {self.name!r}."
            )
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be from 0 to 2^64 - 1, got {self.seed}.")
        if self.joint and not re.fullmatch("[0-9a-f]{32}", self.joint):
            raise InputError(f"joint must be 32 hexadecimal digits, got {self.joint!r}. Leave it out; a federation draws it.")
        self._check_personal()
        self._check_evaluation()
        if self.graph is not None:
            self._settle_graph()

    def _settle_graph(self) -> None:
        """Refuse what needs a server, and fill in what follows from having none."""
        given = {
            "[asynchronous]": (self.asynchronous is not None, "clients of a buffer send their updates to a server. Remove it."),
            f"engine.name = '{self.engine.name}'": (
                self.engine.name == "flower",
                "SuperNodes answer a server and cannot speak to each other. Use engine.name = 'local' or 'ranks'.",
            ),
            "engine.name = 'ranks' and [secure]": (
                self.engine.name == "ranks" and self.secure is not None,
                "nodes sign what they add to a sum, and ranks cannot tell whose keys those are. Use engine.name = 'local', or "
                "remove [secure].",
            ),
            "engine.name = 'ranks' and engine.record": (
                self.engine.name == "ranks" and self.engine.record,
                "no rank sees all messages. Record the run with engine.name = 'local', where they have the same bytes.",
            ),
        }
        for setting, (is_given, why) in given.items():
            if is_given:
                raise InputError(f"[graph] does not go with {setting}: {why}")
        if self.secure is not None and self.secure.aggregation:
            check_sums(self.algorithm)  # before it is asked for settings of the sums
        if not self.algorithm.public_start:  # nodes without a server can only begin with the same weights
            object.__setattr__(self, "algorithm", replace(self.algorithm, public_start=True))
        if self.privacy is not None and self.privacy.observer == "server":
            object.__setattr__(self, "privacy", replace(self.privacy, observer="neighbours"))

    def _check_personal(self) -> None:
        """Refuse personal layers with privacy for examples: trained without noise, they would carry one example to others."""
        if self.model.personal and self.privacy is not None and self.privacy.unit == "example":
            raise InputError(
                "model.personal does not go with privacy.unit = 'example': the gradient of every example depends on the "
                "personal layers, so they would have to be trained with noise, and only what is shared is trained with noise. "
                "Use privacy.unit = 'client', or remove personal."
            )

    def _check_evaluation(self) -> None:
        """Refuse to evaluate on clients where their metrics would tell what the run hides, or clients lack the model."""
        if not self.training.evaluate_clients:
            if self.data.client_validation is not None:
                raise InputError(
                    f"data.client_validation = {self.data.client_validation} holds out examples that nothing evaluates. Set "
                    "training.evaluate_clients = true, or remove it."
                )
            return
        if self.privacy is not None or self.secure is not None:
            table = "privacy" if self.privacy is not None else "secure"
            raise InputError(
                f"training.evaluate_clients = true shows single clients' metrics, and [{table}] hides single clients: no noise "
                "covers their metrics, and no secure sum adds them up. Remove evaluate_clients, and evaluate on the server's "
                f"test data. Or remove [{table}] in a simulation, to see how clients differ."
            )
        if not self.algorithm.shows_weights:
            raise InputError(
                f"training.evaluate_clients = true needs clients that hold the model, and clients of '{self.algorithm.name}' "
                "see sketched layers only. Remove evaluate_clients."
            )

    @property
    def shared_seed(self) -> PublicSeed:
        """The seed of everything that all parties of a round share."""
        return PublicSeed.from_bytes(bytes.fromhex(self.joint)) if self.joint else PublicSeed(self.seed)

    @property
    def label(self) -> str:
        """A short description of the algorithm and what it sends."""
        words = [self.algorithm.label, *self.training.words, *self.model.words]
        if self.training.proximal:
            words.append(f"proximal {self.training.proximal:g}")
        if self.privacy is not None:
            words.append(short(self.privacy.name).replace("_", " "))
        if self.secure is not None and self.secure.aggregation:
            words.append("secure sums")
        if self.asynchronous is not None:
            words.append(self.asynchronous.label)
        if self.graph is not None:
            words.append(self.graph.label)
        return " ".join(words)

    def completed(self, *, dim: int, sizes: Sequence[int], module: nn.Module | None = None) -> "Config":
        """Return this configuration with every default filled in.

        Some defaults depend on the model's size `dim` and on `sizes`, the number of examples of each client. Algorithms that
        treat layers differently need the `module`.
        """
        clients = len(sizes)
        algorithm = completed_work(self._resolved(dim, clients, module), self.privacy)
        if algorithm.global_rate is None:
            raise FaultyPartError(algorithm, "algorithm", "leaves global_rate open. Its `resolved` must choose a number")
        if algorithm.local_steps is None:
            algorithm = replace(algorithm, local_epochs=algorithm.work.epochs)
        algorithm = replace(algorithm, **{name: getattr(algorithm, name).completed() for name, _ in CHOSEN.values()})
        data, model = self.data.completed(clients), self.model.completed()
        asynchronous, graph = self._buffered(algorithm, clients), self._joined(clients)
        full = replace(self, data=data, model=model, algorithm=algorithm, asynchronous=asynchronous, graph=graph)
        protection = full.protection(dim=dim, sizes=sizes, module=module)
        if self.graph is None:
            check_served(algorithm)
        else:
            check_graph(protection)
            check_neighbourhoods(protection, self.graph.topology(clients, self.shared_seed))
        budget = protection.budget
        return full if budget is None else replace(full, privacy=budget.settings)

    def _buffered(self, algorithm: Algorithm, clients: int) -> AsynchronousSettings | None:
        if self.asynchronous is None:
            return None
        secure = self.secure is not None and self.secure.aggregation
        protected = "secure" if secure else "privacy" if self.privacy is not None else ""
        self.asynchronous.check(algorithm, protected=protected, engine=self.engine.name, recorded=self.engine.record)
        return self.asynchronous.completed(clients)

    def _joined(self, clients: int) -> GraphSettings | None:
        """Complete [graph], and refuse a graph that does not fit the clients."""
        if self.graph is None:
            return None
        graph = self.graph.completed()
        graph.topology(clients, self.shared_seed)
        return graph

    def protection(self, *, dim: int, sizes: Sequence[int], module: nn.Module | None = None) -> Protection:
        """Make the protection of the updates between encoding and sending."""
        seed, algorithm = self.shared_seed, self._resolved(dim, len(sizes), module)
        return make_protection(algorithm, privacy=self.privacy, secure=self.secure, dim=dim, sizes=sizes, seed=seed)

    def _resolved(self, dim: int, clients: int, module: nn.Module | None) -> Algorithm:
        if self.algorithm.alone:
            self.algorithm.segmented(dim, clients, module)  # refuses what its steps would not move
        return self.algorithm.resolved(dim, clients, module)

    def participant(self, trainer: Trainer, sizes: Sequence[int], module: nn.Module | None = None) -> Participant:
        """Make the participant of a completed configuration. `sizes` is the number of examples of each client.

        Sketches are undone on `engine.device`. Where `trainer` trains is its own matter.
        """
        there = replace(self, algorithm=decoding_on(self.algorithm, device_named(self.engine.device)))
        protection = there.protection(dim=trainer.dim, sizes=sizes, module=module)
        trainer = extended(trainer, protection.algorithm, sizes, self.shared_seed)
        proximal = self.training.proximal
        return Participant(trainer=trainer, seed=self.shared_seed, protection=protection, proximal=proximal)

    def to_tables(self) -> Table:
        """Convert to plain tables, from which `load_config` makes the same configuration."""
        keys = {"name": self.name, "seed": self.seed} | ({"joint": self.joint} if self.joint else {})
        tables: Table = {**keys, "data": flat(self.data), "model": flat(self.model)}
        if not self.training.usual:
            tables["training"] = self.training.table()
        tables["algorithm"] = {"name": ALGORITHMS.name_of(type(self.algorithm))} | flat(self.algorithm)
        for inner, settings in self.algorithm.tables.items():
            del tables["algorithm"][inner]
            if not isinstance(settings, ChosenPart):
                tables[inner] = flat(settings)
            elif not settings.usual:  # the default is left out, so that older versions can read the file
                tables["algorithm"][settings.key] = settings.name
                tables |= {settings.key: dict(settings.options)} if settings.options else {}
        beside = {"privacy": self.privacy, "secure": self.secure, "asynchronous": self.asynchronous, "graph": self.graph}
        for name, settings in beside.items():
            if settings is not None:
                tables[name] = flat(settings)
        tables["engine"] = flat(self.engine)
        return tables

    def to_toml(self) -> str:
        """Convert to the text of a TOML file."""
        return tomli_w.dumps(self.to_tables())
