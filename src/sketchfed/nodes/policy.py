"""A node's policy: what its owner allows, demands and limits, from one TOML file. Every refusal names the line that refused."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchfed.errors import InputError, UnknownNameError
from sketchfed.nodes.spending import Limit
from sketchfed.tables import Table, read_toml

BUILT_IN = "built-in"
"""In an allow-list: all parts that sketchfed itself brings."""
EVERY = "*"
"""The table [data."*"] is about every data set without a table of its own."""
NODE_CONFIG, DEFAULT = "--node-config", "default"
"""Where a rule stands that is in no file."""
DATA_KEYS = ("lifetime_epsilon", "lifetime_delta")
DELTA = 1e-5
"""The largest δ where an ε is limited and nothing else is said."""


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _one_of(*known: str) -> Callable[[Any], bool]:
    return lambda value: _names(value) and bool(value) and set(value) <= set(known)


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _flag(value: Any) -> bool:
    return type(value) is bool


@dataclass(frozen=True)
class Kind:
    """A key of the policy: what it is if the file does not say, which values it takes, and what it is about."""

    default: Any
    valid: Callable[[Any], bool]
    wanted: str
    about: str


_LIST = "a list of names"
PARTS = (
    "models",
    "data",
    "partitions",
    "algorithms",
    "combine_rules",
    "server_optimisers",
    "codecs",
    "sketches",
    "loops",
    "losses",
    "batch_losses",
    "optimisers",
    "schedules",
    "metrics",
    "mechanisms",
    "graphs",
)
KEYS: dict[str, Kind] = {
    **{f"allow.{kind}": Kind([BUILT_IN], _names, _LIST, f"{kind.replace('_', ' ')} that a run may name") for kind in PARTS},
    "allow.plain": Kind(None, _flag, "true or false", "whether messages of other strategies pass through sketchfed_mod"),
    "demand.secure": Kind(False, _flag, "true or false", "whether updates leave inside secure sums only"),
    "demand.epsilon": Kind(None, _positive, "a positive number", "the largest ε of one run"),
    "demand.delta": Kind(None, _share, "a probability", "the largest δ"),
    "demand.noise_multiplier": Kind(None, _positive, "a positive number", "the least noise, over the clip norm"),
    "demand.unit": Kind(["client", "example"], _one_of("client", "example"), "a list of 'client', 'example'", "units of ε"),
    "demand.observers": Kind(None, _one_of("server", "public"), "a list of 'server', 'public'", "whom noise must hold against"),
    "demand.cohort": Kind(1, _whole, "a whole number", "the least clients in a round, or in a secure sum that is opened"),
    "demand.colluders": Kind(0.0, _share, "a share", "the share of a sum's clients that may collude with the server"),
    "demand.identities": Kind(
        "first-use", lambda value: value in ("first-use", "known"), "'first-use' or 'known'", "whose identities are taken"
    ),
    "limits.parameters": Kind(100_000_000, _whole, "a whole number", "the most parameters of a model"),
    "limits.clients": Kind(100_000, _whole, "a whole number", "the most clients of a run"),
    "limits.rounds": Kind(100_000, _whole, "a whole number", "the most rounds of a run"),
    "limits.steps": Kind(100_000, _whole, "a whole number", "the most local steps, or epochs, of a round"),
    "limits.memory": Kind(16 * 2**30, _whole, "a number of bytes", "the most memory, by an estimate, of a client's work"),
    "limits.enrolments": Kind(1_000, _whole, "a whole number", "the most runs that may ask this node to join in a day"),
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One line of a policy: where it stands, its key and its value."""

    key: str
    value: Any
    source: str
    line: int | None = None

    @property
    def text(self) -> str:
        return f"{self.source}: {self.key} = {self._shown}"

    @property
    def told(self) -> str:
        """The line as a server may know it: without the file's path, and without what other runs on this node have to do with.

        A lifetime budget tells who has spent a part of it what the others spent. Lists of names tell what else the node runs.
        """
        key = self.key.rpartition(".")[2] if self.key.startswith("data.") else self.key
        shared = key != self.key or key.startswith("allow.") or key == "limits.enrolments"
        return f"{self.place}: {key}" if shared else f"{self.place}: {key} = {self._shown}"

    @property
    def place(self) -> str:
        """Where the rule stands, as a server may know it."""
        if self.source in (DEFAULT, NODE_CONFIG):
            return self.source
        return "the node's policy" if self.line is None else f"line {self.line} of the node's policy"

    @property
    def _shown(self) -> str:
        return {"True": "true", "False": "false", "None": "not limited"}.get(str(self.value), str(self.value))


class Policy:
    """What a node's owner demands of runs."""

    def __init__(self, rules: Mapping[str, Rule], data: Mapping[str, dict[str, Rule]]) -> None:
        self.rules, self.data = dict(rules), dict(data)

    @classmethod
    def load(cls, path: str | Path | None = None, settings: Mapping[str, object] | None = None) -> "Policy":
        """The policy of a file, or the defaults, tightened by what a node was told with --node-config."""
        rules = {key: Rule(key=key, value=kind.default, source=DEFAULT) for key, kind in KEYS.items()}
        data: dict[str, dict[str, Rule]] = {}
        if path is not None:
            _read(Path(path), rules, data)
        made = cls(rules, data)
        made._tighten(settings or {})
        made._complete()
        return made

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> "Policy":
        """The policy of a node with these settings."""
        named = settings.get("policy")
        return cls.load(str(named) if named else None, settings)

    def __getitem__(self, key: str) -> Any:
        return self.rules[key].value

    @property
    def private(self) -> bool:
        """Whether some ε, or some noise, is demanded of every run."""
        return self["demand.epsilon"] is not None or self["demand.noise_multiplier"] is not None or bool(self.data)

    @property
    def protects(self) -> bool:
        """Whether noise or secure sums are demanded, so that nothing of the data may leave in another way."""
        return self.private or bool(self["demand.secure"])

    def lifetime(self, name: str) -> Limit | None:
        """The lifetime budget of a data set."""
        rules = self.data.get(name) or self.data.get(EVERY)
        if rules is None:
            return None
        delta = rules["lifetime_delta"].value if "lifetime_delta" in rules else self["demand.delta"]
        rule = rules["lifetime_epsilon"]
        return Limit(
            epsilon=rule.value, delta=delta, rule=f"({rule.text})", told=f"({rule.place}: {rule.key.rpartition('.')[2]})"
        )

    def demands_privacy(self, name: str) -> Rule | None:
        """The rule for which a run on this data set needs an ε, if there is one."""
        for key in ("demand.epsilon", "demand.noise_multiplier"):
            if self[key] is not None:
                return self.rules[key]
        rules = self.data.get(name) or self.data.get(EVERY)
        return None if rules is None else rules["lifetime_epsilon"]

    def _tighten(self, settings: Mapping[str, object]) -> None:
        """Apply the shorthands: `epsilon` is the most for a run and for all runs together, `secure` demands secure sums."""
        if settings.get("secure"):
            self.rules["demand.secure"] = Rule(key="secure", value=True, source=NODE_CONFIG)
        if settings.get("epsilon") is None:
            return
        try:
            most = float(str(settings["epsilon"]))
        except ValueError:
            most = math.nan
        if not _positive(most):
            raise InputError(f"the node's setting epsilon must be a positive number, got {settings['epsilon']!r}.")
        rule = Rule(key="epsilon", value=most, source=NODE_CONFIG)
        if self["demand.epsilon"] is None or self["demand.epsilon"] > most:
            self.rules["demand.epsilon"] = rule
        self.data = {name: _least(rules, rule) for name, rules in self.data.items()}
        self.data.setdefault(EVERY, {"lifetime_epsilon": rule})

    def _complete(self) -> None:
        """Settle what depends on the rest: who demands privacy does not mean noise that the server promises to add."""
        for key, value in (
            ("allow.plain", not self.protects),
            ("demand.delta", DELTA if self.private else None),
            ("demand.observers", ["server"] if self.private else ["server", "public"]),
        ):
            if self[key] is None:
                self.rules[key] = Rule(key=key, value=value, source=DEFAULT)


def dataset_name(settings: Mapping[str, object]) -> str:
    """The name under which a node's data is charged: `dataset` of its settings, or its partition. No server has a say in it."""
    named, partition = settings.get("dataset"), settings.get("partition-id")
    return str(named) if named else "data" if partition is None else f"partition-{partition}"


def _least(rules: dict[str, Rule], rule: Rule) -> dict[str, Rule]:
    return {**rules, "lifetime_epsilon": rule} if rules["lifetime_epsilon"].value > rule.value else dict(rules)


def _read(path: Path, rules: dict[str, Rule], data: dict[str, dict[str, Rule]]) -> None:
    tables = read_toml(path)
    where = _lines(path.read_text(encoding="utf-8"))
    for table, content in tables.items():
        if table not in ("allow", "demand", "limits", "data") or not isinstance(content, dict):
            raise UnknownNameError(f"table of the policy {path}", table, ["allow", "demand", "limits", "data"])
        if table == "data":
            data |= {name: _data_rules(path, name, own, where) for name, own in content.items()}
            continue
        for key, value in content.items():
            full = f"{table}.{key}"
            known = [name for name in KEYS if name.startswith(f"{table}.")]
            if full not in KEYS:
                raise UnknownNameError(f"key of the policy {path}", full, known)
            if not KEYS[full].valid(value):
                raise InputError(f"{_at(path, where, (table,), key)}: {full} must be {KEYS[full].wanted}, got {value!r}.")
            rules[full] = _rule(full, value, path, where, (table,), key)


def _data_rules(path: Path, name: str, own: Any, where: "Lines") -> dict[str, Rule]:
    if not isinstance(own, dict) or "lifetime_epsilon" not in own:
        raise InputError(f"{path}: [data.{name}] needs lifetime_epsilon, such as lifetime_epsilon = 8.0.")
    for key, value in own.items():
        if key not in DATA_KEYS:
            raise UnknownNameError(f"key of the policy {path} in [data.{name}]", key, DATA_KEYS)
        if not (_positive(value) and (key == "lifetime_epsilon" or _share(value))):
            raise InputError(f"{_at(path, where, ('data', name), key)}: {key} must be a positive number, got {value!r}.")
    return {key: _rule(f"data.{name}.{key}", value, path, where, ("data", name), key) for key, value in own.items()}


def _rule(full: str, value: Any, path: Path, where: "Lines", table: tuple[str, ...], key: str) -> Rule:
    return Rule(key=full, value=value, source=_at(path, where, table, key), line=_line(where, table, key))


Lines = Mapping[tuple[tuple[str, ...], str], int]
_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([\w.\-\"' ]+?)\s*=")


def _lines(text: str) -> Lines:
    """On which line each key stands. Inline tables and values over several lines are found by their first line."""
    found: dict[tuple[tuple[str, ...], str], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _path(header[1])
        elif key := _KEY.match(line):
            *inner, last = _path(key[1])
            found.setdefault(((*table, *inner), last), number)
    return found


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", dotted))


def _at(path: Path, where: Lines, table: tuple[str, ...], key: str) -> str:
    line = _line(where, table, key)
    return f"{path}:{line}" if line else str(path)


def _line(where: Lines, table: tuple[str, ...], key: str) -> int | None:
    return where.get((table, key)) or where.get((table[:-1], table[-1]) if table else ((), key))


def tables_of(value: Any) -> Table:
    """Settings as tables, or `InputError`."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError("the settings of a run are tables.")
    return value
