"""A sketch for each block of a vector's coordinates, beside coordinates that are sent as they are."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sketchfed.caches import cached
from sketchfed.codecs.rounding import Parts, from_codes, largest_step, relative_variance, to_codes
from sketchfed.codecs.sketched import SketchCodec
from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import SKETCHES, Block, DirectSum
from sketchfed.sketches.direct_sum import pieces
from sketchfed.wire import Bits, Packet, bits_named, tensor_named


@dataclass(frozen=True, kw_only=True)
class BlockedSketchCodec(SketchCodec):
    """Sends R x for a direct sum of sketches, R = R₁ ⊕ R₂ ⊕ … (`sketches.DirectSum`).

    Unbiased block by block. Unrounded, a packet is like that of one sketch: one array, the blocks after each other. With fewer
    bits, each block has levels of its own, so that a layer of small changes is not lost between the levels of another, and the
    coordinates of plain blocks stay float32.
    """

    blocks: tuple[Block, ...]

    def mse(self, total_square: float, correlation: float = 0.0) -> None:
        """None: the error depends on how much of the vectors' energy lies in which block."""

    @property
    def share(self) -> float:
        """The smallest size/dim of a sketched block."""
        return min(block.size / block.dim for block in self._sketched)

    @cached_property
    def shares(self) -> Tensor:
        return self._spread([block.size / block.dim for block in self.blocks])

    @property
    def shrinkage(self) -> float:
        """That of the block that loses most."""
        return min(map(self._shrunk, self.blocks))

    @cached_property
    def shrinkages(self) -> Tensor:
        return self._spread([self._shrunk(block) for block in self.blocks])

    def sketch(self, seed: PublicSeed) -> DirectSum:
        return _direct_sum(self.family, self.dim, self.size, seed.child("sketch"), self.blocks, self.options)

    def rounded(self, values: Tensor, *, bits: int, seed: PublicSeed) -> Parts:
        if bits == 32:
            return super().rounded(values, bits=bits, seed=seed)
        plain, codes, steps = [], [], []
        for index, (block, own) in enumerate(zip(self.blocks, pieces(values, self.blocks), strict=True)):
            if block.plain:
                plain.append(own.to(torch.float32))
                continue
            levels, step = to_codes(own, bits=bits, seed=seed.child("block", index))
            codes.append(levels)
            steps.append(step)
        arrays: dict[str, Tensor | Bits] = {"values": Bits(torch.cat(codes), bits=bits), "steps": torch.tensor(steps)}
        return Parts(arrays | ({"plain": torch.cat(plain)} if plain else {}), {})

    def numbers(self, packet: Packet, *, bits: int, seed: PublicSeed) -> Tensor:
        if bits == 32:
            return super().numbers(packet, bits=bits, seed=seed)
        sizes = [block.size for block in self._sketched]
        codes = iter(torch.split(bits_named(packet, "values", shape=(sum(sizes),), bits=bits), sizes))
        steps = iter(_steps(packet, len(sizes), largest_step(bits)))
        sizes = [block.size for block in self.blocks if block.plain]
        plain = iter(torch.split(tensor_named(packet, "plain", shape=(sum(sizes),)), sizes) if sizes else ())
        return torch.cat(
            [
                next(plain) if block.plain else from_codes(next(codes), next(steps), bits=bits, seed=seed.child("block", index))
                for index, block in enumerate(self.blocks)
            ]
        )

    @property
    def _sketched(self) -> list[Block]:
        return [block for block in self.blocks if not block.plain]

    def _shrunk(self, block: Block) -> float:
        if block.plain:
            return 1.0
        return block.size / block.dim / (1 + relative_variance(size=block.size, bits=self.bits))

    def _spread(self, each: list[float]) -> Tensor:
        """A number for each block as a number for each coordinate, `(dim,)`."""
        out = torch.empty(self.dim)
        for block, value in zip(self.blocks, each, strict=True):
            for start, stop in block.spans:
                out[start:stop] = value
        return out


def _steps(packet: Packet, count: int, most: float) -> list[float]:
    """The step of each sketched block."""
    steps: list[float] = tensor_named(packet, "steps", shape=(count,)).tolist()
    if wrong := [step for step in steps if not 0 <= step <= most]:
        raise WireError(
            f"array 'steps' of packet '{packet.kind}' should hold numbers from 0 to {most:g}, but one of them is {wrong[0]:g}."
        )
    return steps


@cached(maxsize=8)
def _direct_sum(
    family: str, dim: int, size: int, seed: PublicSeed, blocks: tuple[Block, ...], options: tuple[tuple[str, Any], ...]
) -> DirectSum:
    """All clients of a round use the same object, so its random numbers are drawn only once."""
    made = DirectSum(dim=dim, size=size, seed=seed, family=SKETCHES[family], blocks=blocks, options=options)
    made.parts  # noqa: B018 (an error of a block is raised here)
    return made
