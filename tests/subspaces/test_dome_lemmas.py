"""Lemmas 3.1 and 3.2 of Nicolas et al. 2025, on subspaces as rules leave them, in Adam's moments and in the rounds of a run.

What a formula says is tested together with what a wrong one says, which must fail. False alarms are below 1e-6 a test.
"""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from federation import data_of, federation
from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.algorithms import Dome
from sketchfed.algorithms.settings import SubspaceSettings
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.subspaces import UPDATES
from sketchfed.wire import Packet, unpack

FALSE_ALARM = 1e-6
DIM, SIZE, DEVIATION = 157, 12, 0.3


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def updated(rule, rounds=5):
    """A subspace that has followed gradients around a mean."""
    made = UPDATES[rule]()
    subspace = made.begin(dim=DIM, size=SIZE, seed=PublicSeed(3), dtype=torch.float64)
    for number in range(rounds):
        subspace = made.updated(subspace, estimate=normal(DIM, seed=99) + normal(DIM, seed=number))
    return subspace


def agrees(energy, degrees):
    """Whether a sum of squares of standard normals may have so many of them: χ², two-sided, false alarm below 1e-6."""
    law = stats.chi2(degrees)
    return law.ppf(FALSE_ALARM / 2) < float(energy) < law.ppf(1 - FALSE_ALARM / 2)


def square_norms(rows):
    return rows.square().sum(-1)


@pytest.mark.parametrize("rule", UPDATES)
class TestTheErrorOfNoise:
    """Lemma 3.1."""

    trials = 500

    def test_in_all_coordinates_is_its_variance_times_dim_and_in_the_subspace_times_size(self, rule):
        subspace = updated(rule)
        gradient = subspace.adjoint(normal(SIZE, seed=7))
        whole = DEVIATION * normal(self.trials, DIM, seed=8)
        inside = subspace.adjoint(subspace.apply(gradient) + DEVIATION * normal(self.trials, SIZE, seed=9)) - gradient
        assert agrees(square_norms(whole).sum() / DEVIATION**2, self.trials * DIM)
        assert agrees(square_norms(inside).sum() / DEVIATION**2, self.trials * SIZE)
        assert not agrees(square_norms(inside).sum() / DEVIATION**2, self.trials * (SIZE + 2))

    def test_is_beside_that_of_what_lies_outside(self, rule):
        """‖g − S(Sᵀg + z)‖² = ‖(I − SSᵀ)g‖² + ‖z‖², for S is orthonormal."""
        subspace = updated(rule)
        gradient = normal(DIM, seed=7)
        outside = gradient.square().sum() - subspace.apply(gradient).square().sum()
        found = subspace.adjoint(subspace.apply(gradient) + DEVIATION * normal(self.trials, SIZE, seed=9))
        errors = square_norms(found - gradient)
        assert agrees((errors - outside).sum() / DEVIATION**2, self.trials * SIZE)
        assert not agrees(errors.sum() / DEVIATION**2, self.trials * SIZE)


def is_freed(squares, signal, noise, deviations):
    """Whether squares `(trials, dim)` of signal and noise could leave signal² once `noise` is taken off, in each coordinate.

    `deviations` are those of the noise. False alarm below 1e-6 by the tails of non-central χ² (Birgé 2001, Lemma 8.1), split
    over coordinates.
    """
    trials, x = len(squares), math.log(2 * squares.shape[1] / FALSE_ALARM)
    centre = len(squares) * signal**2 / deviations**2
    reach = 2 * ((trials + 2 * centre) * x).sqrt() * deviations**2 / trials
    off = squares.mean(0) - noise - signal**2
    return bool(((off > -reach) & (off < reach + 2 * x * deviations**2 / trials)).all())


@pytest.mark.parametrize("rule", UPDATES)
class TestSecondMoments:
    """Lemma 3.2, Eq. (11)."""

    def test_are_freed_from_noise_by_the_diagonal_of_the_projection(self, rule):
        subspace, trials = updated(rule), 20_000
        sensed = subspace.apply(normal(DIM, seed=7) / 4)
        squares = subspace.adjoint(sensed + DEVIATION * normal(trials, SIZE, seed=9)).square()
        signal, diagonal = subspace.adjoint(sensed), subspace.diagonal()
        deviations = DEVIATION * diagonal.sqrt()
        assert is_freed(squares, signal, DEVIATION**2 * diagonal, deviations)
        assert not is_freed(squares, signal, 0.0, deviations)
        assert not is_freed(squares, signal, DEVIATION**2, deviations)  # a² in each coordinate: Alg. 1, line 19

    def test_are_freed_on_average_over_probes_by_the_expected_diagonal(self, rule):
        """A t bound for each coordinate, of means over 50 draws of the noise for each of 500 of the probes."""
        subspace, gradient, draws, trials = updated(rule), normal(DIM, seed=7) / 4, 500, 50
        noise, rows = DEVIATION * normal(draws, trials, SIZE, seed=9), []
        for draw in range(draws):
            drawn = replace(subspace, draw=draw)
            sensed = drawn.apply(gradient)
            rows.append(drawn.adjoint(sensed + noise[draw]).square().mean(0) - drawn.adjoint(sensed).square())
        excess = torch.stack(rows)
        assert has_mean(excess, DEVIATION**2 * subspace.expected_diagonal())
        assert not has_mean(excess, torch.zeros(DIM))
        assert not has_mean(excess, torch.full((DIM,), DEVIATION**2))


def has_mean(rows, mean):
    """Whether each column could have its mean: Student's t, false alarm below 1e-6 for all together."""
    intervals = [mean_interval(column, false_alarm=FALSE_ALARM / rows.shape[1]) for column in rows.T]
    return all(low <= value <= high for (low, high), value in zip(intervals, mean.tolist(), strict=True))


@pytest.mark.parametrize("paper", [False, True])
def test_adams_squares_are_freed_from_noise_but_not_as_printed(paper):
    """One round of the algorithm, for 250 seeds: what the server keeps, less (SSᵀg)². A t bound for each coordinate."""
    settings = SubspaceSettings(name="history_pca" if paper else "incremental_svd", size=SIZE)
    dome = Dome(subspace=settings, beta2=0.0, remove_mean=False, paper=paper, global_rate=0.01)
    clients, gradient, rows = 4, normal(DIM, seed=7).float() / 4, []
    state = dome.begin(torch.zeros(DIM))
    for trial in range(250):
        seed = PublicSeed(trial)
        subspace = dome.subspace_of(state.replica, seed)
        sensed = subspace.apply(gradient)
        sent = sensed + DEVIATION * normal(clients, SIZE, seed=trial).float()
        packets = [Packet(kind="dome", arrays={"values": values}) for values in sent]
        after, _ = dome.server(state, packets, seed, noise=DEVIATION**2 / clients)
        rows.append(after.replica.moments["square"] - subspace.adjoint(sensed).square())
    assert has_mean(torch.stack(rows).double(), torch.zeros(DIM)) is not paper


NOISE = PrivacySettings(noise_multiplier=1_000.0, clip=1e-3, delta=1e-3, insecure_noise_seed=3)
DISCRETE = replace(NOISE, name="discrete_gaussian")
PROTECTIONS = {
    "trusted server": (replace(NOISE, observer="public"), None),
    "each client": (NOISE, None),
    "discrete": (DISCRETE, SecureSettings(survivors=1.0)),
}


def rounds_of_noise(privacy, secure=None, *, rounds=40, tamper=dict, **work):
    """The numbers that a run broadcasts when nothing else is in them, and their variance as everyone is told."""
    work = {"local_rate": 0.5, "batch": 4, "local_steps": 1} | work
    settings = SubspaceSettings(name="incremental_svd", size=12)
    dome = Dome(subspace=settings, remove_mean=privacy.placement == "sent", global_rate=1e-6, **work)
    server = federation(dome, data_of(8), privacy=privacy, secure=secure, tamper=tamper)
    values, told = [], []
    for _ in range(rounds):
        server.advance()
        update = unpack(server.tally.updates[-1])
        values.append(update.arrays["values"].double())
        told.append(update.scalars["noise"])
    return torch.stack(values), torch.tensor(told)[:, None]


def are_told(values, told):
    return agrees((values**2 / told).sum(), values.numel())


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("noise", PROTECTIONS)
def test_a_run_tells_the_variance_of_the_noise_in_what_it_broadcasts(noise, unit):
    """With 15 rounds of 12 numbers, a variance that is off by a factor of 2.2 is found with probability 0.99."""
    privacy, secure = PROTECTIONS[noise]
    values, told = rounds_of_noise(replace(privacy, unit=unit), secure, rounds=15)
    assert are_told(values, told)
    assert not are_told(values, 8 * told)  # the sum's, or that of one of eight clients


@pytest.mark.parametrize(("privacy", "secure"), [(NOISE, None), (DISCRETE, SecureSettings(survivors=0.6))])
def test_clients_that_stay_away_take_their_noise_along(privacy, secure):
    """With 25 rounds of 12 numbers, a variance that is off by a factor of 8/5 is found with probability 0.99."""
    stay = lambda replies: {client: reply for client, reply in replies.items() if client > 2}  # noqa: E731
    values, told = rounds_of_noise(privacy, secure, rounds=25, tamper=stay)
    assert are_told(values, told)
    assert not are_told(values, told * 5 / 8)  # as if all eight had come


def test_a_mean_over_a_hidden_cohort_is_over_as_many_as_were_expected():
    values, told = rounds_of_noise(replace(NOISE, observer="public", hidden_cohorts=True), rounds=15, participation=0.5)
    assert are_told(values, told)
    assert not are_told(values, told / 4)


@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.0), (3, 0.0), (3, 0.5)])
def test_noise_of_local_steps_keeps_its_variance_in_the_subspace(steps, momentum):
    settings = replace(NOISE, unit="example", placement="steps")
    values, told = rounds_of_noise(settings, local_steps=steps, local_momentum=momentum)
    assert are_told(values, told)
    assert not are_told(values, told * 1.5)
