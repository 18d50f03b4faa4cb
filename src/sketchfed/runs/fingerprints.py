"""Digests of Python values and of code. Equal values and equal code have equal digests. Code is inspected, not run."""

import copy
import copyreg
import dis
import logging
import random
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from threading import Lock, RLock
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sketchfed.data.generators import drawing_from
from sketchfed.data.reading import FIRST
from sketchfed.runs.reading_marks import changed_by_reading

log = logging.getLogger("sketchfed")

_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "sketchfed"}  # their code is identified by its name only
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.Size, torch.device)
_MOVING = (random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator)
"""Generators, whose state changes with every draw."""
_EMPTY = (type(Lock()), type(RLock()))
_LOADERS_OWN = {"_iterator", "_IterableDataset_len_called"}
"""What a DataLoader remembers of being read."""
_READ_AGAIN = 1_000
"""How many examples of a Dataset that changes while it is read are read for its digest."""


class Doubts(set[str]):
    """The kinds of values that digests could not cover."""

    def warn(self) -> None:
        """Name them in the log."""
        if self:
            log.warning(
                "the digests of this run's data and functions leave out what objects of type %s hold, so changes in them "
                "cannot be compared when the run is resumed. To have them compared, give their class a __getstate__ that "
                "returns what matters.",
                ", ".join(sorted(self)),
            )


def fingerprint(value: object, doubts: Doubts | None = None) -> str:
    """A digest of a value in 32 hexadecimal digits.

    The digest covers all bits of tensors and numbers, and everything that containers and objects hold: their attributes, or
    what they would give to `pickle`. Of a function, it covers the bytecode, the defaults, the closure, and the numbers and
    functions of its own module that it refers to. It does not cover a function's name, its place in a file, comments or
    docstrings, the states of random generators, and what a Dataset remembers of being read. Such a Dataset is read instead.
    Code of libraries is identified by its name only.

    Kinds of values that it cannot cover are added to `doubts`, or named in the log.
    """
    found = Doubts() if doubts is None else doubts
    digest = _Digest(found)
    digest.add(value)
    if doubts is None:
        found.warn()
    return digest.text


def data_digests(clients: Any, test: Any, client_test: Any) -> dict[str, Any]:
    """Digests of data that was passed as objects, for a run's identity."""
    doubts = Doubts()
    found = {"clients": [fingerprint(data, doubts) for data in clients], "test": fingerprint(test, doubts)}
    own = {} if client_test is None else {"client_test": [fingerprint(data, doubts) for data in client_test]}
    doubts.warn()
    return own | found | {"prepared": None, "redrawn": False}


def tensors_digest(*tensors: Tensor) -> str:
    """A digest of the types, shapes and bits of tensors, in 16 hexadecimal digits."""
    digest = blake2b(digest_size=8)
    for tensor in tensors:
        _add_tensor(digest, tensor)
    return digest.hexdigest()


def code_name(value: object) -> str:
    """The name of a function, a class or an object in messages."""
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, partial):
        return f"partial of {code_name(value.func)}"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{getattr(named, '__qualname__', '?')}"


def _add_tensor(digest: blake2b, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.numel():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


class _Digest:
    """A digest in the making."""

    def __init__(self, doubts: Doubts, seen: Mapping[int, Any] | None = None, *, in_code: bool = False) -> None:
        self._hash = blake2b(digest_size=16)
        self._seen = dict(
            seen or {}
        )  # its values are kept alive: the next object must not get the identity of one that is gone
        self._doubts, self._in_code = doubts, in_code

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        self._hash.update(f"|{type(value).__name__}:".encode())
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            self._hash.update(f"{value.dtype} ".encode() + value.tobytes())
        elif isinstance(value, _PLAIN):
            self._hash.update(repr(value).encode())
        elif isinstance(value, Tensor):
            _add_tensor(self._hash, value)
        elif isinstance(value, np.ndarray) and not _holds_objects(value):
            self._hash.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
        elif isinstance(value, bytearray | memoryview):
            self._hash.update(bytes(value))
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            with self._inside(value):
                parts = self._parts(value)
                self._hash.update(f"{len(parts)}".encode())
                for part in parts:
                    self.add(part)

    @contextmanager
    def _inside(self, value: Any) -> Iterator[None]:
        """Code refers to much that is no data, and nobody is told of what cannot be compared there."""
        before = self._in_code
        self._in_code = before or isinstance(value, type | FunctionType | ModuleType)
        try:
            yield
        finally:
            self._in_code = before

    def _parts(self, value: Any) -> list[Any]:
        """The parts of a value that its digest covers."""
        if isinstance(value, np.ndarray | np.void):
            return [str(value.dtype), list(value.shape), value.tolist()]
        if isinstance(value, tuple | list):
            return list(value)
        if isinstance(value, Mapping):
            return [pair for item in value.items() for pair in item]
        if isinstance(value, Set):
            return sorted(map(self._apart, value))
        if isinstance(value, partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, CodeType):
            return [value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_consts]
        if isinstance(value, type | FunctionType | BuiltinFunctionType | ModuleType) and _from_library(value):
            return [code_name(value) if not isinstance(value, ModuleType) else value.__name__]
        if isinstance(value, FunctionType):
            return _parts_of_function(value)
        if isinstance(value, type):
            members = {name: _unwrapped(part) for name, part in sorted(vars(value).items()) if name not in _NAMES}
            covered = {name: part for name, part in members.items() if isinstance(part, (FunctionType, *_PLAIN))}
            return [value.__bases__, covered]
        if isinstance(value, nn.Module):
            own = {name: part for name, part in sorted(vars(value).items()) if not name.startswith("_")}
            return [type(value), own, dict(value.named_children()), dict(value.state_dict())]
        if isinstance(value, (*_MOVING, *_EMPTY)):
            return [code_name(value)]
        return [type(value), *self._parts_of_object(value)]

    def _apart(self, value: Any) -> str:
        """The digest of a member of a set, whatever the other members are."""
        digest = _Digest(self._doubts, self._seen, in_code=self._in_code)
        digest.add(value)
        return digest.text

    def _parts_of_object(self, value: Any) -> list[Any]:
        """What an object says of itself, or else its attributes."""
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except Exception:  # of an object that cannot be pickled, such as an open file
            return [getattr(value, "__dict__", {}), *self._left_out(value)]
        if reducer is None and _says_nothing(type(value)):
            return self._parts_of_attributes(value, {**_slots(value), **getattr(value, "__dict__", {})})
        if isinstance(reduced, str):
            return [reduced, getattr(value, "__dict__", {})]
        made, arguments, *rest = reduced
        state, items, pairs = (*rest, None, None, None)[:3]
        return [made, arguments, state, *(None if each is None else list(each) for each in (items, pairs))]

    def _parts_of_attributes(self, value: Any, own: dict[str, Any]) -> list[Any]:
        """The attributes that do not change while an object is read, and what is read if there are others."""
        marks = _LOADERS_OWN if isinstance(value, DataLoader) else changed_by_reading(type(value)) & own.keys()  # type: ignore[arg-type]
        kept = dict(sorted((name, part) for name, part in own.items() if name not in marks))
        if isinstance(value, DataLoader) or not marks or not hasattr(value, "__len__"):
            return [kept]
        try:
            return [kept, self._read(value, own, marks)]
        except Exception:  # of the Dataset's own
            return [kept, *self._left_out(value)]

    def _read(self, value: Any, own: Mapping[str, Any], marks: Set[str]) -> list[str]:
        """Digests of what is read from a copy, so that no cache is filled and no file is opened."""
        digests = []
        for _ in range(2):
            twin = copy.copy(value)
            for name in marks:
                object.__setattr__(twin, name, copy.copy(own[name]) if isinstance(own[name], _CONTAINERS) else own[name])
            with drawing_from(FIRST.child("digest"), twin):
                count = len(twin)
                places = range(0, count, max(1, -(-count // _READ_AGAIN)))
                digests.append([self._apart(twin[place]) for place in places])
        return digests[0] if digests[0] == digests[1] else self._left_out(value)

    def _left_out(self, value: Any) -> list[str]:
        if not self._in_code:
            self._doubts.add(code_name(type(value)))
        return ["left out"]


_NAMES = {"__module__", "__qualname__", "__doc__", "__firstlineno__"}
_CONTAINERS = (list, dict, set, bytearray)


def _holds_objects(array: np.ndarray[Any, Any]) -> bool:
    """Whether the bytes of an array are addresses."""
    return bool(array.dtype.hasobject) or array.dtype.kind == "T"


def _says_nothing(kind: type) -> bool:
    """Whether a class leaves it to Python to find what its objects hold."""
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    return all(getattr(kind, name) is getattr(object, name) for name in names)


def _slots(value: Any) -> dict[str, Any]:
    names = [name for kind in type(value).__mro__ for name in _listed(vars(kind).get("__slots__", ()))]
    return {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _unwrapped(member: Any) -> Any:
    """The function inside a static method, a class method or a property."""
    return getattr(member, "__func__", None) or getattr(member, "fget", None) or member


def _parts_of_function(function: FunctionType) -> list[Any]:
    code = function.__code__
    if function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,):
        code = code.replace(co_consts=(None, *code.co_consts[1:]))
    closed = [_content(cell) for cell in function.__closure__ or ()]
    known = function.__globals__
    referred = [known[name] for name in _names(code) if name in known and _counts(known[name], function.__module__)]
    return [code, function.__defaults__, function.__kwdefaults__, closed, referred]


def _names(code: CodeType) -> list[str]:
    """The global names that code refers to."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return sorted({*own, *inner})


def _counts(value: object, module: str) -> bool:
    """Whether the digest of a function covers this global value of its module."""
    if isinstance(value, FunctionType | type):
        return value.__module__ == module
    return isinstance(value, (*_PLAIN, Tensor, np.ndarray, np.generic, tuple, list, dict))


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return "empty"


def _from_library(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if module is None:  # a Python function without a module is the user's own; a function written in C has no bytecode
        return not isinstance(value, FunctionType)
    return module.partition(".")[0] in _LIBRARIES and module != "__main__"
