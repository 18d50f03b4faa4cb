"""The tables [sketch] and [codec] of a configuration: which sketch or codec, before the model's size is known."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from sketchfed.codecs import CODECS, Codec, Sketched
from sketchfed.codecs.rounding import check_width
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.sketches import SKETCHES

DEFAULT_RATIO = 0.1
"""size/dim where neither was said."""
TOO_COARSE = "the memory of error feedback grows without end. Use sketch.bits = 2 or more."
"""Why one bit a coefficient is refused where clients keep what did not get across."""


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
        if self.ratio is not None and self.size is not None:
            raise InputError(f"sketch.ratio = {self.ratio} and sketch.size = {self.size} both say the size. Remove one.")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise InputError(f"sketch.ratio is size/dim, above 0 and at most 1, got {self.ratio}.")
        if self.size is not None and self.size < 1:
            raise InputError(f"sketch.size must be at least 1, got {self.size}.")
        check_width(self.bits)
        check_width(self.down)
        for option, value in self.options.items():
            if not isinstance(value, str | int | float):
                raise InputError(f"sketch.{option} must be a number or a text, got {value!r}.")

    @property
    def label(self) -> str:
        """Family, size and bits, in a few words."""
        if self.size is not None:
            size = f"{self.size:,}"
        else:
            ratio = DEFAULT_RATIO if self.ratio is None else self.ratio
            size = f"1/{1 / ratio:.4g}" if ratio < 1 else "1"
        bits = f" {self.bits} bits" if self.bits == self.down else f" {self.bits}/{self.down} bits"
        return f"{self.name} {size}{bits if (self.bits, self.down) != (32, 32) else ''}"

    def size_for(self, dim: int) -> int:
        """The number of coefficients for a model of `dim` parameters; a tenth unless something was said."""
        return (
            self.size if self.size is not None else max(1, round((DEFAULT_RATIO if self.ratio is None else self.ratio) * dim))
        )

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
    """Which codec carries FedAvg's updates."""

    name: str = "dense"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in CODECS:
            raise UnknownNameError("codec", self.name, CODECS)
        known = [] if self.name == "sketched" else [setting.name for setting in fields(CODECS[self.name])]
        for option in self.options:
            if option not in known or option == "dim":
                hint = " What it sends is said in [sketch]." if self.name == "sketched" else ""
                raise InputError(f"codec '{self.name}' has no option {option!r}.{hint}")

    def codec(self, dim: int, sketch: SketchSettings | None) -> Codec:
        if self.name == "sketched":
            return (sketch or SketchSettings()).codec(dim)
        return CODECS[self.name](dim=dim, **self.options)


def default_global_rate(ratio: float) -> float:
    """A global step that worked for a sketch of size/dim = ratio: min(1, c·√ratio), measured (`experiments/global-rate`).

    Theory asks for steps smaller by 1 + α ≈ dim/size (Song et al. 2023, Thm 5.1); that is for the worst case.
    """
    return min(1.0, 4.0 * math.sqrt(ratio))
