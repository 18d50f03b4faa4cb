"""What a policy says of a run, from the names and numbers in its settings. No part of the run is looked up or built."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from sketchfed.algorithms import ALGORITHMS, FedAvg
from sketchfed.algorithms.round_settings import RoundSettings
from sketchfed.codecs import CODECS
from sketchfed.combining import COMBINE_RULES
from sketchfed.config import GIVEN, TABLES, DataSettings, ModelSettings
from sketchfed.data import DATA_SETS, PARTITIONS
from sketchfed.errors import InputError
from sketchfed.graphs import GRAPHS
from sketchfed.models import MODELS
from sketchfed.nodes.policy import BUILT_IN, PARTS, Policy, Rule
from sketchfed.nodes.sizes import memory_of, parameters_of
from sketchfed.parts import Registry
from sketchfed.privacy import MECHANISMS
from sketchfed.protection import PrivacySettings, Protection, SecureSettings, SecureSums
from sketchfed.server_optimisers import SERVER_OPTIMISERS
from sketchfed.sketches import SKETCHES
from sketchfed.training import BATCH_LOSSES, LOOPS, LOSSES, METRICS, OPTIMISERS, SCHEDULES

T = TypeVar("T")

REGISTRIES: dict[str, Registry[Any]] = {
    "models": MODELS,
    "data": DATA_SETS,
    "partitions": PARTITIONS,
    "algorithms": ALGORITHMS,
    "combine_rules": COMBINE_RULES,
    "server_optimisers": SERVER_OPTIMISERS,
    "codecs": CODECS,
    "sketches": SKETCHES,
    "loops": LOOPS,
    "losses": LOSSES,
    "batch_losses": BATCH_LOSSES,
    "optimisers": OPTIMISERS,
    "schedules": SCHEDULES,
    "metrics": METRICS,
    "mechanisms": MECHANISMS,
    "graphs": GRAPHS,
}
_PLACES = {
    ("model", "name"): "models",
    ("model", "loss"): "losses",
    ("model", "metric"): "metrics",
    ("training", "train"): "loops",
    ("training", "evaluate"): "loops",
    ("training", "collate"): "loops",
    ("training", "batch_loss"): "batch_losses",
    ("training", "optimiser"): "optimisers",
    ("training", "round_schedule"): "schedules",
    ("training", "step_schedule"): "schedules",
    ("data", "name"): "data",
    ("data", "partition"): "partitions",
    ("algorithm", "name"): "algorithms",
    ("algorithm", "combine"): "combine_rules",
    ("algorithm", "server"): "server_optimisers",
    ("codec", "name"): "codecs",
    ("sketch", "name"): "sketches",
    ("privacy", "name"): "mechanisms",
    ("graph", "name"): "graphs",
}
_DEFAULTS = PrivacySettings(noise_multiplier=1.0)
_SUMS = SecureSettings()
_ABSURD = 1e300
"""Whole numbers of JSON have no bound. Beyond this one they are no numbers of a setting."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a server says of a run."""

    tables: Mapping[str, Any]
    data: str = "data"
    """The name of the node's data set in its policy."""
    clients: int | None = None
    shape: tuple[int, ...] | None = None
    """The shape of an example. None if it is not known yet."""
    outputs: int = 1
    parameters: int | None = None
    """The number of parameters, if they are known without the model."""
    sent: bool = True
    """Whether the offer came from a server. Then it says nothing of engines."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one rule says of a run."""

    rule: Rule
    given: str
    allowed: bool
    remedy: str = field(default="")

    @property
    def text(self) -> str:
        return self._with(self.rule.text)

    @property
    def refusal(self) -> InputError:
        """The error that the node logs. Its server is told the rule, and not in which file it stands."""
        return InputError(self.text).telling(self._with(self.rule.told))

    def _with(self, rule: str) -> str:
        return f"this node's policy refuses {self.given}. {self.remedy}{' ' if self.remedy else ''}({rule})"


def check(policy: Policy, offer: Offer) -> None:
    """Raise `InputError` for the first rule that refuses."""
    for verdict in verdicts(policy, offer):
        if not verdict.allowed:
            raise verdict.refusal


def verdicts(policy: Policy, offer: Offer) -> Iterator[Verdict]:
    """Each rule that applies to a run, with what it says. Names come first: what follows may count a model's parameters."""
    tables = _checked_tables(offer)
    refused = False
    for verdict in _names(policy, tables):
        refused |= not verdict.allowed
        yield verdict
    yield from _limits(policy, tables, offer, countable=not refused)
    yield from _demands(policy, tables, offer)


def check_built(policy: Policy, protection: Protection, data: str) -> None:
    """Check once more what is known only now: defaults that the algorithm set, the sizes of groups and of the model."""
    found = [_at_most(policy, "limits.parameters", protection.dim, f"a model of {protection.dim:,} parameters")]
    budget = protection.budget
    found += _of_privacy(policy, None if budget is None else asdict(budget.settings), data)
    if budget is not None and policy["demand.noise_multiplier"] is not None:
        found.append(_noise(policy, protection.charge().multiplier))
    if policy["demand.secure"] and not isinstance(protection, SecureSums):
        found.append(_without_sums(policy))
    found.append(_cohort(policy, protection.cohort_size, protection.settings if isinstance(protection, SecureSums) else None))
    for verdict in found:
        if not verdict.allowed:
            raise verdict.refusal


def _checked_tables(offer: Offer) -> dict[str, Mapping[str, Any]]:
    tables = {}
    for key, table in offer.tables.items():
        if key in TABLES and not isinstance(table, Mapping):
            raise InputError(f"[{key}] must be a table, got {key} = {str(table)[:80]!r}.")
        if key in TABLES:
            tables[key] = table
    if offer.sent and "engine" in tables:
        raise InputError("a server says nothing of engines to a node. Remove [engine] from what is sent.")
    graph = tables.get("graph", {})
    options = graph.get("options")
    if offer.sent and ("path" in graph or (isinstance(options, Mapping) and options.get("path"))):
        raise InputError(
            "a server names no files of a node: a message about a line of graph.path quotes it. Remove path from what is sent."
        )
    return tables


def _names(policy: Policy, tables: Mapping[str, Mapping[str, Any]]) -> Iterator[Verdict]:
    usual = {"model": ModelSettings.name, "data": DataSettings.name, "algorithm": FedAvg.name}
    for (table, key), kind in _PLACES.items():
        name = tables.get(table, {}).get(key, usual.get(table) if key == "name" else None)
        for each in name if isinstance(name, list) and kind == "metrics" else [name]:
            if each is not None and not (each == GIVEN and kind in ("models", "data")):
                yield _named(policy, kind, each, f"{table}.{key}")
    for table, content in tables.items():
        for key, value in content.items():
            if (table, key) not in _PLACES and table != "engine":
                yield from _inner(policy, value, f"{table}.{key}")


def _inner(policy: Policy, value: Any, place: str) -> Iterator[Verdict]:
    """Names among the options of parts: sketches of codecs, and whatever looks like `package.module:Thing`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _inner(policy, inner, f"{place}.{key}")
    elif isinstance(value, list | tuple) and not all(type(item) in (int, float, bool) for item in value):
        for inner in value:
            yield from _inner(policy, inner, place)
    elif isinstance(value, str) and place.endswith(".family"):
        yield _named(policy, "sketches", value, place)
    elif isinstance(value, str) and ":" in value:
        homes = [kind for kind in PARTS if value in policy[f"allow.{kind}"]]
        yield _named(policy, homes[0] if homes else "models", value, place)


def named_parts(tables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The kinds and names of the parts that a configuration names and that are not built in."""
    for (table, key), kind in _PLACES.items():
        name = tables.get(table, {}).get(key)
        for each in name if isinstance(name, list) else [name]:
            if isinstance(each, str) and each != GIVEN and not REGISTRIES[kind].is_built_in(each):
                yield kind, each


def _named(policy: Policy, kind: str, name: object, place: str) -> Verdict:
    allowed = policy[f"allow.{kind}"]
    known = isinstance(name, str) and (name in allowed or (BUILT_IN in allowed and REGISTRIES[kind].is_built_in(name)))
    return Verdict(
        rule=policy.rules[f"allow.{kind}"],
        given=f"{place} = {str(name)[:200]!r}",
        allowed=known,
        remedy=f"The node's owner may add it to allow.{kind} after reading its code.",
    )


def _limits(policy: Policy, tables: Mapping[str, Mapping[str, Any]], offer: Offer, *, countable: bool) -> Iterator[Verdict]:
    algorithm = tables.get("algorithm", {})
    clients = max(offer.clients or 0, _number(tables.get("data", {}), "data", "clients", 0))
    if clients:
        yield _at_most(policy, "limits.clients", clients, f"a run of {clients:,} clients")
    rounds = _number(algorithm, "algorithm", "rounds", RoundSettings.rounds)
    yield _at_most(policy, "limits.rounds", rounds, f"algorithm.rounds = {rounds:,}")
    for key in ("local_steps", "local_epochs"):
        if algorithm.get(key) is not None:
            steps = _number(algorithm, "algorithm", key, 1)
            yield _at_most(policy, "limits.steps", steps, f"algorithm.{key} = {steps:,}")
    for table in ("sketch", "codec", "subspace"):
        if tables.get(table, {}).get("size") is not None:
            size = _number(tables[table], table, "size", 0)
            yield _at_most(policy, "limits.parameters", size, f"{table}.size = {size:,}")
    parameters = offer.parameters
    model = tables.get("model", {})
    name = model.get("name", ModelSettings.name)
    if parameters is None and offer.shape is not None and countable and name != GIVEN:
        options = {key: value for key, value in model.items() if key not in ("name", "loss", "metric")}
        parameters = parameters_of(name, offer.shape, offer.outputs, options)
    example = 1 if offer.shape is None else math.prod(offer.shape)
    if offer.shape is not None:
        yield _at_most(policy, "limits.parameters", example, f"examples of {example:,} numbers")
    if parameters is not None:
        yield _at_most(policy, "limits.parameters", parameters, f"a model of {parameters:,} parameters")
    subspace = tables.get("subspace", {})
    needed = memory_of(
        parameters or 1,
        batch=_number(algorithm, "algorithm", "batch", 1),
        example=example,
        noised_examples=tables.get("privacy", {}).get("unit") == "example",
        directions=_number(subspace, "subspace", "size", 0) if subspace.get("name") != "whole" else 0,
    )
    yield _at_most(policy, "limits.memory", needed, f"work that takes about {needed:,} bytes")


def _demands(policy: Policy, tables: Mapping[str, Mapping[str, Any]], offer: Offer) -> Iterator[Verdict]:
    secure = tables.get("secure")
    sums = secure is not None and secure.get("aggregation", True) is True
    if policy["demand.secure"]:
        yield (
            Verdict(rule=policy.rules["demand.secure"], given="a run with secure sums", allowed=True)
            if sums
            else _without_sums(policy)
        )
    yield from _of_privacy(policy, tables.get("privacy"), offer.data)
    given = tables.get("privacy", {}).get("noise_multiplier")
    if policy["demand.noise_multiplier"] is not None and given is not None:
        yield _noise(policy, _number(tables["privacy"], "privacy", "noise_multiplier", 0.0))
    clients = offer.clients if offer.clients is not None else tables.get("data", {}).get("clients")
    if type(clients) is int and 0 < clients < 2**40:
        share = _number(tables.get("algorithm", {}), "algorithm", "participation", 1.0)
        cohort = max(1, round(min(share, 1.0) * clients))
        yield _cohort(policy, cohort, _split(secure) if sums and secure is not None else None)
    if sums and secure is not None:
        colluders = _number(secure, "secure", "colluders", _SUMS.colluders)
        yield Verdict(
            rule=policy.rules["demand.colluders"],
            given=f"secure.colluders = {colluders:g}",
            allowed=colluders >= policy["demand.colluders"],
            remedy="Raise secure.colluders.",
        )


def _split(secure: Mapping[str, Any]) -> SecureSettings:
    """The settings of [secure] that say over how many clients a sum is opened."""
    groups, size = (
        _number(secure, "secure", key, 1) if secure.get(key) is not None else None for key in ("groups", "group_size")
    )
    survivors = _number(secure, "secure", "survivors", _SUMS.survivors)
    return SecureSettings(survivors=survivors, groups=groups, group_size=size)


def _cohort(policy: Policy, cohort: int, secure: SecureSettings | None) -> Verdict:
    least = cohort if secure is None else secure.least_opened(cohort)
    return Verdict(
        rule=policy.rules["demand.cohort"],
        given=f"rounds of {cohort:,} clients" if secure is None else f"sums that are opened over {least:,} clients",
        allowed=least >= policy["demand.cohort"],
        remedy="Raise algorithm.participation, data.clients, secure.survivors or secure.group_size.",
    )


def _of_privacy(policy: Policy, privacy: Mapping[str, Any] | None, data: str) -> list[Verdict]:
    """What the policy says of [privacy], or of there being none."""
    needed = policy.demands_privacy(data)
    if privacy is None:
        none = Verdict(rule=needed, given="a run without privacy", allowed=False, remedy="Add [privacy].") if needed else None
        return [none] if none else []
    found = []
    most = policy["demand.epsilon"]
    if most is not None:
        epsilon = privacy.get("epsilon")
        budget = math.inf if epsilon is None else _number(privacy, "privacy", "epsilon", 0.0)
        given = "a run without a budget" if epsilon is None else f"privacy.epsilon = {budget:g}"
        found.append(_most(policy, "demand.epsilon", budget, given, "Lower privacy.epsilon."))
    if policy["demand.delta"] is not None:
        delta = _number(privacy, "privacy", "delta", _DEFAULTS.delta)
        found.append(_most(policy, "demand.delta", delta, f"privacy.delta = {delta:g}", "Lower privacy.delta."))
    for key, name in (("demand.unit", "unit"), ("demand.observers", "observer")):
        value = privacy.get(name, getattr(_DEFAULTS, name))
        found.append(Verdict(rule=policy.rules[key], given=f"privacy.{name} = {value!r}", allowed=value in policy[key]))
    if needed is not None:
        found.append(
            Verdict(
                rule=needed,
                given="noise from secret randomness"
                if privacy.get("insecure_noise_seed") is None
                else "privacy.insecure_noise_seed, which draws noise that all can rebuild",
                allowed=privacy.get("insecure_noise_seed") is None,
                remedy="Remove privacy.insecure_noise_seed.",
            )
        )
    return found


def _noise(policy: Policy, multiplier: float) -> Verdict:
    return Verdict(
        rule=policy.rules["demand.noise_multiplier"],
        given=f"noise of {multiplier:g} times the clip norm",
        allowed=multiplier >= policy["demand.noise_multiplier"],
        remedy="Raise privacy.noise_multiplier, or lower privacy.epsilon.",
    )


def _without_sums(policy: Policy) -> Verdict:
    return Verdict(
        rule=policy.rules["demand.secure"],
        given="a run without secure sums",
        allowed=False,
        remedy="Add [secure] with its sums.",
    )


def _most(policy: Policy, key: str, value: float, given: str, remedy: str) -> Verdict:
    return Verdict(rule=policy.rules[key], given=given, allowed=value <= policy[key], remedy=remedy)


def _at_most(policy: Policy, key: str, value: int, given: str) -> Verdict:
    return _most(policy, key, value, given, "Make it smaller, or ask the node's owner.")


def _number(table: Mapping[str, Any], where: str, key: str, default: T) -> T:
    """A number of the settings, of the type of its default, not below 0. What is absent has the default."""
    value: Any = table.get(key)
    if value is None:
        return default
    kinds: Sequence[type] = (int, float) if isinstance(default, float) else (int,)
    if type(value) not in kinds or not 0 <= value < _ABSURD:
        kind = "a number" if isinstance(default, float) else "a whole number"
        raise InputError(f"{where}.{key} must be {kind}, not negative, got {str(value)[:80]!r}.")
    return value  # type: ignore[no-any-return]
