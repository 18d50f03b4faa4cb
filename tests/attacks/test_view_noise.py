"""With calibrated noise, what is seen differs from what examples would look like by that noise, as strong as views say."""

import math

import pytest
import torch
from recorded_runs import compared, distance, recorded
from scipy import stats
from torch import Tensor

from sketchfed.attacks import Update
from sketchfed.audits.evidence import Evidence

FALSE_ALARM = 1e-6
CLIENT = {"noise_multiplier": 0.05, "clip": 1.0, "delta": 1e-3, "accountant": "rdp"}
EXAMPLE = {"noise_multiplier": 0.02, "clip": 30.0, "delta": 1e-4, "unit": "example", "accountant": "rdp"}
PUBLIC = {"observer": "public"}
STEPS = {"placement": "steps"}
SVD = {"name": "incremental_svd", "size": 60}
SENT = {
    "client": {"privacy": CLIENT},
    "client, sketched": {"privacy": CLIENT, "codec": {"name": "sketched"}},
    "client, several steps": {"privacy": CLIENT, "algorithm": {"local_steps": 3}},
    "client, iterative": {"privacy": CLIENT, "algorithm": {"name": "iterative"}},
    "client, fetchsgd": {"privacy": CLIENT, "algorithm": {"name": "fetchsgd"}},
    "client, dbcl": {"privacy": CLIENT, "algorithm": {"name": "dbcl", "vary": 0.3}},
    "client, dome": {"privacy": CLIENT, "algorithm": {"name": "dome", "remove_mean": True}, "subspace": SVD},
    "example": {"privacy": EXAMPLE},
    "example, sketched": {"privacy": EXAMPLE, "codec": {"name": "sketched"}},
    "example, in passes": {"privacy": EXAMPLE | {"batches": "passes"}, "algorithm": {"local_steps": None}},
    "example, in short passes": {"privacy": EXAMPLE | {"batches": "passes"}, "algorithm": {"local_steps": None, "batch": 200}},
    "example, iterative": {"privacy": EXAMPLE, "algorithm": {"name": "iterative"}},
    "example, dbcl": {"privacy": EXAMPLE, "algorithm": {"name": "dbcl"}},
    "example, in steps": {"privacy": EXAMPLE | STEPS},
    "example, in steps, dbcl": {"privacy": EXAMPLE | STEPS, "algorithm": {"name": "dbcl"}},
}
"""Noise on every number that is sent, and nowhere else: independent, of one deviation."""
MAPPED = {
    "private_iterative": {"privacy": {**EXAMPLE, "unit": "example"}, "algorithm": {"name": "private_iterative"}},
    "private_iterative, gaussian": {
        "privacy": EXAMPLE,
        "algorithm": {"name": "private_iterative"},
        "sketch": {"name": "gaussian"},
    },
    "sketched": {"privacy": EXAMPLE | STEPS, "codec": {"name": "sketched"}},
    "fetchsgd": {"privacy": EXAMPLE | STEPS, "algorithm": {"name": "fetchsgd"}},
    "dome": {"privacy": EXAMPLE | STEPS, "algorithm": {"name": "dome"}, "subspace": {"size": 60}},
}
"""Noise in all coordinates of a step, behind which there is a map."""


def noises(run: Evidence, role: str) -> list[tuple[Update, Tensor]]:
    """What is noise in each update; a hidden batch may be of nobody, and then all of it is."""
    found = []
    for update in list(run.view(role).updates()):
        truth = run.behind(update.round, update.clients)
        seen = update.observation.seen(truth.x, truth.y).detach() if len(truth.x) else 0.0
        found.append((update, update.observation.values - seen))
    return found


def strength(found: list[tuple[Update, Tensor]]) -> float:
    """Of noise, relative to what is said."""
    return math.sqrt(sum(float(noise.square().mean()) / update.noise**2 for update, noise in found) / len(found))


def check_deviation(found: list[tuple[Update, Tensor]], *, more: float = 1.0) -> None:
    """Σ(noise/deviation)² is χ² of as many degrees as there are numbers; or up to `more` times as much."""
    total = sum(float((noise / update.noise).double().square().sum()) for update, noise in found)
    count = sum(len(noise) for _, noise in found)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], count)
    assert low <= total <= more * high, math.sqrt(total / count)


@pytest.mark.parametrize("case", SENT)
def test_the_server_sees_noise_of_the_deviation_that_is_said(case):
    """False alarm below 1e-6."""
    found = noises(recorded(SENT[case], rounds=6), "server")
    assert len(found) == 30
    check_deviation(found)


@pytest.mark.parametrize("role", ["client", "colluders"])
@pytest.mark.parametrize("case", [case for case in SENT if "fetchsgd" not in case])
def test_clients_see_the_noise_of_the_others(case, role):
    """Their own went with their own part."""
    found = noises(recorded(SENT[case], rounds=6), role)
    assert {len(update.clients) for update, _ in found} == {4 if role == "client" else 3}
    if case.endswith("sketched"):  # back from 61 numbers a round: 0.25 is six deviations of what five rounds give
        assert strength(found) == pytest.approx(1, rel=0.25)
    else:
        check_deviation(found)


@pytest.mark.parametrize("privacy", [CLIENT, EXAMPLE, EXAMPLE | {"batches": "passes"}], ids=["client", "example", "passes"])
@pytest.mark.parametrize("algorithm", ["fedavg", "iterative", "dbcl"])
def test_a_server_that_is_trusted_sees_none_and_clients_that_of_the_sum(algorithm, privacy):
    steps = None if "batches" in privacy else 1
    run = recorded({"privacy": privacy | PUBLIC}, name=algorithm, rounds=6, local_steps=steps)
    for update, noise in noises(run, "server"):
        assert update.noise == 0
        assert float(noise.norm()) < 1e-4 * float(update.observation.values.norm()) + 1e-9
    for role, others in (("client", 4), ("colluders", 3)):
        found = noises(run, role)
        scale = run.config.algorithm.local_rate / 4 if privacy["clip"] == EXAMPLE["clip"] else 1.0
        sigma = run.config.privacy.noise_multiplier * run.config.privacy.clip * scale
        assert all(update.noise == pytest.approx(sigma / others) for update, _ in found)
        check_deviation(found)


@pytest.mark.parametrize("case", MAPPED)
def test_noise_in_steps_is_as_strong_as_the_map_lets_it_through(case):
    """The map's norm is estimated from probes, so within a tenth."""
    run = recorded(MAPPED[case], rounds=6)
    assert strength(noises(run, "server")) == pytest.approx(1, rel=0.1)
    told = noises(run, "client")
    assert bool(told) == (case != "fetchsgd")
    if told:  # six deviations, and what the estimate may err
        assert strength(told) == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("algorithm", ["fedavg", "iterative", "dbcl"])
@pytest.mark.parametrize("privacy", [CLIENT, EXAMPLE], ids=["client", "example"])
def test_sums_have_the_noise_of_all_who_are_in_them(privacy, algorithm):
    """Rounding to integers adds a little: at most 1/36 of the noise's variance for each vector that a client adds up."""
    tables = {"privacy": privacy | {"name": "discrete_gaussian"}, "secure": {}}
    run = recorded(tables, name=algorithm, rounds=6)
    units = 1 if privacy is CLIENT else 12
    found = noises(run, "secure server")
    assert [update.clients for update, _ in found] == [(0, 1, 2, 3, 4)] * 6
    check_deviation(found, more=1 + units / 36)
    hidden = privacy is EXAMPLE
    for role, others in (("client", 4), ("colluders", 3)):
        told = noises(run, role)
        assert {len(update.clients) for update, _ in told} == {5 if hidden else others}
        assert told[0][0].noise == pytest.approx(found[0][0].noise * 5 / (5 if hidden else others))
        check_deviation(told, more=1 + units / 36)


def test_noise_in_steps_under_secure_sums():
    run = recorded({"privacy": EXAMPLE | STEPS, "secure": {"clip": 100.0}}, rounds=6)
    check_deviation(noises(run, "secure server"))


def test_which_examples_are_in_a_batch_is_public_in_passes_and_hidden_otherwise():
    hidden, passes = (recorded({"privacy": EXAMPLE | {"batches": way}}, local_steps=None) for way in ("poisson", "passes"))
    assert all(update.used is None for update in hidden.view("server").updates())
    for update in passes.view("server").updates():
        own = passes.workload.examples(update.clients[0])
        assert torch.equal(own.x[list(update.used)], passes.behind(update.round, update.clients).x)


def test_a_run_without_noise_says_so():
    assert all(update.noise == 0 and update.clip is None for update in recorded().view("client").updates())


def test_hidden_batches_are_not_told_apart_by_size():
    """A sum is divided by the planned size: whatever came, the observation explains it."""
    run = recorded({"privacy": EXAMPLE | PUBLIC})
    sizes = {len(run.behind(update.round, update.clients).x) for update in run.view("server").updates()}
    assert len(sizes) > 3
    assert {update.count for update in run.view("server").updates()} == {4}
    found = [(update, seen, values) for update, seen, values in compared(run, "server") if len(values)]
    assert all(distance(seen, values) < 1e-4 for _, seen, values in found)
