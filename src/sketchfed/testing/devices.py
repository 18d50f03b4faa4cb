"""A second device for machines that have none, to find code that would fail on a GPU.

    from sketchfed.testing import pretended

    device = pretended()                      # torch.device("pretend:0")
    model.to(device)(x.to(device))

torch treats it as any other device: it has tensors, modules, autograd and transforms of its own. The numbers lie in the memory
of the CPU and are computed there, operation by operation. As on a GPU, an operation fails if a tensor meets one that was made
on another device, and if it takes a random generator of the CPU. `.numpy()` fails too. Only `.to()`, `.cpu()` and `copy_` move
numbers between devices. It is stricter than CUDA with indices, which must be on the device of what they index.

It shows where code confuses devices. It does not show what real hardware does: other orders of summation, other precision,
missing operations, asynchronous errors, or speed.
"""

import ctypes
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as trees

from sketchfed.errors import InputError

NAME = "pretend"
_HERE, _THERE = 1, 12
"""The numbers of the CPU and of devices of other makers in DLPack."""
_MOVES = ("aten::_copy_from", "aten::_copy_from_and_resize")
"""The operations that move numbers between devices."""


class DeviceMixError(RuntimeError):
    """An operation would fail on a GPU, because what it works on is in different places."""


@cache
def pretended() -> torch.device:
    """The pretended device. torch knows it from the first call to the end of the process.

    Importing `sketchfed.testing` is such a call. It must come before the first backward pass of the process, with which torch
    starts a thread for each device. From then on, forked processes can run no backward passes: spawn them.
    """
    try:
        from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
    except ImportError:
        raise InputError(
            f"torch {torch.__version__} has no backends in Python, so no device can be pretended. Install torch 2.13."
        ) from None

    class Backend(_DummyBackendModule):
        """What torch asks a device's module for, beyond what it needs to start."""

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16]

        def get_rng_state(self, device: object = None) -> Tensor:
            return torch.get_rng_state()  # there is no generator of its own

        def set_rng_state(self, state: Tensor, device: object = None) -> None:
            """The state of the CPU's generator is put back by whoever puts this one back."""

    _setup_privateuseone_for_python_backend(NAME, Backend())
    _library.fallback(_computed, "PrivateUse1")  # type: ignore[no-untyped-call]
    # Nothing is cast to fewer bits.
    _library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # type: ignore[no-untyped-call]
    for left_open, known in _LEFT_OPEN.items():
        _aten.impl(left_open, known, "PrivateUse1")  # type: ignore[no-untyped-call]
    Tensor.__deepcopy__ = _copied  # type: ignore[method-assign]
    return torch.device(NAME, 0)


def _computed(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute one operation on the CPU's view of the same memory."""
    schema = operation._schema
    if schema.name not in _MOVES:
        for value in trees.tree_leaves((args, kwargs)):
            _check(value, schema.name)
    args = tuple(_numbered(value, argument) for value, argument in zip(args, schema.arguments, strict=False))
    here_args, here_kwargs = trees.tree_map(_here, (args, kwargs))
    if schema.name in _MOVES:
        source, target = here_args[:2]
        target.copy_(source)
        return args[1]
    written, written_here = _written(schema, args, kwargs), _written(schema, here_args, here_kwargs)
    found = operation(*here_args, **here_kwargs)
    for there, here in zip(written, written_here, strict=True):
        if there.shape != here.shape:  # an empty output, which torch has the operation enlarge
            there.data = _seen_from(here, _THERE)
    if len(written) == 1 and len(schema.returns) == 1:
        return written[0]
    return trees.tree_map(_there, found)


def _convolved_back(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    *how, wanted = rest
    sizes = [weight.shape[1] * how[-1] if how[3] else weight.shape[0]]
    return _computed(torch.ops.aten.convolution_backward.default, gradient, x, weight, sizes, *how, wanted)


_library, _aten = (torch.library.Library(name, "IMPL") for name in ("_", "aten"))  # type: ignore[no-untyped-call]
_LEFT_OPEN = {
    "clone": partial(_computed, torch.ops.aten.clone.default),
    "convolution_overrideable": partial(_computed, torch.ops.aten.convolution.default),
    "convolution_backward_overrideable": _convolved_back,
}
"""Operations that torch leaves to each device, under names of their own."""


_copied_by_torch = Tensor.__deepcopy__


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A deep copy. torch would copy the memory itself, for which it knows no allocator on this device."""
    if type(tensor) is not Tensor or tensor.device.type != NAME or not tensor.is_leaf:
        return _copied_by_torch(tensor, memo)  # type: ignore[no-any-return, no-untyped-call]
    return memo.setdefault(id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad))  # type: ignore[no-any-return]


def _check(value: Any, name: str) -> None:
    if isinstance(value, torch.Generator) and value.device.type != NAME:
        raise DeviceMixError(f"{name}: a generator on {value.device} cannot draw on {NAME}. Draw there, and move the numbers.")
    if isinstance(value, Tensor) and value.device.type != NAME and value.ndim:
        raise DeviceMixError(
            f"{name}: a tensor of shape {tuple(value.shape)} is on {value.device} and meets one on {NAME}. Move it with .to()."
        )


def _written(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes to and returns."""
    named = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    marked = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    return [named[name] for name in marked if isinstance(named.get(name), Tensor)]


def _numbered(value: Any, argument: Any) -> Any:
    """A plain number as the tensor for which torch passed it."""
    plain = isinstance(value, bool | int | float | complex) and str(argument.type) == "Tensor"
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None) if plain else value


def _here(value: Any) -> Any:
    """What an argument is for the CPU."""
    if isinstance(value, Tensor) and value.device.type == NAME:
        return _seen_from(value, _HERE) if value.numel() else torch.empty_like(value, device="cpu")  # which can be enlarged
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _there(value: Any) -> Any:
    return _seen_from(value, _THERE) if isinstance(value, Tensor) else value


def _seen_from(tensor: Tensor, kind: int) -> Tensor:
    """The same memory as a tensor of another device. DLPack exchanges tensors between libraries, and names their device."""
    plain = tensor.detach()
    marks = [undo for marked, undo in ((plain.is_conj(), torch.conj), (plain.is_neg(), torch._neg_view)) if marked]
    for undo in marks:  # a view that is computed when it is read, which DLPack does not know
        plain = undo(plain)
    capsule = torch._C._to_dlpack(plain)
    address = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor")
    ctypes.c_int32.from_address(address + ctypes.sizeof(ctypes.c_void_p)).value = kind  # the device follows the data's address
    seen: Tensor = torch._C._from_dlpack(capsule)
    for mark in marks:
        seen = mark(seen)
    return seen


ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
