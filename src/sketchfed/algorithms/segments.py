"""The parts of the vector that clients and the server exchange: a model's parameters, and what travels beside them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchfed.algorithms.state import RoundContext
from sketchfed.codecs import Codec, JoinedCodec
from sketchfed.errors import DivergedError, UnresolvedError, WireError
from sketchfed.sketches import Block
from sketchfed.sketches.direct_sum import Span
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The lengths of the parts, in their order, and how a round moves each of them.

    - Parameters move by a global step of the mean change.
    - Buffers become the mean of the clients' buffers. Variances among them do not fall below zero, whatever a client sends.
    - Control variates (SCAFFOLD) move by the mean change, times the share of all clients whose changes arrived.
    - The weight is 0 between rounds. In a change it is the client's weight, by which the rest of its change was multiplied. So
      the mean change of all clients, divided by the mean weight, is the weighted mean.
    """

    parameters: int
    buffers: int = 0
    control: int = 0
    weight: int = 0
    variances: tuple[Span, ...] = ()
    """Where running variances lie among the buffers."""
    population: int | None = None
    """The number of all clients. None if it is not known yet."""
    gain: float = 1.0
    """The factor with which control variates and FedDyn's gradients follow decoded changes. Below 1 if decoding adds noise."""
    clip: float | None = None
    """The largest norm of what a client sends, in its code. None if nothing is clipped."""
    scale: float = 1.0
    """What stands for a weight of 1."""
    least: float = 0.0
    """The smallest mean weight by which a change is divided, times `scale`."""
    unchecked: bool = False
    """Whether weights arrive with noise or in secure sums. They can then be out of range, and nobody can refuse one."""

    @property
    def dim(self) -> int:
        """The length of the whole vector."""
        return self.parameters + self.buffers + self.control + self.weight

    @property
    def model(self) -> int:
        """The length of the first part, which is what a module shares: parameters and buffers."""
        return self.parameters + self.buffers

    @property
    def control_span(self) -> Span:
        """Where the control variates lie."""
        return self.model, self.model + self.control

    @property
    def coded(self) -> tuple[Span, ...]:
        """The parts that are compressed, each by itself."""
        return ((0, self.parameters), *((self.control_span,) if self.control else ()))

    @property
    def plain(self) -> tuple[Span, ...]:
        """The parts that are sent as they are."""
        spans = ((self.parameters, self.model), (self.dim - self.weight, self.dim))
        return tuple(span for span in spans if span[0] < span[1])

    def extended(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The blocks of the whole vector, from those of the parameters. Control variates have blocks of the same sizes."""
        made, start = list(blocks), self.control_span[0]
        if self.control:
            made += [Block(tuple((a + start, b + start) for a, b in block.spans), block.size, block.plain) for block in blocks]
        if self.plain:
            made.append(Block(self.plain, sum(stop - start for start, stop in self.plain), plain=True))
        return tuple(made)

    def unweighted(self, change: Tensor) -> Tensor:
        """The weighted mean, from a mean change in which each client's part was multiplied by its weight."""
        if not self.weight:
            return change
        mean = float(change[-1])
        if not self.unchecked and not mean > 0:
            raise DivergedError(f"the mean weight of the round's clients is {mean:.3g}, and weights are above 0")
        return change / torch.tensor(max(mean, self.least) / self.scale)

    def share(self, clients: int) -> float:
        """The factor by which the sum over all clients' corrections moves with the mean change of this many of them."""
        return self.gain * (1.0 if self.population is None else clients / self.population)

    def settled(self, weights: Tensor, before: Tensor, change: Tensor, clients: int) -> Tensor:
        """Correct what a global step of the whole vector did to all parts but the parameters. `weights` may be overwritten.

        `clients` is the number of those whose mean change this is.
        """
        for (start, stop), factor in self._others(clients):
            weights[start:stop] = before[start:stop] + change[start:stop] * factor
        for start, stop in self.variances:
            weights[start:stop].clamp_(min=0.0)
        return weights

    def _others(self, clients: int) -> Iterator[tuple[Span, float]]:
        yield (self.parameters, self.model), 1.0
        yield self.control_span, self.share(clients)
        yield (self.dim - self.weight, self.dim), 0.0

    def check_weight(self, value: float, client: int) -> None:
        """Raise `WireError` unless a client's weight is in range."""
        if self.weight and not self.unchecked and not 0 < value <= self.scale * (1 + 1e-6):
            raise WireError(
                f"client {client} sent a weight of {value / self.scale:.6g}, and weights are above 0 and at most 1: the number "
                "of its examples, divided by algorithm.most_examples."
            )


def last_number(codec: Codec, packet: Packet, context: RoundContext) -> float:
    """The last number of the vector in a client's packet, where it is sent as it is."""
    if isinstance(codec, JoinedCodec):
        return codec.last(packet, context.shared)
    code = codec.linear(context.shared, context.client)
    if code is None:
        raise UnresolvedError(f"codec '{codec.name}' does not show what is sent beside its code.")
    return float(code.values(packet)[-1])
