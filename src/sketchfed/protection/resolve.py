"""Makes a protection from the tables [privacy] and [secure]. Settings that cannot work are refused before round 1."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sketchfed.algorithms import Algorithm, RoundContext, most_participations
from sketchfed.privacy.accounting import calibrated, epsilon_of
from sketchfed.privacy.claims import Charge, Claim, check_delta
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.rounded import Rounded
from sketchfed.protection.base import Clear, Protection
from sketchfed.protection.batches import ExampleBatches, HiddenBatches, PassBatches, batch_of, probability
from sketchfed.protection.beside import scaled
from sketchfed.protection.budget import Budget, SharedBudget
from sketchfed.protection.checks import check_linear, check_noise, check_privacy, check_secure
from sketchfed.protection.noise import CentralNoise, NoisySent, NoisySteps
from sketchfed.protection.passes import Passes
from sketchfed.protection.rules import check_combine
from sketchfed.protection.secure_sums import SecureNoise, SecureSteps, SecureSums
from sketchfed.protection.settings import PrivacySettings, SecureSettings
from sketchfed.protection.units import EachExample, PlainTraining, ProtectedUnit, WholeClient
from sketchfed.seeds import PublicSeed


def completed_work(algorithm: Algorithm, privacy: PrivacySettings | None) -> Algorithm:
    """Return the algorithm with one local step, if examples are protected and no local work was chosen."""
    if privacy is None or privacy.unit == "client" or algorithm.local_steps is not None or algorithm.local_epochs is not None:
        return algorithm
    return replace(algorithm, local_steps=1)


def make_protection(
    algorithm: Algorithm,
    *,
    privacy: PrivacySettings | None,
    secure: SecureSettings | None,
    dim: int,
    sizes: Sequence[int],
    seed: PublicSeed,
) -> Protection:
    """Make the protection of a run and calibrate its noise. `sizes` is the number of examples of each client."""
    active = secure if secure is not None and secure.aggregation else None
    algorithm = scaled(algorithm, privacy, active, sizes)
    if algorithm.segments is not None:
        dim = algorithm.segments.dim
    made = _protection(algorithm, privacy, secure, dim, sizes, seed)
    check_combine(made)
    return made


def _protection(
    algorithm: Algorithm,
    privacy: PrivacySettings | None,
    secure: SecureSettings | None,
    dim: int,
    sizes: Sequence[int],
    seed: PublicSeed,
) -> Protection:
    run = _Run(algorithm=algorithm, dim=dim, sizes=tuple(sizes))
    if secure is not None and not secure.aggregation:
        secure = None
    if privacy is not None:
        check_privacy(algorithm, privacy, secure=secure is not None)
        check_noise(privacy)
        check_delta(privacy.delta, len(sizes) if privacy.unit == "client" else sum(sizes))
    if secure is not None:
        check_secure(secure, privacy, cohort=run.cohort_size)
    if secure is not None or (privacy is not None and privacy.placement == "sent"):
        check_linear(algorithm, dim, secure=secure is not None)
    if privacy is None:
        return run.clear() if secure is None else run.rounded_sums(secure)
    privacy = replace(privacy, adjacency=_claim(privacy).adjacency)
    if privacy.noise_multiplier is not None:
        made = run.noisy(privacy, secure, privacy.noise_multiplier)
        made.charge()  # refuse a modulus that is too small before training starts
        return made
    return run.calibrated(privacy, secure, privacy.needed_epsilon(), seed)


def participations(protection: Protection, seed: PublicSeed) -> int:
    """The largest number of rounds in which any one client takes part. If cohorts are hidden, this is all rounds.

    If batches are cut from passes, the largest number of passes that any one client begins, because an example is in one sum
    of each pass.
    """
    rounds = protection.algorithm.rounds
    if protection.budget is not None and protection.budget.passes is not None:
        return protection.budget.passes.most(seed, rounds)
    if protection.hidden or protection.cohort_size == protection.population:
        return rounds
    return most_participations(seed, rounds=rounds, population=protection.population, count=protection.cohort_size)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Everything that all protections of a run have in common."""

    algorithm: Algorithm
    dim: int
    sizes: tuple[int, ...]

    @property
    def cohort_size(self) -> int:
        return self.algorithm.planned(len(self.sizes))

    def clear(self) -> Clear:
        return Clear(algorithm=self.algorithm, dim=self.dim, sizes=self.sizes)

    def rounded_sums(self, secure: SecureSettings) -> SecureSums:
        """Make secure sums without noise."""
        unit = WholeClient(self.algorithm, PlainTraining(self.algorithm.work))
        mechanism = self._rounded(secure)
        return SecureSums(
            algorithm=self.algorithm, dim=self.dim, sizes=self.sizes, settings=secure, unit=unit, mechanism=mechanism
        )

    def calibrated(
        self, privacy: PrivacySettings, secure: SecureSettings | None, epsilon: float, seed: PublicSeed
    ) -> Protection:
        """Make the protection with the least noise that keeps all rounds within the budget."""
        claim, batches = _claim(privacy), self._batches(privacy)
        probe = self._budget(privacy, 1.0, batches)
        times = participations(replace(self.clear(), budget=probe), seed)
        if privacy.hidden_cohorts:
            times = self.algorithm.rounds

        by_renyi = privacy.discrete and claim.accountant == "rdp"

        def release(noise: float) -> dict[Charge, int]:
            return {Charge(multiplier=noise, sampling=probe.sampling, steps=probe.releases, discrete=by_renyi): times}

        multiplier, more = calibrated(claim, epsilon, release), 1.001
        while True:  # what it costs that noise is integers, in shares, is known only after the noise is chosen
            made = self.noisy(privacy, secure, multiplier)
            if epsilon_of({made.charge(): times}, claim) <= epsilon:
                return made
            multiplier *= more
            more = min(more**1.5, 1.05)

    def noisy(self, privacy: PrivacySettings, secure: SecureSettings | None, multiplier: float) -> Protection:
        """Make the protection with this noise multiplier."""
        batches = self._batches(privacy)
        budget = self._budget(privacy, multiplier, batches)
        if batches is not None and privacy.placement == "steps":  # `check_privacy` refuses steps for whole clients
            steps = NoisySteps(algorithm=self.algorithm, dim=self.dim, sizes=self.sizes, budget=budget, draws=batches)
            return steps if secure is None else self._secure_steps(steps, secure)
        unit = self._unit(batches)
        if secure is not None:
            return self._secure_noise(budget, unit, secure)
        noise = privacy.noise(self._size, multiplier)
        kind = CentralNoise if privacy.observer == "public" else NoisySent
        return kind(algorithm=self.algorithm, dim=self.dim, sizes=self.sizes, budget=budget, unit=unit, mechanism=noise)

    def _secure_steps(self, steps: NoisySteps, secure: SecureSettings) -> SecureSteps:
        return SecureSteps(
            algorithm=self.algorithm,
            dim=self.dim,
            sizes=self.sizes,
            settings=secure,
            unit=WholeClient(self.algorithm, steps.change),
            mechanism=self._rounded(secure),
            steps=steps,
            budget=steps.budget,
        )

    def _secure_noise(self, budget: Budget, unit: ProtectedUnit, secure: SecureSettings) -> SecureNoise:
        groups = secure.group_sizes(self.cohort_size)
        least = secure.honest(secure.least(min(groups)), max(groups), self.cohort_size)
        mechanism = DiscreteGaussian.planned(
            size=self._size,
            clip=budget.settings.clip,
            multiplier=budget.multiplier,
            clients=max(groups),
            least=least,
            units=1 if unit.batches is None else batch_of(self.algorithm.work),
            bits=secure.bits,
        )
        shared = SharedBudget(
            settings=budget.settings,
            claim=budget.claim,
            multiplier=budget.multiplier,
            sampling=budget.sampling,
            releases=budget.releases,
            passes=budget.passes,
            mechanism=mechanism,
        )
        return SecureNoise(
            algorithm=self.algorithm,
            dim=self.dim,
            sizes=self.sizes,
            settings=secure,
            unit=unit,
            mechanism=mechanism,
            budget=shared,
        )

    def _budget(self, privacy: PrivacySettings, multiplier: float, batches: ExampleBatches | None) -> Budget:
        work, smallest = self.algorithm.work, min(self.sizes)
        sampling = self.algorithm.participation if privacy.hidden_cohorts else 1.0
        if batches is not None and batches.drawn_in_secret:
            sampling = probability(work, smallest)  # the client with the fewest examples has the highest probability
        return Budget(
            settings=replace(privacy, noise_multiplier=multiplier),
            claim=_claim(privacy),
            multiplier=multiplier,
            sampling=sampling,
            releases=1 if batches is None else work.count(smallest),
            passes=batches.passes if isinstance(batches, PassBatches) else None,
        )

    def _batches(self, privacy: PrivacySettings) -> HiddenBatches | PassBatches | None:
        if privacy.unit == "client":
            return None
        if privacy.batches == "poisson":
            return HiddenBatches(self.algorithm.work)
        batch = batch_of(self.algorithm.work)
        return PassBatches(batch, Passes(self.sizes, batch=batch, cohort=self.cohort_size))

    def _unit(self, batches: ExampleBatches | None) -> ProtectedUnit:
        if batches is None:
            return WholeClient(self.algorithm, PlainTraining(self.algorithm.work))
        return EachExample(self.algorithm, batches, self.algorithm.work.count(min(self.sizes)))

    def _rounded(self, secure: SecureSettings) -> Rounded:
        bits = 32 if secure.bits is None else secure.bits
        return Rounded(size=self._size, clip=secure.needed_clip(), clients=max(secure.group_sizes(self.cohort_size)), bits=bits)

    @property
    def _size(self) -> int:
        """The number of values in an encoded change."""
        return self.algorithm.code(self.dim, RoundContext(round=0, seed=PublicSeed(0), client=0)).size


def _claim(privacy: PrivacySettings) -> Claim:
    """What every ε of the run refers to."""
    unseen = privacy.hidden_cohorts or (privacy.unit == "example" and privacy.batches == "poisson")
    return Claim(
        unit=privacy.unit,
        adjacency=privacy.adjacency or ("add-remove" if unseen else "zero-out"),
        observer=privacy.observer,
        delta=privacy.delta,
        accountant=privacy.accountant,
        insecure=privacy.insecure_noise_seed is not None,
    )
