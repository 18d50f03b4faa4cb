"""Plain tables, as TOML has them: read, changed by `--set`, and made into frozen structs with errors that say where."""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from sketchfed.errors import InputError, SketchfedError, UnknownNameError

Table = dict[str, Any]
T = TypeVar("T")

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def read_toml(path: str | Path) -> Table:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration {path}: {error.strerror}. Check the path.") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # also numbers of 5,000 digits, and deep tables
        raise InputError(f"{path} is not valid TOML: {error}. Mend that line.") from None


def copied(value: Any) -> Any:
    """Tables inside tables as dicts of our own; whatever else is in them is shared."""
    return {key: copied(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def change(tables: Table, text: str) -> None:
    """Apply a change such as `algorithm.rounds=20`, in place."""
    path, equals, written = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise InputError(f"--set takes TABLE.KEY=VALUE, got {text!r}. Write --set algorithm.rounds=20.")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written.strip()  # a bare word is a text
    for key in keys[:-1]:
        tables = tables.setdefault(key, {})
        if not isinstance(tables, dict):
            raise InputError(f"--set {text}: '{key}' is not a table. Write --set TABLE.KEY=VALUE.")
    tables[keys[-1]] = value


def check_keys(where: str, keys: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keys that the table [`where`] does not have."""
    names = list(known)
    for key in keys:
        if key not in names:
            raise UnknownNameError(f"key in [{where}]", key, names)


def keys_of(kind: type) -> list[str]:
    """The keys of a struct's own; what else its table has are options of what it names. Private fields are no settings."""
    return [setting.name for setting in fields(kind) if setting.name != "options" and not setting.name.startswith("_")]


def with_options(table: Table, kind: type) -> Table:
    """A table as its struct takes it: keys that the struct does not have become `options`."""
    own = {key: value for key, value in table.items() if key in keys_of(kind)}
    return own | {"options": {key: value for key, value in table.items() if key not in own}}


def flat(settings: Any) -> Table:
    """A struct as a table: without what is absent, options beside the rest."""
    table = {key: value for key, value in asdict(settings).items() if value is not None and not key.startswith("_")}
    options: Table = table.pop("options", {})
    return table | options


def to_struct(table: Table, kind: type[T], where: str) -> T:
    """A struct from the table [`where`]; a wrong type is refused with its place and its value."""
    try:
        return msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, SketchfedError):
            raise error.__cause__ from None
        raise _refusal(str(error), table, kind, where) from None


def check_type(value: Any, kind: Any, place: str) -> None:
    """Refuse a value at `place`, such as `model.hidden`, that is not what a function says it takes."""
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        inside = str(error).partition("`$")[2].rstrip("`")
        raise InputError(f"{place}{inside} must be {_expected(str(error))}, got {value!r}.") from None


def _refusal(text: str, table: Table, kind: type, where: str) -> InputError:
    if missing := re.match(r"Object missing required field `([^`]*)`", text):
        return InputError(f"{where}.{missing[1]} has no default. Write {missing[1]} = … in [{where}].")
    keys = re.sub(r"\[[^]]*\]", "", text.rpartition("`$.")[2].rstrip("`")).split(".")  # of a list, all of it is shown
    value: Any = table
    for key in keys:
        value = value[key]
    place = ".".join(keys if len(keys) > 1 else [where, *keys])  # [sketch] and [codec] stand beside [algorithm] in the file
    if text.startswith("Number out of range"):
        return InputError(f"{place} is a number beyond what a computer's float holds. Use a smaller one.")
    if not text.startswith("Expected"):
        return UnknownNameError(place, value, _names(get_type_hints(kind)[keys[0]]))
    return InputError(f"{place} must be {_expected(text)}, got {value!r}.")


def _names(kind: Any) -> list[str]:
    """The texts that a Literal allows, also if it may be absent."""
    inner = get_args(kind)
    return [kind] if isinstance(kind, str) else [name for each in inner for name in _names(each)]


def _expected(text: str) -> str:
    """From msgspec's "Expected `int | null`, got `str`": an integer."""
    names = re.match(r"Expected `([^`]*)", text)
    if names is None:
        return f"something else ({text})"
    return " or ".join(_KINDS.get(name, name) for name in names[1].split(" | ") if name != "null")


# The options of functions that tables name ------------------------------------------------------------------------------


def parameters_of(function: Callable[..., Any] | None) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values()) if function else []
    except ValueError:  # some functions written in C have no signature
        return []


def options_of(function: Callable[..., Any] | None, besides: Iterable[str] = ()) -> Table:
    """The options of a function with their defaults. None stands for an option without a default."""
    named = [p for p in parameters_of(function) if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {p.name: None if p.default is p.empty else p.default for p in named if p.name not in besides}


def takes_any(function: Callable[..., Any] | None) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters_of(function))


def writable(options: Table) -> Table:
    """The options whose default can be written to a TOML file."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return {name: value for name, value in plain.items() if isinstance(value, bool | int | float | str | list)}


def chosen_of(options: Table, known: Iterable[str]) -> Table:
    return {key: value for key, value in options.items() if key in known}
