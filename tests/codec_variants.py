"""Every registered codec, with the options that tests run it with, and vectors for it.

A new codec is there by being registered; it needs a line in OPTIONS if it needs options. One with a number of values to send
has two sizes, one with a choice of bits has 8 and 4 bits too.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Codec
from sketchfed.wire import Packet, pack, unpack

DIM, SIZE, ODD_SIZE = 96, 40, 31
SEED = PublicSeed(7)
OPTIONS: dict[str, dict[str, object]] = {"correlated": {"clients": 5}}


def variants_of(name: str) -> Iterator[tuple[str, dict[str, object]]]:
    """A codec as it is, and with other widths and sizes if it has such options."""
    defaults = {field.name: field.default for field in fields(CODECS[name])}
    options = dict(OPTIONS.get(name, {}))
    sized = {"size": SIZE} if defaults.get("size", 0) is MISSING else {}
    yield name, sized | options
    if "bits" in defaults:
        yield f"{name}, 8 bits", sized | options | {"bits": 8}
        yield f"{name}, 4 bits", {"size": ODD_SIZE} | options | {"bits": 4}
    elif "size" in defaults:
        yield f"{name}, {ODD_SIZE}", {"size": ODD_SIZE} | options


REGULAR = {variant: (name, options) for name in CODECS for variant, options in variants_of(name)}
SPATIAL = ("rand_k_spatial", "rand_proj_spatial")
VARIANTS = REGULAR | {
    **{f"dense, {half}": ("dense", {"precision": half}) for half in ("float16", "bfloat16")},
    **{f"sketched, {family}": ("sketched", {"size": 32, "family": family}) for family in ("count", "gaussian")},
    **{f"sketched, {bits} bits": ("sketched", {"size": 48, "bits": bits}) for bits in (16, 1)},
    "sketched, blocks": ("sketched", {"size": 48, "bits": 8, "options": (("block", 32),)}),
    **{f"{name}, R = {r}": (name, {"size": 24, "correlation": r}) for name in SPATIAL for r in (1.5, "avg", "current")},
    **{f"{kind} maps": ("rand_proj_spatial", {"size": 24, "ensemble": kind}) for kind in ("balanced", "sampling", "gaussian")},
    **{f"{name}, 1 bit": (name, {"size": 24, "bits": 1}) for name in SPATIAL},
    "rand_proj_spatial, R = max": ("rand_proj_spatial", {"size": 8, "correlation": "max"}),
    "rand_k_spatial, R = max": ("rand_k_spatial", {"size": SIZE, "correlation": "max"}),
    "induced, one number": ("induced", {"size": 1}),
    "wangni, all numbers": ("wangni", {"size": DIM}),
    "top_k, one bit": ("top_k", {"size": SIZE, "bits": 1}),
}

every_codec = pytest.mark.parametrize("variant", VARIANTS)


def codec_of(variant: str, **changes: object) -> Codec:
    name, options = VARIANTS[variant]
    return CODECS[name](**{"dim": DIM, **options, **changes})


def vectors(count: int = 5) -> torch.Tensor:
    """Vectors of different lengths around a common one."""
    noise = torch.randn(count + 1, DIM, generator=torch.Generator().manual_seed(1))
    return noise[0] + torch.linspace(0.1, 2, count)[:, None] * noise[1:]


def encoded(codec: Codec, x: torch.Tensor, seed: PublicSeed = SEED) -> list[Packet]:
    """The packets of a round, after they went over the wire and were checked there."""
    packets = [unpack(pack(codec.encode(row, seed, client))) for client, row in enumerate(x)]
    for client, packet in enumerate(packets):
        codec.check(packet, client, seed)
    return packets
