"""The interface of a protection: what one client sends, how replies are combined, and what that costs in privacy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from sketchfed.algorithms import Algorithm, RoundContext
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import InputError
from sketchfed.privacy.claims import Charge
from sketchfed.protection.batches import ExampleBatches
from sketchfed.protection.budget import Budget
from sketchfed.protection.work import ClientWork
from sketchfed.seeds import SecretSeed
from sketchfed.wire import Packet


@dataclass(frozen=True, kw_only=True)
class Protection(ABC):
    """How the updates of a run are protected on their way to the server. `make_protection` chooses the class, once."""

    algorithm: Algorithm
    dim: int
    """The number of parameters of the model."""
    sizes: tuple[int, ...]
    """The number of examples of each client."""
    budget: Budget | None = None
    """The run's privacy budget; None if no ε is claimed."""

    central: ClassVar[bool] = False
    """Whether the server adds the noise. If so, the packets that it receives have none yet."""
    noise_before_code: ClassVar[bool] = False
    """Whether noise is added before encoding. If so, it goes through the code like the change itself."""

    @property
    def batches(self) -> ExampleBatches | None:
        """How a client's examples are drawn, if privacy is at example level. Otherwise None."""
        return None

    @property
    def hidden(self) -> bool:
        """Whether only the server knows which clients take part in a round."""
        return False

    @property
    def clip(self) -> float | None:
        """The largest norm of one client's encoded contribution before noise. None if no single bound applies."""
        return None

    @property
    def population(self) -> int:
        return len(self.sizes)

    @property
    def cohort_size(self) -> int:
        """The number of clients in a round: the planned number, or the expected number if cohorts are hidden."""
        return self.algorithm.planned(self.population)

    @property
    def packets(self) -> int:
        """The number of packets that the server decodes in a round, if all clients answer."""
        return self.cohort_size

    @abstractmethod
    def reply(self, work: ClientWork) -> tuple[Packet, Tensor | None]:
        """Return the packet that a client sends, and the memory that it keeps until it takes part again."""

    def combine(self, replies: Sequence[Packet], context: RoundContext) -> list[Packet]:
        """Combine the replies that arrived into the packets that the algorithm decodes."""
        return list(replies)

    def charge(self, survivors: int | None = None) -> Charge:
        """The privacy cost of a round for each unit in it. If the number of survivors is not known yet, the worst case."""
        if self.budget is None:
            raise InputError("this run adds no calibrated noise, so it has no ε. Add [privacy].")
        return self.budget.charge()

    def variance(self, clients: int) -> float:
        """The variance of the noise in each number of the mean of this many clients' packets. 0 without noise."""
        return 0.0

    def code(self, context: RoundContext) -> LinearCode:
        """The linear code that maps a change to the packet of a round."""
        return self.algorithm.code(self.dim, context)

    def secret(self, round_index: int, label: str, index: int = 0) -> SecretSeed:
        """A party's secret for a round. It comes from the operating system, unless the settings fix a noise seed."""
        fixed = None if self.budget is None else self.budget.settings.insecure_noise_seed
        if fixed is None:
            return SecretSeed()
        return SecretSeed.insecure(fixed).child("round", round_index).child(label, index)

    def unseeded(self) -> Self:
        """The same protection without the fixed noise seed, for a party that does not know it."""
        if self.budget is None:
            return self
        return replace(self, budget=self.budget.unseeded())

    def client_secret(self, context: RoundContext) -> SecretSeed:
        """The secret from which a client draws its batches and its noise in a round."""
        return self.secret(context.round, "client", context.client)


@dataclass(frozen=True, kw_only=True)
class Clear(Protection):
    """Adds no protection. The server sees every update as the algorithm sends it."""

    def reply(self, work: ClientWork) -> tuple[Packet, Tensor | None]:
        return self.algorithm.client(work.trained(self.algorithm.work), work.memory, work.context)
