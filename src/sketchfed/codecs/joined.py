"""Several codecs, each for its own part of a vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sketchfed.codecs.base import Codec
from sketchfed.codecs.linear import LinearCode
from sketchfed.codecs.rounding import Parts
from sketchfed.errors import WireError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Block
from sketchfed.wire import Bits, Packet, expect_kind, tensor_named

_OF_THE_WHOLE = ("client", "dim")
"""Scalars that only the packet as a whole has."""


@dataclass(frozen=True, kw_only=True)
class JoinedMap:
    """Linear maps side by side, each of its own coordinates."""

    codes: tuple[LinearCode, ...]
    blocks: tuple[Block, ...]
    dim: int

    def apply(self, x: Tensor) -> Tensor:
        """Map vectors `(..., dim)` to `(..., size)`."""
        return torch.cat([code.apply(block.taken(x)) for code, block in zip(self.codes, self.blocks, strict=True)], dim=-1)

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(..., size)` to `(..., dim)`."""
        out = y.new_zeros(*y.shape[:-1], self.dim)
        for code, block, own in zip(self.codes, self.blocks, self.split(y), strict=True):
            block.put(code.adjoint(own), out)
        return out

    def split(self, values: Tensor) -> list[Tensor]:
        """The numbers of each code."""
        ends = list(accumulate((code.size for code in self.codes), initial=0))
        return [values[..., start:stop] for start, stop in pairwise(ends)]


@dataclass(frozen=True, kw_only=True)
class JoinedCodec(Codec):
    """Encodes each part of a vector by a codec of its own. A packet holds the contents of the parts' packets.

    The names of a part's arrays and scalars begin with `p`, its number and a dot. Packets of codecs that can be added hold one
    array of all numbers instead.
    """

    parts: tuple[Codec, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]
    """The coordinates of each part."""

    name = "joined"
    summary = "several codecs, each for its own part"
    source = "here"

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return all(part.unbiased for part in self.parts)

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return any(part.personal for part in self.parts)

    @property
    def shares_dice(self) -> bool:  # type: ignore[override]
        return any(part.shares_dice for part in self.parts)

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return any(part.joint for part in self.parts)

    @property
    def spreads(self) -> bool:  # type: ignore[override]
        return all(part.spreads for part in self.parts)

    @property
    def anywhere(self) -> bool:  # type: ignore[override]
        """Each part moves what it cannot take where it is."""
        return True

    @property
    def shrinkage(self) -> float:
        """That of the part that loses most."""
        return min(part.shrinkage for part in self.parts)

    @cached_property
    def shrinkages(self) -> Tensor:
        out = torch.empty(self.dim)
        for part, block in zip(self.parts, self._blocks, strict=True):
            block.put(torch.as_tensor(part.shrinkages).expand(block.dim), out)
        return out

    def linear(self, seed: PublicSeed, client: int = 0) -> LinearCode | None:
        codes = [part.linear(self._seed(seed, index), client) for index, part in enumerate(self.parts)]
        known = tuple(code for code in codes if code is not None)
        if len(known) < len(codes):
            return None
        joined = JoinedMap(codes=known, blocks=self._blocks, dim=self.dim)
        shared, exact = all(code.shared for code in known), all(code.exact for code in known)
        return LinearCode(
            kind=self.name,
            shape=(sum(code.size for code in known),),
            map=joined,
            shared=shared,
            exact=exact,
            orthonormal=all(code.map is None or code.orthonormal for code in known),
            anywhere=all(code.map is None or code.anywhere for code in known),
            reader=None if shared and exact else lambda packet: self._numbers(packet, known, seed),
        )

    def norm(self, packet: Packet, seed: PublicSeed) -> float:
        inner = [self._inner(packet, index, seed) for index in range(len(self.parts))]
        seeds = [self._seed(seed, index) for index in range(len(self.parts))]
        norms = [part.norm(own, each) for part, own, each in zip(self.parts, inner, seeds, strict=True)]
        return float(torch.tensor(norms, dtype=torch.float64).norm())

    def learn(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None = None) -> Tensor | None:
        """What the parts learn, one after the other. Each of them learns one number."""
        known, learnt = self._known(knowledge), []
        for index, part in enumerate(self.parts):
            if type(part).learn is not Codec.learn:
                own = [self._inner(packet, index, seed) for packet in packets]
                learnt.append(part.learn(own, self._seed(seed, index), known[index]))
        found = [part for part in learnt if part is not None]
        return torch.cat(found) if found and len(found) == len(learnt) else knowledge

    def _known(self, knowledge: Tensor | None) -> list[Tensor | None]:
        """What each part learnt in the last round."""
        learners = [index for index, part in enumerate(self.parts) if type(part).learn is not Codec.learn]
        known: list[Tensor | None] = [None] * len(self.parts)
        if knowledge is not None and len(knowledge) == len(learners):
            for index, own in zip(learners, torch.split(knowledge, 1), strict=True):
                known[index] = own
        return known

    def last(self, packet: Packet, seed: PublicSeed) -> float:
        """The last number of the last part, which must be sent as it is."""
        inner = self._inner(packet, len(self.parts) - 1, seed)
        return float(tensor_named(inner, "values", shape=(self._blocks[-1].dim,))[-1])

    def _encode(self, x: Tensor, seed: PublicSeed, client: int) -> Parts:
        if (code := self.linear(seed, client)) is not None and code.additive:
            return Parts({"values": code.apply(x.to(torch.float32))}, {})
        arrays: dict[str, Tensor | Bits] = {}
        scalars: dict[str, float] = {}
        for index, (part, block) in enumerate(zip(self.parts, self._blocks, strict=True)):
            packet = part.encode(block.taken(x).contiguous(), self._seed(seed, index), client)
            arrays |= {f"{_prefix(index)}{name}": array for name, array in packet.arrays.items()}
            own = {name: value for name, value in packet.scalars.items() if name not in _OF_THE_WHOLE}
            scalars |= {f"{_prefix(index)}{name}": value for name, value in own.items()}  # type: ignore[misc]
        return Parts(arrays, scalars)

    def _decode(self, packets: Sequence[Packet], seed: PublicSeed, knowledge: Tensor | None) -> Tensor:
        out, known = torch.empty(self.dim), self._known(knowledge)
        for index, (part, block) in enumerate(zip(self.parts, self._blocks, strict=True)):
            own = [self._inner(packet, index, seed) for packet in packets]
            block.put(part.decode(own, self._seed(seed, index), known[index]), out)
        return out

    def _inner(self, packet: Packet, index: int, seed: PublicSeed) -> Packet:
        """The packet of one part."""
        expect_kind(packet, self.name)
        part, own = self.parts[index], self._seed(seed, index)
        code = self.linear(seed)
        if code is not None and code.additive and isinstance(code.map, JoinedMap):
            values = code.map.split(tensor_named(packet, "values", shape=code.shape))[index]
            return code.map.codes[index].packet(values, clients=packet.clients)
        if packet.clients > 1:
            raise WireError(
                f"a packet stands for {packet.clients:,} clients, but packets of codec '{part.name}' cannot be added."
            )
        start = _prefix(index)
        arrays = {name.removeprefix(start): array for name, array in packet.arrays.items() if name.startswith(start)}
        scalars = {name.removeprefix(start): value for name, value in packet.scalars.items() if name.startswith(start)}
        scalars = {name: value for name, value in scalars.items() if name not in _OF_THE_WHOLE}  # a lie about them stops rounds
        client = {"client": packet.scalars["client"]} if part.personal and "client" in packet.scalars else {}
        return Packet(kind=part.name, arrays=arrays, seed=own, scalars={**scalars, **client})

    def _numbers(self, packet: Packet, codes: Sequence[LinearCode], seed: PublicSeed) -> Tensor:
        inner = [self._inner(packet, index, seed) for index in range(len(self.parts))]
        return torch.cat([code.values(own) for code, own in zip(codes, inner, strict=True)])

    @cached_property
    def _blocks(self) -> tuple[Block, ...]:
        return tuple(Block(spans, part.dim) for part, spans in zip(self.parts, self.spans, strict=True))

    def _seed(self, seed: PublicSeed, index: int) -> PublicSeed:
        """The seed of a part. The first one has the seed of the round, as if it were alone."""
        return seed if index == 0 else seed.child("part", index)


def _prefix(index: int) -> str:
    return f"p{index}."
