"""Rounds with noise: what is sent, what the server makes of it, and what the ledger says."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from federation import advanced, data_of, federation, weights_of
from sketchfed.algorithms import Dbcl, FedAvg, FetchSgd, Iterative
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.privacy.sampling import poisson_sample
from sketchfed.protection import PrivacySettings
from sketchfed.seeds import SecretSeed
from sketchfed.wire import pack, unpack

FALSE_ALARM = 1e-6
TINY = 1e-9  # noise that changes nothing that float32 shows
SKETCHED = SketchSettings(ratio=0.5)
ALGORITHMS = {
    "dense": FedAvg(local_rate=0.1),
    "sketched": FedAvg(codec=CodecSettings(name="sketched"), sketch=SKETCHED, local_rate=0.1),
    "iterative": Iterative(sketch=SKETCHED, local_rate=0.1),
    "fetchsgd": FetchSgd(sketch=SketchSettings(name="count", ratio=0.6), rows=3, local_rate=0.1),
    "dbcl": Dbcl(sketch=SketchSettings(name="balanced", ratio=0.5), vary=0.4, output="sketched", local_rate=0.1),
}


def privacy(**settings):
    return PrivacySettings(**{"noise_multiplier": TINY, "delta": 1e-3, "clip": 1e6, "insecure_noise_seed": 5} | settings)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("observer", ["server", "public"])
def test_without_clipping_and_noise_a_round_is_a_plain_round(name, observer):
    data = data_of(4)
    plain = advanced(federation(ALGORITHMS[name], data), 3)
    made = advanced(federation(ALGORITHMS[name], data, privacy=privacy(observer=observer, clip=1e3, noise_multiplier=1e-12)), 3)
    torch.testing.assert_close(weights_of(made), weights_of(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("observer", ["server", "public"])
def test_at_example_level_one_full_batch_is_a_plain_step(name, observer):
    """A batch that everyone is in, never clipped: the mean gradient, as a step on all examples has it."""
    data = [replace_count(part, 8) for part in data_of(4)]
    plain = advanced(federation(ALGORITHMS[name], data), 2)
    algorithm = replace(ALGORITHMS[name], batch=8, local_steps=1)
    settings = privacy(observer=observer, unit="example", clip=1e3, noise_multiplier=1e-12)
    made = advanced(federation(algorithm, data, privacy=settings), 2)
    torch.testing.assert_close(weights_of(made), weights_of(plain), rtol=1e-3, atol=1e-4)


def replace_count(part, count):
    return type(part)(part.x[:count].repeat(2, 1)[:count], part.y[:count].repeat(2, 1)[:count])


def sent_by(server, client=0):
    return unpack(server.engine.replies[-1][client]).arrays["values"].reshape(-1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_leaves_a_client_is_clipped_after_encoding(name):
    """For a trusted server: no noise yet, and no vector longer than the clip norm, whatever the sketch made of it."""
    server = advanced(federation(ALGORITHMS[name], data_of(4), privacy=privacy(observer="public", clip=0.01)), 1)
    norms = [float(sent_by(server, client).norm()) for client in range(4)]
    assert max(norms) <= 0.01 * (1 + 1e-5)
    assert min(norms) > 0.0099


def test_noise_against_the_server_is_in_every_reply():
    """Normal with deviation multiplier·clip: a χ² test on its energy, false alarm below 1e-6."""
    algorithm = FedAvg(codec=CodecSettings(name="sketched"), sketch=SketchSettings(size=28), local_rate=0.1)
    settings = privacy(observer="server", clip=1e-6, noise_multiplier=3e6)
    server = advanced(federation(algorithm, data_of(40), privacy=settings), 1)
    energy = sum(float(sent_by(server, client).double().square().sum()) for client in range(40)) / 3.0**2
    law = stats.chi2(40 * 28)
    assert law.ppf(FALSE_ALARM / 2) < energy < law.ppf(1 - FALSE_ALARM / 2)


def test_a_trusted_server_adds_the_noise_of_one_to_the_sum_of_all():
    """The mean over n clients moves by noise of deviation multiplier·clip/n; χ² on its energy, false alarm below 1e-6."""
    data = data_of(10)
    algorithm = FedAvg(local_rate=1e-6)
    settings = privacy(observer="public", clip=1.0, noise_multiplier=5.0)
    server = federation(algorithm, data, privacy=settings)
    before = weights_of(server).clone()
    energies = []
    for _ in range(40):
        start = weights_of(server).clone()
        energies.append(float((weights_of(advanced(server, 1)) - start).double().square().sum()) / 0.5**2)
    law = stats.chi2(40 * len(before))
    assert law.ppf(FALSE_ALARM / 2) < sum(energies) < law.ppf(1 - FALSE_ALARM / 2)


def test_a_client_that_does_not_clip_is_clipped_on_arrival():
    def shout(replies):
        loud = unpack(replies[0])
        arrays = {"values": loud.arrays["values"] * 1e4}
        return replies | {0: pack(replace(loud, arrays=arrays))}

    settings = privacy(observer="public", clip=0.5)
    honest = advanced(federation(FedAvg(local_rate=0.1), data_of(4), privacy=settings), 1)
    shouted = advanced(federation(FedAvg(local_rate=0.1), data_of(4), privacy=settings, tamper=shout), 1)
    assert float((weights_of(honest) - weights_of(shouted)).norm()) < 0.5 / 2
    assert shouted.tally.refused == 0


def test_only_those_who_replied_are_charged():
    def silent(replies):
        return {client: reply for client, reply in replies.items() if client != 2}

    server = advanced(
        federation(FedAvg(), data_of(4), privacy=privacy(observer="server", noise_multiplier=1.0), tamper=silent), 1
    )
    (entry,) = server.privacy_ledger.entries
    assert entry.settled
    assert entry.clients == (0, 1, 3)


def test_a_reply_that_is_refused_was_seen_and_is_charged():
    def garble(replies):
        return replies | {1: replies[1][:-1]}

    settings = privacy(observer="server", noise_multiplier=1.0)
    server = advanced(federation(FedAvg(), data_of(4), privacy=settings, tamper=garble), 1)
    assert server.tally.refused == 1
    assert server.privacy_ledger.entries[0].clients == (0, 1, 2, 3)


def test_rounds_of_everybody_add_up_as_the_accountant_says():
    server = advanced(federation(FedAvg(), data_of(4), privacy=privacy(observer="server", noise_multiplier=2.0)), 5)
    assert len(server.privacy_ledger.entries) == 5
    mu, epsilon = math.sqrt(5) / 2.0, server.epsilon  # Balle & Wang 2018, Thm 8, for the five together
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-3, rel=1e-3)


def test_a_run_without_noise_has_no_epsilon():
    server = advanced(federation(FedAvg(), data_of(4)), 1)
    assert server.epsilon is None
    assert server.affordable()


def test_the_budget_refuses_the_round_that_would_exceed_it():
    settings = privacy(observer="server", epsilon=2.0, noise_multiplier=None)
    server = federation(FedAvg(rounds=3), data_of(4), privacy=settings)
    for _ in range(3):
        assert server.affordable()
        server.advance()
    assert not server.affordable()
    assert 1.99 < server.epsilon <= 2.0


def test_hidden_cohorts_are_poisson_and_divided_by_what_was_expected():
    settings = privacy(observer="public", hidden_cohorts=True, noise_multiplier=TINY, clip=1e3)
    server = federation(FedAvg(participation=0.5, local_rate=0.1, rounds=40), data_of(8), privacy=settings)
    sizes = []
    for _ in range(10):
        server.advance()
        sizes.append(len(server.engine.tasks[-1]))
    assert len(set(sizes)) > 1
    start = weights_of(server)
    moved = weights_of(advanced(server, 1)) - start
    total = sum(sent_by_all(server))
    torch.testing.assert_close(moved, total / 4, rtol=1e-4, atol=1e-6)  # global_rate is 1, and 4 of 8 are expected
    assert all(entry.clients is None for entry in server.privacy_ledger.entries)


def sent_by_all(server):
    return [unpack(reply).arrays["values"] for reply in server.engine.replies[-1].values()]


def test_a_round_without_clients_is_noise():
    settings = privacy(observer="public", hidden_cohorts=True, noise_multiplier=1.0)
    server = federation(FedAvg(participation=1e-12), data_of(4), privacy=settings)
    before = weights_of(server).clone()
    server.advance()
    assert server.engine.tasks[-1] == {}
    assert bool((weights_of(server) != before).all())


def test_hidden_cohorts_come_from_a_secret():
    """Binomial in size, false alarm below 1e-6."""
    drawn = poisson_sample(SecretSeed.insecure(3), 10_000, chance=0.2)
    law = stats.binom(10_000, 0.2)
    assert law.ppf(FALSE_ALARM / 2) <= len(drawn) <= law.ppf(1 - FALSE_ALARM / 2)
    first, second = (poisson_sample(SecretSeed(), 1_000, chance=0.5).tolist() for _ in range(2))
    assert first != second
    assert poisson_sample(SecretSeed(), 10, chance=1.0).tolist() == list(range(10))


def test_secret_noise_is_never_drawn_twice():
    settings = replace(privacy(observer="server", noise_multiplier=1.0), insecure_noise_seed=None)
    first, second = (weights_of(advanced(federation(FedAvg(), data_of(4), privacy=settings), 1)) for _ in range(2))
    assert bool((first != second).all())


def test_local_steps_on_noisy_codes_see_each_other_only_through_them():
    """Two steps with all noise: what is sent is the sum of two noisy codes, and each is charged."""
    algorithm = Iterative(sketch=SKETCHED, local_rate=0.1, batch=4, local_steps=2)
    server = advanced(federation(algorithm, data_of(4), privacy=privacy(unit="example", noise_multiplier=1.0)), 1)
    assert server.privacy_ledger.entries[0].charge.steps == 2
