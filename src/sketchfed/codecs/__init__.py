"""How an update travels: n vectors to n packets to one mean."""

from sketchfed.codecs.base import Codec
from sketchfed.codecs.dense import Dense
from sketchfed.codecs.sketched import Sketched

__all__ = ["CODECS", "Codec", "Dense", "Sketched"]

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (Dense, Sketched)}
