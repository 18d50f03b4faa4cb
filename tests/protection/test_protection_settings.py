"""Tables [privacy] and [secure] that cannot work are refused before round 1, each with what to change."""

from collections import Counter

import pytest

from sketchfed.algorithms import cohort
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.protection import Clear, PrivacySettings, SecureSettings, participations
from sketchfed.seeds import PublicSeed

EXAMPLE = {"unit": "example", "epsilon": 3.0, "observer": "public"}
CLIENT = {"epsilon": 3.0, "delta": 1e-3, "observer": "public"}
DISCRETE = {"name": "discrete_gaussian", "epsilon": 3.0, "delta": 1e-3}
PASSES = EXAMPLE | {"batches": "passes"}
STEPS = {"unit": "example", "placement": "steps", "epsilon": 3.0}
SKETCH = {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.1}}


def protection(*, sizes=None, **tables):
    sizes = [200] * 20 if sizes is None else sizes
    algorithm = {"name": "fedavg", "rounds": 10, **tables.pop("algorithm", {})}
    if tables.get("privacy", {}).get("unit") == "example":
        algorithm = {"batch": 10, **algorithm}
    config = load_config({**tables, "algorithm": algorithm}).completed(dim=1_000, sizes=sizes)
    return config.protection(dim=1_000, sizes=sizes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"epsilon": -1.0}, "epsilon must be a positive number"),
        ({}, "needs a budget"),
        ({"epsilon": 3.0, "delta": 0.0}, "delta is a probability"),
        ({"epsilon": 3.0, "clip": 0.0}, "clip is the largest allowed norm"),
        ({"noise_multiplier": 0.0}, "Without noise there is no privacy"),
        ({"epsilon": 1.0, "insecure_noise_seed": -1}, "insecure_noise_seed"),
    ],
)
def test_privacy_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        PrivacySettings(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"survivors": 0.5}, "above 0.5"),
        ({"colluders": 0.5}, "below 0.5"),
        ({"bits": 7}, "from 8 to 32"),
        ({"clip": 0.0}, "positive"),
        ({"attempts": 0}, "at least 1"),
        ({"neighbours": 0}, "at least 1"),
    ],
)
def test_secure_sums_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        SecureSettings(**settings)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"privacy": DISCRETE}, r"Add \[secure\]"),
        ({"privacy": DISCRETE | {"placement": "steps", "unit": "example"}, "secure": {}}, "Use privacy.name = 'gaussian'"),
        ({"privacy": CLIENT | {"observer": "server"}, "secure": {}}, "Use 'discrete_gaussian'"),
        ({"privacy": DISCRETE | {"observer": "public"}, "secure": {}}, "observer = 'server'"),
        ({"privacy": STEPS | {"observer": "public"}}, "observer = 'server'"),
        ({"privacy": CLIENT | {"hidden_cohorts": True, "observer": "server"}}, "hidden_cohorts"),
        ({"privacy": EXAMPLE | {"hidden_cohorts": True}}, "hidden_cohorts"),
        ({"privacy": CLIENT | {"adjacency": "add-remove"}}, "Use 'zero-out'"),
        ({"privacy": CLIENT | {"placement": "steps", "observer": "server"}}, "privacy.unit = 'example'"),
        ({"privacy": CLIENT | {"delta": 0.05}}, "1/20"),
        ({"privacy": EXAMPLE | {"delta": 1e-3}}, "1/4,000"),
        ({"privacy": EXAMPLE, "algorithm": {"batch": None}}, "algorithm.batch"),
        ({"privacy": EXAMPLE, "algorithm": {"local_epochs": 2}}, "local_steps instead"),
        ({"privacy": EXAMPLE, "algorithm": {"local_steps": 2}}, "second local step"),
        ({"privacy": EXAMPLE, "algorithm": {"local_momentum": 0.9}}, "global_momentum works"),
        ({"privacy": CLIENT | {"batches": "passes"}}, "privacy.unit = 'example'"),
        ({"privacy": PASSES | {"adjacency": "add-remove"}}, "one more example would move all others"),
        ({"privacy": PASSES, "algorithm": {"local_steps": 2}}, "local_steps = 2.*one batch per round"),
        ({"privacy": PASSES, "algorithm": {"local_epochs": 1}}, "local_epochs = 1.*one batch per round"),
        ({"privacy": PASSES, "algorithm": {"batch": None}}, "algorithm.batch"),
        ({"privacy": EXAMPLE, "codec": {"name": "eden"}}, "codec 'eden' does not send numbers"),
        ({"secure": {"clip": 1.0}, "codec": {"name": "eden"}}, "codec 'eden' cannot be summed.*secure.aggregation = false"),
        ({"secure": {"clip": 1.0}, "codec": {"name": "dense", "precision": "float16"}}, "float16 cannot be summed"),
        ({"secure": {"clip": 1.0}, "algorithm": {"error_feedback": True}}, "error feedback around codec 'dense' cannot be"),
        (SKETCH | {"secure": {"clip": 1.0}, "sketch": {"ratio": 0.1, "bits": 4}}, "sketch.bits = 4 cannot be summed"),
        ({"secure": {}}, "secure.clip"),
        ({"privacy": DISCRETE, "secure": {"clip": 1.0}}, "Remove secure.clip"),
        ({"secure": {"clip": 1.0}, "algorithm": {"participation": 0.1}}, "3 or more"),
        ({"privacy": DISCRETE, "secure": {"bits": 8}, **SKETCH}, "Take bits = "),
        ({"algorithm": {"name": "private_iterative"}}, r"Add \[privacy\]"),
    ],
)
def test_tables_that_do_not_fit_each_other_are_refused(tables, message):
    if tables.get("algorithm", {}).get("batch", 0) is None:
        config = load_config({**tables, "algorithm": {"name": "fedavg"}})
        with pytest.raises(InputError, match=message):
            config.completed(dim=1_000, sizes=[200] * 20)
        return
    with pytest.raises(InputError, match=message):
        protection(**tables)


def test_without_tables_nothing_is_protected():
    assert isinstance(protection(), Clear)
    assert isinstance(protection(secure={"aggregation": False}), Clear)


def test_a_completed_configuration_says_its_noise_and_stays_as_it_is():
    config = load_config({"algorithm": {"batch": 10}, "privacy": EXAMPLE}).completed(dim=1_000, sizes=[200] * 20)
    assert config.privacy.noise_multiplier > 0.3
    assert config.privacy.adjacency == "add-remove"
    assert config.algorithm.local_steps == 1
    assert load_config(config.to_tables()) == config
    assert config.completed(dim=1_000, sizes=[200] * 20) == config


def test_private_iterative_adds_noise_as_published_unless_told_otherwise():
    published = load_config({"algorithm": {"name": "private_iterative"}, "privacy": {"epsilon": 1.0}}).privacy
    assert (published.unit, published.placement, published.observer) == ("example", "steps", "server")
    discrete = load_config(
        {"algorithm": {"name": "private_iterative"}, "privacy": {"epsilon": 1.0, "name": "discrete_gaussian"}}
    ).privacy
    assert (discrete.unit, discrete.placement) == ("example", "sent")


def test_the_budget_is_met_by_the_client_that_takes_part_most_often():
    """Cohorts are public, so no amplification counts, but a client is charged only for rounds that it is in."""
    made = protection(privacy=CLIENT, algorithm={"participation": 0.25, "rounds": 30})
    counts = Counter(client for index in range(30) for client in cohort(PublicSeed(0), index, population=20, count=5))
    assert participations(made, PublicSeed(0)) == max(counts.values()) < 30
    spent = epsilon_of({made.charge(): max(counts.values())}, made.budget.claim)
    assert 2.99 < spent <= 3.0
    assert made.charge().sampling == 1


def test_hidden_cohorts_amplify():
    open_, hidden = (
        protection(privacy=CLIENT | {"hidden_cohorts": flag}, algorithm={"participation": 0.1, "rounds": 50})
        for flag in (False, True)
    )
    assert hidden.charge().sampling == 0.1
    assert hidden.budget.claim.adjacency == "add-remove"
    assert open_.budget.claim.adjacency == "zero-out"
    assert participations(hidden, PublicSeed(0)) == 50


def test_the_smallest_client_sets_the_sampling_of_batches():
    made = protection(privacy=EXAMPLE, sizes=[50, 200, 400, 350])
    assert made.charge().sampling == 10 / 50


def test_passes_are_paid_for_by_the_client_that_begins_the_most():
    """10 rounds in batches of 10: 2 passes over 50 examples, and no amplification."""
    made = protection(privacy=PASSES, sizes=[50, 200, 400, 350])
    assert participations(made, PublicSeed(0)) == 2
    assert made.charge().sampling == 1
    assert made.budget.claim.adjacency == "zero-out"
    assert 2.99 < epsilon_of({made.charge(): 2}, made.budget.claim) <= 3.0
    twice = protection(privacy=PASSES | {"adjacency": "replace-one"}, sizes=[50, 200, 400, 350])
    assert twice.budget.multiplier == pytest.approx(2 * made.budget.multiplier, rel=3e-4)


def test_the_smallest_client_is_not_always_the_one_that_begins_most_passes():
    """Cohorts of 2 of 4 clients: what counts is how often each was chosen, over how many batches it has."""
    algorithm, sizes = {"participation": 0.5, "rounds": 30}, [25, 50, 41, 60]
    made = protection(privacy=PASSES | {"delta": 1e-3}, algorithm=algorithm, sizes=sizes)
    counts = Counter(client for index in range(30) for client in cohort(PublicSeed(0), index, population=4, count=2))
    assert participations(made, PublicSeed(0)) == max(-(-counts[client] // -(-sizes[client] // 10)) for client in range(4))


def test_local_steps_with_noise_are_charged_one_by_one():
    made = protection(privacy=STEPS, algorithm={"local_steps": 4})
    assert made.charge().steps == 4
    assert protection(privacy=EXAMPLE).charge().steps == 1


def test_discrete_noise_is_enough_for_the_fewest_survivors():
    made = protection(privacy=DISCRETE, secure={"survivors": 0.6}, **SKETCH)
    assert isinstance(made.mechanism, DiscreteGaussian)
    assert made.charge() == made.charge(12)
    assert made.charge(12).multiplier >= made.budget.multiplier > made.charge(11).multiplier
    assert epsilon_of({made.charge(): 10}, made.budget.claim) <= 3.0
    assert epsilon_of({made.charge(20): 10}, made.budget.claim) < 2.6


def test_noise_that_was_calibrated_before_is_kept():
    """The config.toml of a run says both. What 0.1.0 calibrated by RDP is more than is needed now, and stays."""
    begun = DISCRETE | {"noise_multiplier": 5.0}
    made = protection(privacy=begun, secure={"survivors": 0.6}, **SKETCH)
    assert made.budget.multiplier == 5.0
    now = protection(privacy=DISCRETE, secure={"survivors": 0.6}, **SKETCH).budget
    assert now.settings.noise_multiplier == now.multiplier < 5.0
    by_renyi = protection(privacy=DISCRETE | {"accountant": "rdp"}, secure={"survivors": 0.6}, **SKETCH).budget
    assert 1.03 < by_renyi.multiplier / now.multiplier < 1.15


def test_colluders_add_no_noise():
    made = protection(privacy=DISCRETE, secure={"survivors": 0.8, "colluders": 0.2}, **SKETCH)
    trusting = protection(privacy=DISCRETE, secure={"survivors": 0.8}, **SKETCH)
    assert made.charge(16).multiplier >= made.budget.multiplier
    assert made.mechanism.deviation / made.mechanism.scale > 1.1 * trusting.mechanism.deviation / trusting.mechanism.scale


def test_noise_for_secure_sums_has_no_real_values():
    with pytest.raises(InputError, match="'discrete_gaussian' has no real-valued noise: it adds integers to secure sums"):
        PrivacySettings(**DISCRETE).noise(10, 1.0)
