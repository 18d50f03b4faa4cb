"""Secure sums in groups: who is in them, what they cost in noise, and what one bad client can do."""

import pytest
import torch

from federation import data_of, federation
from sketchfed import PublicSeed, run
from sketchfed.algorithms import CombineSettings, FedAvg
from sketchfed.errors import InputError
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.protection import PrivacySettings, SecureSettings, SecureSums
from sketchfed.testing import advanced, weights_of

PLAIN = SecureSettings(clip=10.0, groups=3)
DISCRETE = PrivacySettings(name="discrete_gaussian", noise_multiplier=1.0, delta=1e-3, insecure_noise_seed=5)


@pytest.mark.parametrize(
    ("settings", "cohort", "sizes"),
    [
        ({}, 10, [10]),
        ({"groups": 3}, 10, [4, 3, 3]),
        ({"group_size": 4}, 10, [5, 5]),
        ({"group_size": 50}, 10, [10]),
        ({"groups": 3}, 12, [4, 4, 4]),
    ],
)
def test_clients_are_split_evenly(settings, cohort, sizes):
    assert SecureSettings(**settings).group_sizes(cohort) == sizes


def test_groups_are_drawn_anew_in_every_round_and_everybody_is_in_one():
    protection = federation(FedAvg(participation=0.8), data_of(15), secure=PLAIN).protection
    seen = set()
    for index in range(20):
        groups = protection.groups(PublicSeed(1), index)
        assert [len(group) for group in groups] == [4, 4, 4]
        assert len({client for group in groups for client in group}) == 12
        assert all(list(group) == sorted(group) for group in groups)
        seen.add(groups[0])
    assert len(seen) > 15


def test_who_meets_whom_is_uniform():
    """Client 0's two mates among eight others in 1,500 rounds, each with probability 1/4: six deviations, false alarm 1e-8."""
    protection = federation(FedAvg(), data_of(9), secure=PLAIN).protection
    counts = torch.zeros(9)
    for index in range(1_500):
        (mates,) = (group for group in protection.groups(PublicSeed(2), index) if 0 in group)
        counts[list(mates)] += 1
    assert counts[0] == 1_500
    assert bool(((counts[1:] - 375).abs() < 6 * (1_500 * 0.25 * 0.75) ** 0.5).all())


def test_the_mean_over_groups_is_the_mean_in_the_clear():
    """Group sizes differ, and so do their weights."""
    plain, grouped = (advanced(federation(FedAvg(local_rate=0.1), data_of(10), secure=each), 3) for each in (None, PLAIN))
    assert torch.allclose(weights_of(plain), weights_of(grouped), atol=1e-4)
    assert grouped.tally.replies == 30


def test_a_group_that_fails_is_left_out_and_the_others_go_on(caplog):
    server = federation(FedAvg(local_rate=0.1), data_of(12), secure=PLAIN)
    first = server.protection.groups(server.seed, 0)[0]
    server.engine.tamper = lambda replies: {client: reply for client, reply in replies.items() if client not in first[:2]}
    server.advance()
    assert server.round == 1
    assert server.tally.replies == 8
    assert "goes on without" in caplog.text


def test_noise_is_enough_for_the_smallest_group_and_is_charged_so():
    whole = federation(FedAvg(), data_of(12), privacy=DISCRETE, secure=SecureSettings()).protection
    grouped = federation(FedAvg(), data_of(12), privacy=DISCRETE, secure=SecureSettings(groups=3)).protection
    assert grouped.mechanism.multiplier(grouped.settings.least(4)) == pytest.approx(1.0, rel=1e-3)
    assert grouped.variance(12) > 2 * whole.variance(12)
    claim = grouped.budget.claim
    assert epsilon_of({grouped.charge(): 1}, claim) == pytest.approx(epsilon_of({whole.charge(): 1}, claim), rel=0.02)
    assert epsilon_of({grouped.charge(4): 1}, claim) < epsilon_of({grouped.charge(): 1}, claim)


def test_colluders_may_all_meet_in_one_group():
    assert SecureSettings(colluders=0.2).honest(7, 10, 10) == 5
    assert SecureSettings(colluders=0.2, groups=10).honest(9, 10, 100) < SecureSettings(colluders=0.2).honest(9, 10, 10)


def test_the_threshold_of_a_group_holds_against_all_colluders_that_may_meet_in_it():
    """Of 100 clients 10 collude. All of them may be in one group of 25, and then 2t > k + 1 + c must still hold."""
    secure = SecureSettings(clip=10.0, group_size=25, colluders=0.1)
    assert secure.colluding(25, 100) == 10
    protection = federation(FedAvg(), data_of(100), secure=secure).protection
    for terms in protection.terms(PublicSeed(1), 0, 1):
        assert len(terms.clients) == 25
        assert 2 * terms.threshold > terms.neighbours + 1 + 10


def test_groups_in_which_colluders_may_be_the_majority_are_refused_before_round_1():
    secure = SecureSettings(clip=10.0, group_size=10, colluders=0.1)
    with pytest.raises(InputError, match=r"up to 9 colluders may meet in a secure sum over 10.*use larger groups"):
        federation(FedAvg(), data_of(100), secure=secure)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"groups": 2, "group_size": 4}, "both say how clients are split"),
        ({"groups": 0}, "secure.groups must be at least 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        SecureSettings(**settings)


def test_groups_that_hide_nothing_are_refused_before_round_1():
    with pytest.raises(InputError, match="leave 2 in a group"):
        federation(FedAvg(), data_of(8), secure=SecureSettings(clip=1.0, groups=4))


def drift(combine: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """How far three rounds end from honest ones if client 0 masks random integers in place of its change."""
    algorithm = FedAvg(local_rate=0.1, combine=CombineSettings(name=combine))
    secure = SecureSettings(clip=1.0, groups=5)
    honest = weights_of(advanced(federation(algorithm, data_of(15), secure=secure), 3))
    genuine = SecureSums.integers

    def integers(self, work):
        values, dice = genuine(self, work), torch.Generator().manual_seed(work.context.round)
        garbage = torch.randint(0, 2**self.mechanism.bits, values.shape, generator=dice)
        return garbage if work.context.client == 0 else values

    with monkeypatch.context() as patched:
        patched.setattr(SecureSums, "integers", integers)
        return float((weights_of(advanced(federation(algorithm, data_of(15), secure=secure), 3)) - honest).norm())


def test_one_client_that_sends_garbage_spoils_its_group_and_under_a_robust_rule_hardly_the_model(monkeypatch):
    """Its group's sum is clipped to what honest clients can send, and a rule over the groups' sums leaves it out."""
    mean = drift("mean", monkeypatch)
    assert 0.1 < mean < 3.0
    assert drift("median", monkeypatch) < 0.6 * mean
    assert drift("krum", monkeypatch) < 0.6 * mean


def test_groups_and_rules_go_together_from_a_configuration():
    tables = {
        "data": {"clients": 9},
        "algorithm": {"name": "iterative", "rounds": 2, "combine": "geometric_median"},
        "secure": {"clip": 10.0, "group_size": 3},
    }
    assert [line["participants"] for line in run(tables).metrics] == [9, 9]
    with pytest.raises(InputError, match=r"secure\.groups"):
        run({**tables, "secure": {"clip": 10.0}})
