"""A sketch that adds up neighbouring coordinates."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch.nn import functional

from sketchfed.draws import uniform
from sketchfed.sketches import Sketch


@dataclass(frozen=True, kw_only=True)
class Stripes(Sketch):
    """Number j is the sum of the j-th stripe of neighbouring coordinates, each with a random sign."""

    name = "stripes"
    summary = "sums of neighbouring coordinates, with random signs"
    source = "the tutorial"
    cost = "dim additions"
    alpha_formula = "⌈dim/size⌉ − 1"
    orthogonal = True  # no coordinate is in two stripes

    @property
    def width(self) -> int:
        """The coordinates of a stripe. The last stripes may have fewer."""
        return -(-self.dim // self.size)

    @property
    def alpha(self) -> float:
        return self.width - 1

    exact_alpha = alpha  # a vector inside a full stripe attains it

    @cached_property
    def _signs(self) -> Tensor:
        return uniform(self.seed.child("stripes"), (self.dim,), bound=1.0).sign()

    def _apply(self, x: Tensor) -> Tensor:
        signed = functional.pad(x * self._signs.to(x), (0, self.width * self.size - self.dim))
        return signed.reshape(len(x), self.size, self.width).sum(-1)

    def _adjoint(self, y: Tensor) -> Tensor:
        return y.repeat_interleave(self.width, dim=-1)[:, : self.dim] * self._signs.to(y)
