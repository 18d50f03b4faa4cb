"""The devices on which a run trains, encodes and decodes: their names, whether they are there, and their random generators."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from sketchfed.errors import InputError

__all__ = ["CPU", "check_name", "device_named", "moved"]

CPU = torch.device("cpu")
_KNOWN = ("cpu", "cuda", "mps")
_ORDER = ("cuda", "mps")
"""What "auto" looks for, before it takes the CPU."""


def check_name(name: object, setting: str = "engine.device") -> None:
    """Raise `InputError` unless a name says a device, whether or not this machine has it."""
    named = re.fullmatch(r"([a-z]+)(:\d{1,3})?", name) if isinstance(name, str) else None
    if named is None or (named[1] not in (*_KNOWN, _own_backend()) and name != "auto"):
        raise InputError(f"{setting} must be 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps', got {name!r}.")


def device_named(name: str, setting: str = "engine.device") -> torch.device:
    """The device of this machine with a name. "auto" is a GPU if there is one. Raise `InputError` if it is not there."""
    check_name(name, setting)
    kind, _, number = name.partition(":")
    if kind == "auto":
        kind = next((each for each in _ORDER if _count(each)), "cpu")
    index = int(number or 0)
    if index >= _count(kind):
        there = [f"{kind}:{index}" for kind in (*_ORDER, _own_backend()) for index in range(_count(kind))]
        what = f"besides the CPU, it finds {', '.join(there)}" if there else "it finds only the CPU"
        raise InputError(
            f"{setting} = '{name}' is not there. This is torch {torch.__version__}, and {what}. Choose one of these, or "
            "'auto'. A GPU needs its driver, and a build of torch for it."
        )
    return CPU if kind == "cpu" else torch.device(kind, index)  # with its number, as tensors name it


def moved(value: Any, device: torch.device) -> Any:
    """A nested value with everything that can be moved on a device: tensors, and objects with a method `to`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, PackedSequence):  # a tuple whose batch sizes stay on the CPU
        return value.to(device)  # type: ignore[arg-type]
    if isinstance(value, dict):
        return type(value)({key: moved(inner, device) for key, inner in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(inner, device) for inner in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(inner, device) for inner in value)
    return value.to(device) if callable(getattr(value, "to", None)) else value


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Within the block, a GPU's own random generator draws from the seed. Afterwards it is as it was.

    The generator of the CPU is left alone.
    """
    if device.type not in _ORDER:
        yield
        return
    generator = _generator(device)
    before = generator.get_state()
    generator.manual_seed(seed % 2**63)
    try:
        yield
    finally:
        generator.set_state(before)


def drawn(device: torch.device) -> list[Tensor]:
    """The states of the generators from which code on a device draws. If it draws, they change."""
    states = [torch.get_rng_state()]
    return states if device.type not in _ORDER else [*states, _generator(device).get_state()]


def _generator(device: torch.device) -> torch.Generator:
    """The random generator that torch uses on a GPU if none is given."""
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch.cuda.default_generators[device.index]


def _count(kind: str) -> int:
    """The number of devices of a kind."""
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def _own_backend() -> str:
    """The name of the device that somebody else brought to torch, such as a pretended one."""
    return str(torch._C._get_privateuse1_backend_name())
