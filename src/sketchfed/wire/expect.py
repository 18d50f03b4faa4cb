"""What a receiver expects of a packet, checked before use: kinds, names, dtypes, shapes and ranges."""

import math

import torch
from torch import Tensor

from sketchfed.errors import WireError
from sketchfed.wire.arrays import Bits, Spec
from sketchfed.wire.packet import Packet


def expect_kind(packet: Packet, kind: str) -> Packet:
    if packet.kind != kind:
        raise WireError(f"a packet of kind '{kind}' was expected, '{packet.kind}' arrived.")
    return packet


def tensor_named(packet: Packet, name: str, *, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """The plain array of that name, which must have this dtype and shape."""
    array = packet.arrays.get(name)
    if not isinstance(array, Tensor) or array.dtype != dtype or tuple(array.shape) != shape:
        raise WireError(f"{_wanted(packet, name)} of {str(dtype).removeprefix('torch.')}{list(shape)}, {_found(array)}.")
    return array


def bits_named(packet: Packet, name: str, *, shape: tuple[int, ...], bits: int, signed: bool = False) -> Tensor:
    """The packed integers of that name, expanded to int64; their width, sign and shape must be these."""
    array = packet.arrays.get(name)
    if not isinstance(array, Bits) or (array.bits, array.signed, array.shape) != (bits, signed, shape):
        raise WireError(f"{_wanted(packet, name)} of {bits}-bit{list(shape)}, {_found(array)}.")
    return array.values


def number_named(packet: Packet, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """The scalar of that name, an integer or a float within bounds."""
    value = packet.scalars.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise WireError(
            f"packet '{packet.kind}' should carry a number '{name}' from {least:g} to {most:g}, "
            f"{'it is missing' if value is None else f'it is {value!r}'}."
        )
    return value


def _wanted(packet: Packet, name: str) -> str:
    return f"packet '{packet.kind}' should carry an array '{name}'"


def _found(array: Tensor | Bits | None) -> str:
    return "it is missing" if array is None else f"it is {Spec.of(array)}"
