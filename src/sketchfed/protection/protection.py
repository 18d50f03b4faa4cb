"""How the updates of a run are protected: which noise, added where, and what a round of it costs."""

from dataclasses import dataclass
from functools import cached_property

from sketchfed.algorithms import Algorithm, RoundContext
from sketchfed.algorithms.linear import LinearCode
from sketchfed.privacy.accounting import Charge, Claim
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.gaussian import Gaussian
from sketchfed.privacy.rounded import Rounded
from sketchfed.protection.passes import Passes
from sketchfed.protection.settings import PrivacySettings, SecureSettings
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.training.private import probability


@dataclass(frozen=True, kw_only=True)
class Protection:
    """The settings of [privacy] and [secure], for an algorithm, a model and its clients, made to fit by `make_protection`."""

    algorithm: Algorithm
    dim: int
    population: int
    smallest: int
    """Examples of the client that has the fewest: the likeliest to be in a batch."""
    sizes: tuple[int, ...] = ()
    """Examples of each client, from which passes are cut."""
    privacy: PrivacySettings | None = None
    secure: SecureSettings | None = None

    @property
    def cohort(self) -> int:
        """Clients of a round, as planned or, where cohorts are hidden, as expected."""
        return self.algorithm.planned(self.population)

    @property
    def hidden(self) -> bool:
        return self.privacy is not None and self.privacy.hidden_cohorts

    @property
    def in_steps(self) -> bool:
        """Whether noise goes on the gradient of each local step, before it is encoded."""
        return self.privacy is not None and self.privacy.placement == "steps"

    @cached_property
    def passes(self) -> Passes | None:
        """Whose turn it is to use which examples, where each is used once a pass; None where batches are hidden."""
        if self.privacy is None or self.privacy.batches == "poisson":
            return None
        assert self.algorithm.batch is not None
        return Passes(self.sizes, batch=self.algorithm.batch, cohort=self.cohort)

    @property
    def central(self) -> bool:
        """Whether the server adds the noise, once, to the sum."""
        return self.privacy is not None and self.privacy.observer == "public"

    @property
    def multiplier(self) -> float:
        assert self.privacy is not None
        assert self.privacy.noise_multiplier is not None
        return self.privacy.noise_multiplier

    @cached_property
    def claim(self) -> Claim:
        """What every ε of the run is about."""
        assert self.privacy is not None
        unseen = self.hidden or (self.privacy.unit == "example" and self.privacy.batches == "poisson")
        return Claim(
            unit=self.privacy.unit,
            adjacency=self.privacy.adjacency or ("add-remove" if unseen else "zero-out"),
            observer=self.privacy.observer,
            delta=self.privacy.delta,
            accountant=self.privacy.accountant,
            insecure=self.privacy.insecure_noise_seed is not None,
        )

    def charge(self, survivors: int | None = None) -> Charge:
        """What a round costs each who takes part; at worst, if so many stay that the round is just not abandoned.

        In passes it is always the worst: one charge is for a whole pass, of whose rounds others may keep fewer clients.
        """
        multiplier, slack = self.multiplier, 0.0
        discrete = isinstance(self.summation, DiscreteGaussian)
        if isinstance(self.summation, DiscreteGaussian):
            assert self.secure is not None
            stayed = self.secure.least(self.cohort) if survivors is None or self.passes is not None else survivors
            honest = self.secure.honest(stayed, self.cohort)
            multiplier, slack = self.summation.multiplier(honest), self.summation.slack(honest)
        return Charge(multiplier=multiplier, sampling=self.sampling, steps=self.noisy_steps, discrete=discrete, slack=slack)

    @property
    def sampling(self) -> float:
        """The probability, hidden from the observer, that a unit is in a sum: of a client, or of an example in a batch."""
        assert self.privacy is not None
        if self.privacy.unit == "example" and self.passes is None:
            return probability(self.algorithm.work, self.smallest)
        return self.algorithm.participation if self.hidden else 1.0

    @property
    def noisy_steps(self) -> int:
        """How many noisy sums a client lets out of itself in a round."""
        assert self.privacy is not None
        return self.algorithm.work.count(self.smallest) if self.privacy.unit == "example" else 1

    def steps(self, size: int) -> Gaussian:
        """The noise of local steps, in all coordinates of what a client trains."""
        assert self.privacy is not None
        return Gaussian(size=size, clip=self.privacy.clip, deviation=self.multiplier * self.privacy.clip)

    @cached_property
    def summation(self) -> Gaussian | DiscreteGaussian | Rounded | None:
        """What makes numbers that are sent fit to be added up: clipped, and noised or whole."""
        size = self.code(RoundContext(round=0, seed=PublicSeed(0), client=0)).size if self.secure or not self.in_steps else 0
        if self.secure is not None:
            if self.privacy is None or self.in_steps:
                assert self.secure.clip is not None
                bits = 32 if self.secure.bits is None else self.secure.bits
                return Rounded(size=size, clip=self.secure.clip, clients=self.cohort, bits=bits)
            least = self.secure.honest(self.secure.least(self.cohort), self.cohort)
            batch = self.algorithm.batch if self.privacy.unit == "example" else 1
            return DiscreteGaussian.planned(
                size=size,
                clip=self.privacy.clip,
                multiplier=self.multiplier,
                clients=self.cohort,
                least=least,
                units=batch or 1,
                bits=self.secure.bits,
            )
        if self.privacy is None or self.in_steps:
            return None
        return Gaussian(size=size, clip=self.privacy.clip, deviation=self.multiplier * self.privacy.clip)

    def secret(self, round_index: int, label: str, index: int = 0) -> SecretSeed:
        """A party's secret for a round: from the operating system, unless an experiment must be repeatable."""
        if self.privacy is None or self.privacy.insecure_noise_seed is None:
            return SecretSeed()
        return SecretSeed.insecure(self.privacy.insecure_noise_seed).child("round", round_index).child(label, index)

    def variance(self, clients: int) -> float:
        """Of the noise in each number of the mean of so many clients' packets; 0 without noise.

        Noise in local steps goes through the code, which must keep its variance for this to be right: orthonormal ones do.
        """
        if self.privacy is None:
            return 0.0
        work, noisy = self.algorithm.work, self.steps(self.dim) if self.in_steps else self.summation
        scale = work.rate / (work.batch or 1) if self.privacy.unit == "example" else 1.0
        if isinstance(noisy, DiscreteGaussian):
            total = noisy.variance(clients=clients, units=0)
        else:
            assert isinstance(noisy, Gaussian)
            # With momentum the noise of a step is in all later ones.
            lasting = [sum(work.momentum**later for later in range(left + 1)) for left in range(self.noisy_steps)]
            total = noisy.deviation**2 * (1 if self.central else clients * sum(share**2 for share in lasting))
        return total * (scale / clients) ** 2

    def code(self, context: RoundContext) -> LinearCode:
        """How the packets of a round depend on changes; `make_protection` made sure that they do so linearly."""
        code = self.algorithm.code(self.dim, context)
        assert code is not None
        return code
