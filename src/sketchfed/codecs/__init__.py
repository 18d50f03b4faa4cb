"""Codecs turn the vectors of n clients into n packets, and n packets into one mean."""

from dataclasses import MISSING, fields

from sketchfed.codecs.base import Codec, check_correlation, sender
from sketchfed.codecs.blocked import BlockedSketchCodec
from sketchfed.codecs.channel import Channel
from sketchfed.codecs.correlated import Correlated
from sketchfed.codecs.dense import Dense
from sketchfed.codecs.eden import Eden
from sketchfed.codecs.ensemble_base import Ensemble
from sketchfed.codecs.ensembles import ENSEMBLES
from sketchfed.codecs.examples import correlation_of, example_vectors
from sketchfed.codecs.induced import Induced
from sketchfed.codecs.joined import JoinedCodec
from sketchfed.codecs.linear import LinearCode, LinearMap, RoundTrip
from sketchfed.codecs.qsgd import Qsgd
from sketchfed.codecs.rand_k import RandK
from sketchfed.codecs.rand_k_spatial import RandKSpatial
from sketchfed.codecs.rand_proj_spatial import RandProjSpatial
from sketchfed.codecs.rounding import Parts, from_packet, relative_variance, to_parts
from sketchfed.codecs.sign import Sign
from sketchfed.codecs.sketched import SketchCodec
from sketchfed.codecs.solver import cheaper_decoder, solve
from sketchfed.codecs.top_k import TopK
from sketchfed.codecs.trials import Trials, measure, squared_errors
from sketchfed.codecs.wangni import Wangni
from sketchfed.errors import InputError
from sketchfed.parts import Registry

__all__ = [
    "CODECS",
    "ENSEMBLES",
    "BlockedSketchCodec",
    "BudgetError",
    "Channel",
    "Codec",
    "Dense",
    "Ensemble",
    "JoinedCodec",
    "LinearCode",
    "LinearMap",
    "Parts",
    "RoundTrip",
    "SketchCodec",
    "Trials",
    "cheaper_decoder",
    "check_correlation",
    "correlation_of",
    "example_vectors",
    "fit",
    "from_packet",
    "make_codec",
    "measure",
    "packet_bytes",
    "relative_variance",
    "sender",
    "solve",
    "squared_errors",
    "to_parts",
]

_OURS: tuple[type[Codec], ...] = (
    *(Dense, SketchCodec, RandK, RandKSpatial, RandProjSpatial, TopK, Wangni, Induced, Qsgd, Sign, Eden, Correlated),
)
CODECS: Registry[type[Codec]] = Registry("codec", {codec.name: codec for codec in _OURS}, group="sketchfed.codecs", base=Codec)


def make_codec(name: str, *, dim: int, size: int | None = None, clients: int | None = None, **options: object) -> Codec:
    """Return the codec with this name, or your own codec as `package.module:Class`, for rounds of `clients` clients.

    `size` is the number of values in a packet, whatever their width in bits. `dense` sends all values and ignores `size`.

    >>> make_codec("sketched", dim=1024, size=16, clients=20).mse(total_square=20.0, correlation=19.0)
    63.0
    """
    kind = CODECS[name]
    known = option_names(name)
    for option in options:
        if option not in known:
            raise InputError(f"codec '{name}' has no option {option!r}; it has {', '.join(known) or 'none'}.")
    sizes = [field for field in fields(kind) if field.name == "size"]
    if sizes and size is None and sizes[0].default is MISSING:
        raise InputError(f"codec '{name}' sends only some of the {dim:,} numbers. Say how many: size=...")
    sized = {"size": size} if sizes and size is not None else {}
    return kind(dim=dim, clients=clients, **sized, **options)  # type: ignore[arg-type]


def option_names(name: str) -> list[str]:
    """The names of a codec's options, without dim, size and clients."""
    return [field.name for field in fields(CODECS[name]) if field.name not in ("dim", "size", "clients", "_device")]


# The budget module looks codecs up by name, so it is imported after the registry exists.
from sketchfed.codecs.budget import BudgetError, fit, packet_bytes  # noqa: E402
