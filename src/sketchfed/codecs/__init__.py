"""How an update travels: n vectors to n packets to one mean."""

from dataclasses import MISSING, fields

from sketchfed.codecs.base import Codec
from sketchfed.codecs.channel import Channel
from sketchfed.codecs.correlated import Correlated
from sketchfed.codecs.dense import Dense
from sketchfed.codecs.eden import Eden
from sketchfed.codecs.induced import Induced
from sketchfed.codecs.qsgd import Qsgd
from sketchfed.codecs.rand_k import RandK
from sketchfed.codecs.rand_k_spatial import RandKSpatial
from sketchfed.codecs.rand_proj_spatial import RandProjSpatial
from sketchfed.codecs.sign import Sign
from sketchfed.codecs.sketched import Sketched
from sketchfed.codecs.top_k import TopK
from sketchfed.codecs.wangni import Wangni
from sketchfed.errors import InputError, UnknownNameError

__all__ = ["CODECS", "Channel", "Codec", "Dense", "Sketched", "make_codec"]

CODECS: dict[str, type[Codec]] = {
    codec.name: codec
    for codec in (
        Dense,
        Sketched,
        RandK,
        RandKSpatial,
        RandProjSpatial,
        TopK,
        Wangni,
        Induced,
        Qsgd,
        Sign,
        Eden,
        Correlated,
    )
}


def make_codec(name: str, *, dim: int, size: int | None = None, clients: int | None = None, **options: object) -> Codec:
    """The codec of that name: `size` numbers a client, for rounds of so many clients.

    `size` is how many numbers a packet carries, whatever their width; `dense` sends all and takes no notice of it.

    >>> make_codec("sketched", dim=1024, size=16, clients=20).mse(total_square=20.0, correlation=19.0)
    63.0
    """
    if not isinstance(name, str) or name not in CODECS:
        raise UnknownNameError("codec", name, CODECS)
    kind = CODECS[name]
    known = option_names(name)
    for option in options:
        if option not in known:
            raise InputError(f"codec '{name}' has no option {option!r}; it has {', '.join(known) or 'none'}.")
    sizes = [field for field in fields(kind) if field.name == "size"]
    if sizes and size is None and sizes[0].default is MISSING:
        raise InputError(f"codec '{name}' sends some of the {dim:,} numbers; say how many: size=...")
    sized = {"size": size} if sizes and size is not None else {}
    return kind(dim=dim, clients=clients, **sized, **options)  # type: ignore[arg-type]


def option_names(name: str) -> list[str]:
    """The options of a codec beside dim, size and clients."""
    return [field.name for field in fields(CODECS[name]) if field.name not in ("dim", "size", "clients")]
