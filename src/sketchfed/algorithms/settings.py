"""The tables [sketch] and [codec] of a configuration: which sketch or codec, before the model's size is known."""

import math
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, get_type_hints

from sketchfed.codecs import CODECS, Codec, Sketched, make_codec, option_names
from sketchfed.codecs.rounding import check_width
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.sketches import SKETCHES
from sketchfed.subspaces import UPDATES, Frame, UpdateRule
from sketchfed.tables import check_keys, check_type
from sketchfed.vectors import Layout

DEFAULT_RATIO = 0.1
"""size/dim where neither was said."""
DEFAULT_DIRECTIONS, DEFAULT_FREQUENCIES = 200, 60
WHOLE = "whole"
"""The name of the subspace that is all of R^dim."""


@dataclass(frozen=True, kw_only=True)
class SketchSettings:
    """Which sketch: `size` coefficients, or `ratio` = size/dim, each with so many bits up and down."""

    name: str = "srht"
    ratio: float | None = None
    size: int | None = None
    bits: int = 32
    bits_down: int | None = None
    """Bits a coefficient on the way down, where sketches travel down; the same as up if absent."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in SKETCHES:
            raise UnknownNameError("sketch", self.name, SKETCHES)
        _check_size("sketch", self.ratio, self.size)
        check_width(self.bits)
        check_width(self.down)
        for option, value in self.options.items():
            if not isinstance(value, str | int | float):
                raise InputError(f"sketch.{option} must be a number or a text, got {value!r}.")

    @property
    def label(self) -> str:
        """Family, size and bits, in a few words."""
        bits = f" {self.bits} bits" if self.bits == self.down else f" {self.bits}/{self.down} bits"
        return f"{self.name} {_size_label(self.ratio, self.size)}{bits if (self.bits, self.down) != (32, 32) else ''}"

    def size_for(self, dim: int) -> int:
        """The number of coefficients for a model of `dim` parameters; a tenth unless something was said."""
        return _size_for(dim, self.ratio, self.size)

    @property
    def down(self) -> int:
        """Bits a coefficient on the way down."""
        return self.bits if self.bits_down is None else self.bits_down

    def codec(self, dim: int) -> Sketched:
        """The codec that sends this sketch."""
        options = tuple(sorted(self.options.items()))
        return Sketched(dim=dim, size=self.size_for(dim), family=self.name, bits=self.bits, options=options)


@dataclass(frozen=True, kw_only=True)
class CodecSettings:
    """Which codec carries FedAvg's updates: `size` numbers each, or `ratio` = size/dim, and whatever options that codec has."""

    name: str = "dense"
    ratio: float | None = None
    size: int | None = None
    clients: int | None = None
    """How many clients a round is planned with; `participation` of all of them if absent."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in CODECS:
            raise UnknownNameError("codec", self.name, CODECS)
        given = {key: value for key, value in (("ratio", self.ratio), ("size", self.size)) if value is not None} | self.options
        known = _known_options(self.name)
        for option in given:
            if option not in known:
                there = " What it sends is said in [sketch]." if self.name == "sketched" else f" It has {', '.join(known)}."
                raise InputError(f"codec '{self.name}' has no option {option!r}.{there}")
        _check_size("codec", self.ratio, self.size)
        hints = get_type_hints(CODECS[self.name])
        for option, value in self.options.items():
            check_type(value, hints[option], f"codec.{option}")

    @property
    def label(self) -> str:
        """The codec, its size and bits, in a few words; nothing for what needs no word."""
        if self.name in ("dense", "sketched"):
            return ""
        size = f" {_size_label(self.ratio, self.size)}" if self._sends_some else ""
        bits = f" {self.options['bits']} bits" if self.options.get("bits", 32) != 32 else ""
        return f"{self.name}{size}{bits}"

    def completed(self, clients: int | None) -> "CodecSettings":
        """The same with what was not said filled in; a round is planned with so many clients."""
        ratio = DEFAULT_RATIO if self._sends_some and self.ratio is None and self.size is None else self.ratio
        return replace(self, ratio=ratio, clients=clients if self.clients is None else self.clients)

    def codec(self, dim: int, sketch: SketchSettings | None) -> Codec:
        """The codec for updates of `dim` numbers; `sketch` is for the codec 'sketched'."""
        if self.name == "sketched":
            return replace((sketch or SketchSettings()).codec(dim), clients=self.clients, **self.options)
        size = _size_for(dim, self.ratio, self.size) if self._sends_some else None
        return _codec(self.name, dim, size, self.clients, tuple(sorted(self.options.items())))

    @property
    def _sends_some(self) -> bool:
        """Whether a size was asked for, or the codec cannot do without one; others send all coordinates."""
        needed = any(setting.name == "size" and setting.default is MISSING for setting in fields(CODECS[self.name]))
        return self.ratio is not None or self.size is not None or (needed and self.name != "sketched")


@dataclass(frozen=True, kw_only=True)
class SubspaceSettings:
    """In which directions changes are sent: how they are updated, how many they are, and the options of that update rule."""

    name: str = "fresh"
    """An [update rule](dome.md#update-rules), or `whole` for all directions."""
    ratio: float | None = None
    size: int | None = None
    """How many directions; 200 if neither this nor ratio = size/dim is said."""
    image: list[int] | None = None
    """Height and width of the images whose pixels are the inputs of the first layer: that moves along smooth ones only."""
    frequencies: int | None = None
    """How many of the lowest frequencies of an image, a channel, count as smooth; 60 if absent."""
    centre: bool = False
    """Whether the first round asks for the mean image, and the first layer's changes along it count a fifth from then on."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in (known := [*UPDATES, WHOLE]):
            raise UnknownNameError("update rule", self.name, known)
        whole = self.name == WHOLE
        own = ["name", "image", "frequencies", "centre", *([] if whole else ["ratio", "size"])]
        options = {} if whole else {option.name: option for option in fields(UPDATES[self.name])}
        given = [key for key in ("ratio", "size") if getattr(self, key) is not None] + list(self.options)
        check_keys("subspace", given, [*own, *options])
        for option, value in self.options.items():
            check_type(value, get_type_hints(UPDATES[self.name])[option], f"subspace.{option}")
        _check_size("subspace", self.ratio, self.size)
        if self.image is not None and (len(self.image) != 2 or min(self.image) < 1):
            raise InputError(f"subspace.image is [height, width] of images, such as [28, 28], got {self.image}.")
        if self.frequencies is not None and (self.image is None or self.frequencies < 1):
            raise InputError(
                f"subspace.frequencies = {self.frequencies} is a number of frequencies of images, at least 1. "
                "Say subspace.image = [height, width] too."
            )
        if self.centre and self.image is None:
            raise InputError(
                "subspace.centre asks for the mean image, in frequencies of images of a known size. Say subspace.image = "
                "[height, width] too, or remove subspace.centre and subtract the mean from the inputs yourself."
            )
        self.rule()

    @property
    def label(self) -> str:
        """The rule and the size, in a few words."""
        size = "" if self.name == WHOLE else f" {_size_label(self.ratio, self.size or DEFAULT_DIRECTIONS)}"
        return f"{self.name}{size}{' smooth' if self.image else ''}{' centred' if self.centre else ''}"

    def rule(self) -> UpdateRule | None:
        """None where changes are sent as they are."""
        return None if self.name == WHOLE else UPDATES[self.name](**self.options)

    def size_for(self, dim: int) -> int:
        """The number of directions of `dim` that there are; 200 unless something was said."""
        if self.name == WHOLE:
            return dim
        return DEFAULT_DIRECTIONS if self.ratio is None and self.size is None else _size_for(dim, self.ratio, self.size)

    def frame(self, layout: Layout) -> Frame | None:
        """To which part of R^dim changes are confined, where images were said to go in."""
        if self.image is None:
            return None
        return Frame.smooth(layout, image=self.image, frequencies=self.frequencies or DEFAULT_FREQUENCIES)

    def completed(self) -> "SubspaceSettings":
        """The same with what was not said filled in."""
        if self.name == WHOLE or self.ratio is not None or self.size is not None:
            return replace(self, frequencies=(self.frequencies or DEFAULT_FREQUENCIES) if self.image else None)
        return replace(self, size=DEFAULT_DIRECTIONS).completed()


def _known_options(name: str) -> list[str]:
    """The keys of [codec] for a codec; those of 'sketched' are in [sketch], but for the bound on what it sends."""
    if name == "sketched":
        return ["norm_bound"]
    sized = any(setting.name == "size" for setting in fields(CODECS[name]))
    return (["ratio", "size"] if sized else []) + option_names(name)


@lru_cache(maxsize=8)
def _codec(name: str, dim: int, size: int | None, clients: int | None, options: tuple[tuple[str, Any], ...]) -> Codec:
    """All clients of a round use one object, so what it computes is computed once."""
    return make_codec(name, dim=dim, size=size, clients=clients, **dict(options))


def _check_size(where: str, ratio: float | None, size: int | None) -> None:
    if ratio is not None and size is not None:
        raise InputError(f"{where}.ratio = {ratio} and {where}.size = {size} both say the size. Remove one.")
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"{where}.ratio is size/dim, above 0 and at most 1, got {ratio}.")
    if size is not None and size < 1:
        raise InputError(f"{where}.size must be at least 1, got {size}.")


def _size_for(dim: int, ratio: float | None, size: int | None) -> int:
    return size if size is not None else max(1, round((DEFAULT_RATIO if ratio is None else ratio) * dim))


def _size_label(ratio: float | None, size: int | None) -> str:
    if size is not None:
        return f"{size:,}"
    ratio = DEFAULT_RATIO if ratio is None else ratio
    return f"1/{1 / ratio:.4g}" if ratio < 1 else "1"


def default_global_rate(ratio: float) -> float:
    """A global step that worked for a sketch of size/dim = ratio: min(1, c·√ratio), measured (`experiments/global-rate`).

    Theory asks for steps smaller by 1 + α ≈ dim/size (Song et al. 2023, Thm 5.1); that is for the worst case.
    """
    return min(1.0, 4.0 * math.sqrt(ratio))
