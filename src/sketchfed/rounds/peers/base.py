"""A node of a graph in a run without a server. It takes bytes and returns bytes, and is the same in every engine."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from sketchfed.algorithms import Algorithm, Replica, RoundContext
from sketchfed.errors import WireError
from sketchfed.graphs import Links
from sketchfed.rounds.participant import Participant
from sketchfed.training import Examples

Hop = tuple[int, int]
"""A sender and a receiver."""
Plan = Sequence[Sequence[Hop]]
"""The steps of a round: who speaks to whom in each of them, at the same time."""


class GraphPeer(ABC):
    """One node: it works, speaks to its neighbours, hears them, and ends the round.

    A round calls `work` once, then `tell` and `hear` in each step of the plan, then `close`. A node that is away in a round is
    not called at all. All nodes start from the same replica object.
    """

    rooted: ClassVar[bool] = False
    """Whether no round can end without the root."""

    def __init__(self, node: int, participant: Participant, start: Replica, root: int = 0) -> None:
        """`root` is the node at the centre of the run's first graph."""
        self.node, self.participant, self.start, self.root = node, participant, start, root
        self.kept: Mapping[str, Any] = {}
        """What training keeps from round to round. It never leaves the node."""

    @property
    def algorithm(self) -> Algorithm:
        return self.participant.algorithm

    @property
    def told(self) -> tuple[str, ...]:
        """The names of the tensors in an estimate that others hold of this node."""
        return ("weights",)

    @classmethod
    def first(cls, start: Replica) -> Replica:
        """What all nodes hold before round 1. They share the object."""
        return start

    @classmethod  # noqa: B027 – most nodes need nothing of each other
    def meet(cls, peers: Mapping[int, "GraphPeer"]) -> None:
        """Let the nodes of one process exchange, before round 1, what must not pass over links."""

    @classmethod
    @abstractmethod
    def plan(cls, links: Links, root: int) -> Plan:
        """Who speaks to whom in a round. All nodes work it out for themselves."""

    @property
    @abstractmethod
    def weights(self) -> Tensor:
        """The node's own model."""

    @abstractmethod
    def work(self, index: int, examples: Examples, links: Links) -> None:
        """Train, and prepare what is said in this round."""

    def idle(self, index: int, links: Links) -> bool:
        """Begin a round without an update of its own, as training failed. Return whether the node still passes messages on."""
        return False

    @abstractmethod
    def tell(self, receiver: int, step: int) -> bytes | None:
        """What this node says to a neighbour in a step of the round. None if it has nothing to say."""

    @abstractmethod
    def hear(self, sender: int, message: bytes, step: int) -> None:
        """Take in what a neighbour said. Raise `WireError` if it cannot be used; nothing has changed then."""

    @abstractmethod
    def close(self, links: Links) -> None:
        """End the round."""

    @abstractmethod
    def tensors(self, index: int) -> dict[str, Tensor]:
        """Everything that the node needs to continue after the round of this index."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], estimates: Mapping[int, Replica]) -> None:
        """Continue from what `tensors` returned. Raises KeyError, TypeError, ValueError or RuntimeError if it is not that.

        `estimates` holds what each node has told of its model, as far as nodes keep that.
        """

    def check_norm(self, norm: float | None, own: float | None) -> None:
        """Raise `WireError` if what a neighbour said is not finite, or far longer than what this node says itself."""
        if norm is None:
            return
        if not math.isfinite(norm):
            raise WireError("it holds NaN or infinity.")
        most = self.algorithm.screening
        if most and own and norm > most * own:
            raise WireError(
                f"its norm is {norm:.3g}, more than {most:g} times that of what this node says ({own:.3g}); see "
                "algorithm.screening."
            )

    def context(self, index: int, node: int | None = None) -> RoundContext:
        """Where the work of a node in a round belongs."""
        return RoundContext(
            round=index,
            seed=self.participant.seed,
            client=self.node if node is None else node,
            population=self.participant.clients,
        )
