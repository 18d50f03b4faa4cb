"""Digests of Python values and of code. Equal values and equal code have equal digests. The code is inspected, not run."""

import sys
from collections.abc import Mapping, Set
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "sketchfed"}  # their code is identified by its name only
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.Size, torch.device)


def fingerprint(value: object) -> str:
    """A digest of a value in 32 hexadecimal digits.

    The digest covers all bits of tensors and numbers, and everything that containers and objects hold. Of a function, it covers
    the bytecode, the defaults, the closure, and the numbers and functions of its own module that it refers to. It does not
    cover a function's name, its place in a file, comments or docstrings. Code of libraries is identified by its name only.
    """
    digest = blake2b(digest_size=16)
    _add(digest, value, {})
    return digest.hexdigest()


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
    if tensor.numel():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _add(digest: blake2b, value: Any, seen: dict[int, Any]) -> None:
    digest.update(f"|{type(value).__name__}:".encode())
    if isinstance(value, _PLAIN):
        digest.update(repr(value).encode())
        return
    if isinstance(value, Tensor):
        return _add_tensor(digest, value)
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive: the next object must not get the identity of one that is gone
    for part in _parts(value):
        _add(digest, part, seen)


def _parts(value: Any) -> list[Any]:
    """The parts of a value that its digest covers."""
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, Mapping):
        return [pair for item in value.items() for pair in item]
    if isinstance(value, Set):
        return sorted(map(repr, value))
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
        return [value.__bases__, {name: part for name, part in members.items() if isinstance(part, (FunctionType, *_PLAIN))}]
    if isinstance(value, nn.Module):
        own = {name: part for name, part in sorted(vars(value).items()) if not name.startswith("_")}
        return [type(value), own, dict(value.named_children()), dict(value.state_dict())]
    return [type(value), dict(sorted(getattr(value, "__dict__", {}).items()))]


_NAMES = {"__module__", "__qualname__", "__doc__", "__firstlineno__"}


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
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return sorted({*code.co_names, *inner})


def _counts(value: object, module: str) -> bool:
    """Whether the digest of a function covers this global value of its module."""
    if isinstance(value, FunctionType | type):
        return value.__module__ == module
    return isinstance(value, (*_PLAIN, Tensor, np.ndarray, tuple, list, dict))


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
