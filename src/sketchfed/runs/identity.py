"""The identity of a run: digests of its loss, data and model. A run can only be resumed with the same ones."""

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

from torch import nn

from sketchfed.errors import InputError, StorageError
from sketchfed.runs.fingerprints import code_name, fingerprint, tensors_digest
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.versions import IDENTITY, naming_writer
from sketchfed.storage import replace_file
from sketchfed.vectors import sharing, trainable

log = logging.getLogger("sketchfed")

_VERSION = 2
"""Version 1 had other digests of code and objects, which depended on addresses and left out what some objects hold."""
_OF_OBJECT = 32
"""The number of digits of these digests. Those of tensors are shorter, and have never changed."""
_SHOWN = 5
_CODE = {
    "loss": "loss",
    "batch_loss": "loss of a batch",
    "collate": "collate function",
    "train": "training loop",
    "evaluate": "evaluation",
}


def identity(workload: FederatedProblem) -> dict[str, Any]:
    """The identity of a run, as JSON.

    - `loss`: its name and a digest. For a user's own function or object, the digest covers its code and its content. With a
      training loop of the user's own, there are `train` and `evaluate` instead.
    - `data`: digests of each client's examples in order, of the test data, and of the first examples after `prepare`. A client
      has no digest if its data cannot be read, or if no seed makes its random transforms repeatable.
    - `model`: the name of its class, the names and shapes of all parameters and buffers, a digest of its printed structure, and
      a digest of the values that training does not change. The trained weights are in the checkpoint.
    """
    return {
        "version": _VERSION,
        "python": _python(),
        **{name: {"name": code_name(code), "code": fingerprint(code)} for name, code in workload.code.items()},
        "data": workload.digests(),
        "model": _model(workload.module),
    }


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _model(module: nn.Module) -> dict[str, Any]:
    learnt = {*trainable(module), *sharing(module).averaged}
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        "class": type(module).__qualname__.rpartition("<locals>.")[2],
        "layout": [[name, list(value.shape)] for name, value in values.items()],
        "structure": fingerprint(re.sub("0x[0-9a-f]+", "", repr(module))),
        "fixed": tensors_digest(*(value for name, value in values.items() if name not in learnt)),
    }


def keep_identity(folder: Path, workload: FederatedProblem) -> None:
    """Save the identity of a new run in its folder."""
    replace_file(folder / IDENTITY, json.dumps(identity(workload)).encode())


def check_identity(folder: Path, workload: FederatedProblem, *, data_name: str | None) -> None:
    """Refuse to resume a run with another loss, other data or another model.

    `data_name` is the name of the data in the configuration, or None if the data was passed as objects. Runs of older versions
    have no saved identity. They are not compared, and a warning is logged.
    """
    path = folder / IDENTITY
    if not path.exists():
        log.warning(
            "the run in %s was started by a version that saved no %s, so its original loss, data and model cannot be compared "
            "with the current ones.",
            folder,
            IDENTITY,
        )
        return
    with naming_writer(folder):
        found = _differences(path, identity(workload), data_name)
    if found:
        raise InputError(
            f"the run in {folder} {' It also '.join(found)} Resume it with its original loss, data and model, or start a "
            "new run in another folder."
        )


def _differences(path: Path, now: dict[str, Any], data_name: str | None) -> list[str]:
    """The differences between the saved identity of a run and the current one, in words."""
    try:
        return differences(json.loads(path.read_bytes()), now, data_name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"{path} is damaged, so loss, data and model cannot be compared with those at the start of the run. Restore the "
            "file, or delete it to resume without this check."
        ) from error


def differences(begun: dict[str, Any], now: dict[str, Any], data_name: str | None) -> list[str]:
    """The differences between two identities, in words. Raises KeyError, TypeError and the like if one is damaged."""
    old = begun["version"] < _VERSION
    found = [*_code_differs(begun, now, old=old), *_model_differs(begun["model"], now["model"])]
    return found + _data_differs(_comparable(begun["data"], now["data"], old=old), now["data"], data_name)


def _comparable(was: dict[str, Any], now: dict[str, Any], *, old: bool) -> dict[str, Any]:
    """The saved digests of data. If they are old digests of objects, the current ones, because they cannot be compared."""
    if not old or not any(len(digest or "") == _OF_OBJECT for digest in was["clients"]):
        return was
    log.warning(
        "the run was started by an earlier version, whose digests of data differ from those of this one, so the number of "
        "clients is compared, and not their examples."
    )
    same = now["clients"] if len(was["clients"]) == len(now["clients"]) else was["clients"]
    return was | {name: now[name] for name in ("test", "client_test") if name in now} | {"clients": same}


def _code_differs(begun: dict[str, Any], now: dict[str, Any], *, old: bool) -> list[str]:
    compared = "name" if old or begun["python"] != now["python"] else "code"
    if compared == "name":
        log.warning(
            "the run was started %s, so the %s compared by name only.",
            f"with Python {begun['python']}, but this is Python {now['python']}"
            if begun["python"] != now["python"]
            else "by an earlier version, which had other digests of code",
            "loss is" if "loss" in now else "functions for training and evaluation are",
        )
    said = []
    for part, what in _CODE.items():
        was, given = begun.get(part), now.get(part)
        if was is None and given is None:
            continue
        if was is None or given is None:
            said.append(f"was started {'without' if was is None else 'with'} {what} of your own.")
        elif was[compared] != given[compared]:
            other = "another function of that name" if was["name"] == given["name"] else given["name"]
            said.append(f"was started with another {what}: it was {was['name']}, but now {other} was given.")
    return said


def _model_differs(was: dict[str, Any], given: dict[str, Any]) -> list[str]:
    if was == given:
        return []
    old, new = (dict(each["layout"]) for each in (was, given))
    if was["class"] != given["class"]:
        said = f"its class was {was['class']} and is now {given['class']}"
    elif old != new:
        said = f"it had {_listed(old, new)} and now has {_listed(new, old)}"
    elif was["structure"] != given["structure"]:
        said = "its parameters are the same, but its printed structure differs: layers or their settings changed"
    elif was["layout"] != given["layout"]:
        said = "its parameters are in another order"
    else:
        said = "values that are not trained (frozen parameters or buffers) differ, and the checkpoint does not hold them"
    return [f"was started with another model: {said}."]


def _listed(own: dict[str, list[int]], other: dict[str, list[int]]) -> str:
    different = [f"{name} {shape}" for name, shape in own.items() if other.get(name) != shape]
    return ", ".join(different[:_SHOWN]) + (" and more" if len(different) > _SHOWN else "") or "nothing else"


def _data_differs(was: dict[str, Any], given: dict[str, Any], data_name: str | None) -> list[str]:
    said = _clients_differ(was["clients"], given["clients"])
    if was["test"] != given["test"]:
        said.append("the test data differs")
    if was.get("client_test") != given.get("client_test"):
        said.append("the data on which clients are evaluated (client_test) differs")
    if was["redrawn"] != given["redrawn"]:
        how = {True: "read again in every pass", False: "read once"}
        said.append(f"Datasets were {how[was['redrawn']]} and are now {how[given['redrawn']]} (redraw)")
    if not said and None not in (was["prepared"], given["prepared"]) and was["prepared"] != given["prepared"]:
        said.append("the examples are the same, but they are prepared in another way")
    if not said:
        return []
    remedy = f" Restore what '{data_name}' loaded then: files below SKETCHFED_DATA, or its function." if data_name else ""
    return [f"was started with other data: {'; '.join(said)}.{remedy}"]


def _clients_differ(was: list[str | None], given: list[str | None]) -> list[str]:
    if len(was) != len(given):
        return [f"it had {len(was):,} clients and now has {len(given):,}"]
    other = [client for client, pair in enumerate(zip(was, given, strict=True)) if None not in pair and len(set(pair)) == 2]
    if not other:
        return []
    if sorted(map(str, was)) == sorted(map(str, given)):
        return ["these are the same clients in another order"]
    more = f" and {len(other) - _SHOWN:,} more" if len(other) > _SHOWN else ""
    return [f"client {', '.join(map(str, other[:_SHOWN]))}{more} holds other examples"]
