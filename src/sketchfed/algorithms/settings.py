"""The tables [sketch], [codec] and [subspace] of a configuration, before the model's size is known."""

import math
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, get_type_hints

import torch
from torch import nn

from sketchfed.algorithms.blocks import ByName
from sketchfed.algorithms.segments import Segments
from sketchfed.caches import cached
from sketchfed.codecs import CODECS, BlockedSketchCodec, Codec, Dense, JoinedCodec, SketchCodec, make_codec, option_names
from sketchfed.codecs.rounding import check_width
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.parts import short
from sketchfed.sketches import SKETCHES, Block
from sketchfed.subspaces import UPDATES, Frame, UpdateRule
from sketchfed.tables import check_keys, check_type, keys_of
from sketchfed.vectors import Layout

DEFAULT_RATIO = 0.1
"""size/dim if neither `ratio` nor `size` is given."""
DEFAULT_DIRECTIONS, DEFAULT_FREQUENCIES = 200, 60
WHOLE = "whole"
"""The name of the subspace that is all of R^dim."""


@dataclass(frozen=True, kw_only=True)
class SketchSettings:
    """Selects a sketch with `size` coefficients, or `ratio` = size/dim, and the bits per coefficient up and down."""

    name: str = "srht"
    ratio: float | None = None
    size: int | None = None
    bits: int = 32
    bits_down: int | None = None
    """Bits per coefficient in sketches that the server sends. If absent, the same as `bits`."""
    plain: list[str] | None = None
    """Patterns of names of small parameters that are [sent as they are](algorithms.md#layers-and-small-parameters), beside the
    sketch, such as `["*.bias", "*norm*"]`. `*` stands for any text."""
    blocks: str | list[str] | None = None
    """`layer` makes [a sketch for each layer](algorithms.md#layers-and-small-parameters). A list of patterns of names makes one
    for each pattern, and one for all other parameters. If absent, one sketch is for all."""
    options: dict[str, Any] = field(default_factory=dict)
    _layout: Layout | None = field(default=None, repr=False)
    """Where each parameter of the model lies. None if no setting depends on it, or if it is not known yet."""
    _segments: Segments | None = field(default=None, repr=False)
    """The parts of the vector, if there is more than parameters."""
    _device: str = field(default="cpu", repr=False, compare=False)
    """Where sketches are undone, if that gives the bits of the CPU."""

    def __post_init__(self) -> None:
        SKETCHES[self.name]  # raises an error if the name is unknown
        _check_size("sketch", self.ratio, self.size)
        check_width(self.bits)
        check_width(self.down)
        ByName.of("sketch", self.plain, self.blocks)  # raises an error for what is no pattern
        known = [option.name for option in fields(SKETCHES[self.name]) if option.name not in ("dim", "size", "seed")]
        check_keys("sketch", self.options, [*keys_of(SketchSettings), *known])
        for option, value in self.options.items():
            if not isinstance(value, str | int | float):
                raise InputError(f"sketch.{option} must be a number or text, got {value!r}.")

    @property
    def label(self) -> str:
        """Family, size and bits, in a few words."""
        bits = f" {self.bits} bits" if self.bits == self.down else f" {self.bits}/{self.down} bits"
        words = [short(self.name), _size_label(self.ratio, self.size), *self._by_name.words]
        return " ".join(words) + (bits if (self.bits, self.down) != (32, 32) else "")

    @property
    def by_name(self) -> bool:
        """Whether parameters are treated differently, by their names. The model must be known then."""
        return bool(self._by_name)

    @property
    def _by_name(self) -> ByName:
        return ByName.of("sketch", self.plain, self.blocks)

    def size_for(self, dim: int) -> int:
        """The number of values that stand for a model of `dim` parameters. The default is a tenth, beside what is plain."""
        return self.codec(dim).size if self.by_name or self._segments else _size_for(dim, self.ratio, self.size)

    def completed(self, module: nn.Module | None = None, segments: Segments | None = None) -> "SketchSettings":
        """Return a copy in which the size is given explicitly.

        With `module`, the copy knows where its parameters lie, and with `segments`, what travels beside them.
        """
        known = self if self.ratio is not None or self.size is not None else replace(self, ratio=DEFAULT_RATIO)
        if segments is not None:
            known = replace(known, _segments=segments)
        return replace(known, _layout=Layout.of(module).of_parameters) if module is not None and self.by_name else known

    def decoding_on(self, device: torch.device) -> "SketchSettings":
        """The same sketch. It is undone on a device, if that gives the bits of the CPU."""
        return replace(self, _device=str(device))

    @property
    def device(self) -> torch.device:
        """Where it is undone."""
        return torch.device(self._device)

    def check_up_only(self, algorithm: str) -> None:
        """Raise `InputError` if `bits_down` is set although the server sends no sketches."""
        if self.bits_down is not None:
            raise InputError(
                f"sketch.bits_down = {self.bits_down} has no effect: with algorithm '{algorithm}' the server sends no "
                "sketches. Remove it, or choose algorithm 'iterative'."
            )

    def check_whole(self, algorithm: str) -> None:
        """Raise `InputError` if `plain` or `blocks` is set although the algorithm cannot sketch parts of a model."""
        for setting in ("plain", "blocks"):
            if getattr(self, setting) is not None:
                raise InputError(
                    f"sketch.{setting} has no effect with algorithm '{algorithm}', which sketches in its own way. Remove it, "
                    "or use 'iterative', 'private_iterative', or 'fedavg' with codec 'sketched'."
                )

    @property
    def down(self) -> int:
        """Bits per coefficient in sketches that the server sends."""
        return self.bits if self.bits_down is None else self.bits_down

    def codec(self, dim: int) -> SketchCodec:
        """The codec that sends this sketch."""
        given: dict[str, Any] = {"family": self.name, "bits": self.bits, "options": tuple(sorted(self.options.items()))}
        given["_device"] = self._device
        parameters = dim if self._segments is None else self._segments.parameters
        blocks = self._blocks(parameters) if self.by_name else ()
        if self._segments is not None:
            whole = Block(((0, parameters),), _size_for(parameters, self.ratio, self.size))
            blocks = self._segments.extended(blocks or (whole,))
        if len(blocks) < 2:  # one sketch for everything
            return SketchCodec(dim=dim, size=_size_for(dim, self.ratio, self.size), **given)
        return BlockedSketchCodec(dim=dim, size=sum(block.size for block in blocks), blocks=blocks, **given)

    def _blocks(self, dim: int) -> tuple[Block, ...]:
        ratio = DEFAULT_RATIO if self.ratio is None else self.ratio
        return self._by_name.found_in(self._layout, dim, ratio=ratio, size=self.size)


def decoding_on(algorithm: Any, device: torch.device) -> Any:
    """An algorithm that undoes its sketches on a device, if it has sketches and if that gives the bits of the CPU."""
    sketch = getattr(algorithm, "sketch", None)
    return replace(algorithm, sketch=sketch.decoding_on(device)) if isinstance(sketch, SketchSettings) else algorithm


@dataclass(frozen=True, kw_only=True)
class CodecSettings:
    """Selects the codec for FedAvg's updates, the number of values per update (`size`, or `ratio` = size/dim), and options."""

    name: str = "dense"
    ratio: float | None = None
    size: int | None = None
    clients: int | None = None
    """The planned number of clients per round. If absent, `participation` times the number of clients."""
    plain: list[str] | None = None
    """Patterns of names of small parameters that are [sent as they are](algorithms.md#layers-and-small-parameters), such as
    `["*.bias", "*norm*"]`. For the codec 'sketched', set it in [sketch]."""
    blocks: str | list[str] | None = None
    """`layer` encodes each layer by itself, and a list of patterns each group of parameters. For the codec 'sketched', set it
    in [sketch]."""
    options: dict[str, Any] = field(default_factory=dict)
    _layout: Layout | None = field(default=None, repr=False)
    """Where each parameter of the model lies. None if no setting depends on it, or if it is not known yet."""

    def __post_init__(self) -> None:
        CODECS[self.name]  # raises an error if the name is unknown
        if self.by_name and self.name == "sketched":
            raise InputError("codec.plain and codec.blocks are in [sketch] for the codec 'sketched'. Move them there.")
        given = {key: value for key, value in (("ratio", self.ratio), ("size", self.size)) if value is not None} | self.options
        known = _known_options(self.name)
        for option in given:
            if option not in known:
                there = " Set its sketch in [sketch]." if self.name == "sketched" else f" It has {', '.join(known)}."
                raise InputError(f"codec '{self.name}' has no option {option!r}.{there}")
        _check_size("codec", self.ratio, self.size)
        hints = get_type_hints(CODECS[self.name])
        for option, value in self.options.items():
            check_type(value, hints[option], f"codec.{option}")

    @property
    def label(self) -> str:
        """The codec, its size and bits, in a few words. Empty for codecs that need no mention."""
        if self.name in ("dense", "sketched"):
            return ""
        size = f" {_size_label(self.ratio, self.size)}" if self._sends_some else ""
        bits = f" {self.options['bits']} bits" if self.options.get("bits", 32) != 32 else ""
        return " ".join([f"{short(self.name)}{size}{bits}", *self._by_name.words])

    @property
    def by_name(self) -> bool:
        """Whether parameters are treated differently, by their names. The model must be known then."""
        return bool(self._by_name)

    @property
    def _by_name(self) -> ByName:
        return ByName.of("codec", self.plain, self.blocks)

    def completed(self, clients: int | None, module: nn.Module | None = None) -> "CodecSettings":
        """Return a copy with all defaults filled in, for rounds of `clients` clients.

        With `module`, the copy knows where its parameters lie.
        """
        ratio = DEFAULT_RATIO if self._sends_some and self.ratio is None and self.size is None else self.ratio
        layout = Layout.of(module).of_parameters if module is not None and self.by_name else self._layout
        return replace(self, ratio=ratio, clients=clients if self.clients is None else self.clients, _layout=layout)

    def codec(self, dim: int, sketch: SketchSettings | None, segments: Segments | None = None) -> Codec:
        """Make the codec for updates of `dim` numbers. Only the codec 'sketched' uses `sketch`.

        If there is more than parameters, this codec encodes parameters and control variates, each by themselves.
        """
        if self.name == "sketched":
            return replace((sketch or SketchSettings()).codec(dim), clients=self.clients, **self.options)
        if segments is not None or self.by_name:
            return self._joined(dim, segments)
        return self._part(dim, _size_for(dim, self.ratio, self.size))

    def _part(self, dim: int, size: int) -> Codec:
        return _codec(self.name, dim, size if self._sends_some else None, self.clients, tuple(sorted(self.options.items())))

    def _joined(self, dim: int, segments: Segments | None) -> Codec:
        parameters = dim if segments is None else segments.parameters
        blocks: tuple[Block, ...] = (Block(((0, parameters),), _size_for(parameters, self.ratio, self.size)),)
        if self.by_name:
            ratio = DEFAULT_RATIO if self.ratio is None else self.ratio
            blocks = self._by_name.found_in(self._layout, parameters, ratio=ratio, size=self.size)
        if segments is not None:
            blocks = segments.extended(blocks)
        if len(blocks) == 1:
            return self._part(blocks[0].dim, blocks[0].size)
        plain = Dense(dim=1, clients=self.clients)
        parts = [replace(plain, dim=block.dim) if block.plain else self._part(block.dim, block.size) for block in blocks]
        if all(part == replace(plain, dim=part.dim) for part in parts):  # nothing is compressed
            return replace(plain, dim=dim)
        spans = tuple(block.spans for block in blocks)
        return JoinedCodec(dim=dim, clients=self.clients, parts=tuple(parts), spans=spans)

    @property
    def _sends_some(self) -> bool:
        """Whether a size is given or the codec requires one. Other codecs send all coordinates."""
        needed = any(setting.name == "size" and setting.default is MISSING for setting in fields(CODECS[self.name]))
        return self.ratio is not None or self.size is not None or (needed and self.name != "sketched")


@dataclass(frozen=True, kw_only=True)
class SubspaceSettings:
    """The directions in which changes are sent: their update rule, their number, and the options of the update rule."""

    name: str = "fresh"
    """An [update rule](dome.md#update-rules), or `whole` for all directions."""
    ratio: float | None = None
    size: int | None = None
    """The number of directions. 200 if neither this nor ratio = size/dim is given."""
    image: list[int] | None = None
    """Height and width of the images that are the inputs of the first layer. If given, that layer moves only along smooth
    images."""
    frequencies: int | None = None
    """The number of lowest frequencies, per channel of an image, that count as smooth. 60 if absent."""
    centre: bool = False
    """Whether the first round estimates the mean image. If so, changes of the first layer along it count only a fifth."""
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
            raise InputError(f"subspace.image must be the [height, width] of images, such as [28, 28], got {self.image}.")
        if self.frequencies is not None and (self.image is None or self.frequencies < 1):
            raise InputError(
                f"subspace.frequencies = {self.frequencies} counts the frequencies of images, so it must be at least 1. "
                "Set subspace.image = [height, width] too."
            )
        if self.centre and self.image is None:
            raise InputError(
                "subspace.centre estimates the mean image, so it must know the size of the images. Set subspace.image = "
                "[height, width] too, or remove subspace.centre and subtract the mean from the inputs yourself."
            )
        self.rule()

    @property
    def label(self) -> str:
        """The update rule and the size, in a few words."""
        size = "" if self.name == WHOLE else f" {_size_label(self.ratio, self.size or DEFAULT_DIRECTIONS)}"
        return f"{self.name}{size}{' smooth' if self.image else ''}{' centred' if self.centre else ''}"

    def rule(self) -> UpdateRule | None:
        """The update rule. None if changes are sent unchanged."""
        return None if self.name == WHOLE else UPDATES[self.name](**self.options)

    def size_for(self, dim: int) -> int:
        """The number of directions for a model of `dim` parameters. The default is 200."""
        if self.name == WHOLE:
            return dim
        return DEFAULT_DIRECTIONS if self.ratio is None and self.size is None else _size_for(dim, self.ratio, self.size)

    def frame(self, layout: Layout) -> Frame | None:
        """The part of R^dim to which changes are restricted. None unless `image` is given."""
        if self.image is None:
            return None
        return Frame.smooth(layout, image=self.image, frequencies=self.frequencies or DEFAULT_FREQUENCIES)

    def completed(self) -> "SubspaceSettings":
        """Return a copy with all defaults filled in."""
        if self.name == WHOLE or self.ratio is not None or self.size is not None:
            return replace(self, frequencies=(self.frequencies or DEFAULT_FREQUENCIES) if self.image else None)
        return replace(self, size=DEFAULT_DIRECTIONS).completed()


def _known_options(name: str) -> list[str]:
    """The keys of [codec] for a codec. For 'sketched' they are in [sketch], except `norm_bound`."""
    if name == "sketched":
        return ["norm_bound"]
    sized = any(setting.name == "size" for setting in fields(CODECS[name]))
    return (["ratio", "size"] if sized else []) + option_names(name)


@cached(maxsize=8)
def _codec(name: str, dim: int, size: int | None, clients: int | None, options: tuple[tuple[str, Any], ...]) -> Codec:
    """All clients of a round use the same object, so its results are computed only once."""
    return make_codec(name, dim=dim, size=size, clients=clients, **dict(options))


def _check_size(where: str, ratio: float | None, size: int | None) -> None:
    if ratio is not None and size is not None:
        raise InputError(f"{where}.ratio = {ratio} and {where}.size = {size} both set the size. Remove one.")
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"{where}.ratio is size/dim, so it must be above 0 and at most 1, got {ratio}.")
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
    """A global step that works for a sketch of size/dim = ratio: min(1, c·√ratio), measured (`lab/experiments/global-rate`).

    Theory requires steps smaller by a factor of 1 + α ≈ dim/size (Song et al. 2023, Thm 5.1), but that is the worst case.
    """
    return min(1.0, 4.0 * math.sqrt(ratio))
