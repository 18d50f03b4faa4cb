"""Values out of files that are not taken on trust: each is checked, or refused by file, line, key and what was found."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from sketchfed.errors import InputError

REMEDY = "Leave this run out of the report, or run it anew."
_MOST = 2**63 - 1
_LONGEST = 200
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def json_object(text: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # also integers of more digits than Python converts
        raise InputError(f"{where}: not a JSON object: {shown(text)}. {REMEDY}") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: not a JSON object: {shown(text)}. {REMEDY}")
    return values


def _get(values: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in values:
        raise InputError(f"{where}: '{key}' is missing. {REMEDY}")
    return values[key]


def whole(values: Mapping[str, Any], key: str, where: str, *, least: int = 0) -> int:
    value = _get(values, key, where)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise refusal(where, key, value, f"an integer from {least} to 2^63 - 1")
    return value


def number(values: Mapping[str, Any], key: str, where: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    value = _get(values, key, where)
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not abs(value) < 1e300 or not least <= value <= most:  # NaN fails the first comparison
        bounds = "" if least == -math.inf else f" from {least:g} on" if most == math.inf else f" from {least:g} to {most:g}"
        raise refusal(where, key, value, f"a finite number{bounds}")
    return float(value)


def number_or_null(
    values: Mapping[str, Any], key: str, where: str, *, least: float = -math.inf, most: float = math.inf
) -> float | None:
    return None if _get(values, key, where) is None else number(values, key, where, least=least, most=most)


def flag(values: Mapping[str, Any], key: str, where: str) -> bool:
    value = _get(values, key, where)
    if not isinstance(value, bool):
        raise refusal(where, key, value, "true or false")
    return value


def printable(values: Mapping[str, Any], key: str, where: str) -> str:
    value = _get(values, key, where)
    if not is_printable(value):
        raise refusal(where, key, value, f"a line of text, at most {_LONGEST} characters, none of them control characters")
    return str(value)


def is_printable(value: object) -> bool:
    """Control characters would reach a terminal, and lone surrogates cannot be written as UTF-8."""
    return isinstance(value, str) and len(value) <= _LONGEST and not _UNPRINTABLE.search(value)


def refusal(where: str, key: str, value: object, wanted: str) -> InputError:
    return InputError(f"{where}: '{key}' must be {wanted}, got {shown(value)}. {REMEDY}")


def shown(value: object) -> str:
    text = "null" if value is None else ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
