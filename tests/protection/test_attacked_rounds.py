"""Clients that do harm: what ends a model with the mean does not with a robust rule, and not under secure sums."""

import logging
from dataclasses import replace

import pytest
import torch

from federation import Tap, advanced, federation, weights_of
from pairs import thinned
from sketchfed import data
from sketchfed.algorithms import CombineSettings, FedAvg, Iterative, SketchSettings
from sketchfed.combining import COMBINE_RULES
from sketchfed.models import build
from sketchfed.privacy import DiscreteGaussian, Rounded
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.protection.honest_sums import CHANGED_ODDS, clipped_to, honest_norm
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.training import Examples, make_trainer
from sketchfed.wire import Bits, pack, split, unpack

CLIENTS, ATTACKERS = 10, 2
ROBUST = [name for name in COMBINE_RULES if name != "mean"]
FACTORS = [-9.0, -90.0]
WORK = {"local_steps": 10, "batch": 16, "local_rate": 0.2}


@pytest.fixture(scope="module")
def digits():
    """The digits of ten clients, and those for the test."""
    loaded = data.load("digits")
    parts = data.partition(loaded, name="iid", clients=CLIENTS, seed=PublicSeed(1))
    clients = [Examples(loaded.prepare(loaded.x_train[part]), loaded.y_train[part]) for part in parts]
    return clients, Examples(loaded.prepare(loaded.x_test), loaded.y_test)


def mlp():
    return build("mlp", shape=(64,), outputs=10, seed=PublicSeed(2), hidden=[32])


def trained(algorithm, digits, rounds, **how):
    server = federation(algorithm, digits[0], module=mlp(), loss="cross_entropy", **how)
    return advanced(server, rounds)


def accuracy(server, digits):
    _, right = make_trainer(mlp(), "cross_entropy").score(weights_of(server), digits[1])
    return right / len(digits[1].y)


def multiplied(factor):
    """The first clients send their update times a factor."""

    def tamper(replies):
        for client in range(ATTACKERS):
            packet = unpack(split(replies[client], most=2)[0])
            scaled = {name: factor * array for name, array in packet.arrays.items()}
            replies[client] = pack(replace(packet, arrays=scaled))
        return replies

    return tamper


ALGORITHMS = {
    "dense": FedAvg(**WORK),
    "sketched": Iterative(sketch=SketchSettings(ratio=0.2), **WORK),
}


@pytest.mark.parametrize(("name", "factor"), thinned(ALGORITHMS, FACTORS, every=2))
def test_two_of_ten_clients_that_send_their_update_backwards_end_a_mean(name, factor, digits):
    """Screening begins at 1,000 times the median norm, so nothing is refused."""
    server = trained(ALGORITHMS[name], digits, 15, tamper=multiplied(factor))
    assert server.tally.refused == 0
    assert accuracy(server, digits) < 0.4


@pytest.mark.parametrize(("name", "rule", "factor"), thinned(ALGORITHMS, ROBUST, FACTORS, every=2))
def test_they_do_not_end_a_robust_rule(name, rule, factor, digits):
    """Without attackers, 15 rounds of a mean end at 0.95 (dense) and 0.93 (sketched)."""
    algorithm = replace(ALGORITHMS[name], combine=CombineSettings(name=rule))
    server = trained(algorithm, digits, 15, tamper=multiplied(factor))
    assert accuracy(server, digits) > 0.85


# Secure sums


class Garbage(Tap):
    """In one round, a client masks garbage in place of its update. Masked integers are uniform, and so is what it sends."""

    def __init__(self, inner, rounds, client=3):
        super().__init__(inner)
        self.rounds, self.client = rounds, client

    def ask(self, requests, stage="train"):
        replies = super().ask(requests, stage)
        if stage == "masked" and self.stages.count("masked") in self.rounds:
            packet, generator = unpack(split(replies[self.client], most=2)[0]), torch.Generator().manual_seed(1)
            arrays = dict(packet.arrays)
            [name] = [name for name, array in arrays.items() if isinstance(array, Bits)]
            bits = arrays[name].bits
            arrays[name] = Bits(torch.randint(2**bits, arrays[name].shape, generator=generator), bits=bits)
            replies[self.client] = pack(replace(packet, arrays=arrays))
        return replies


def attacked(algorithm, digits, rounds, **how):
    """A model after some rounds in the clear and one under secure sums, in which a client sends garbage."""
    server = federation(algorithm, digits[0], module=mlp(), loss="cross_entropy", **how)
    server.state = trained(algorithm, digits, rounds - 1).state
    server.engine = Garbage(server.engine.inner, (1,))
    return advanced(server, 1)


PROTECTED = {
    "sums": {"secure": SecureSettings(clip=2.0)},
    "sums and noise": {
        "secure": SecureSettings(),
        "privacy": PrivacySettings(
            name="discrete_gaussian", clip=2.0, noise_multiplier=0.05, delta=1e-3, insecure_noise_seed=1
        ),
    },
}


@pytest.mark.parametrize("name", ["dense", "sketched"])
def test_one_garbage_reply_under_secure_sums_would_end_a_model(name, digits, monkeypatch):
    """What the next test is worth. Rounding is random: ten runs without clipping ended between 0.05 and 0.18."""
    monkeypatch.setattr("sketchfed.protection.secure_sums.clipped_to", lambda values, norm: values)
    assert accuracy(attacked(ALGORITHMS[name], digits, 15, **PROTECTED["sums"]), digits) < 0.5


@pytest.mark.parametrize("protection", PROTECTED)
@pytest.mark.parametrize("name", ["dense", "sketched"])
def test_one_garbage_reply_under_secure_sums_costs_a_round_and_not_the_model(name, protection, digits, caplog):
    """Garbage in the last round, which nothing mends. Masks are random, so the direction of the garbage is too.

    Of 160 runs, 40 for each case, the worst ended at 0.71. In the worst case they end at 0.83 on average, with a standard
    deviation of 0.05. Without clipping they end below 0.25.
    """
    with caplog.at_level(logging.WARNING):
        found = accuracy(attacked(ALGORITHMS[name], digits, 15, **PROTECTED[protection]), digits)
    assert caplog.text.count("honest clients add up to") == 1
    assert "round 15: a secure sum over 10 clients has norm" in caplog.text
    assert found > 0.5


RINGS = {
    "rounded": Rounded(size=300, clip=2.0, clients=20),
    "rounded, few bits": Rounded(size=300, clip=2.0, clients=20, bits=12),
    "noise": DiscreteGaussian.planned(size=300, clip=2.0, multiplier=0.5, clients=20, least=20),
    "noise, examples": DiscreteGaussian.planned(size=300, clip=2.0, multiplier=0.5, clients=20, least=20, units=8),
}


@pytest.mark.parametrize("name", RINGS)
def test_an_honest_sum_is_returned_as_it_is(name):
    """Even if all clients send the same vector of full length. In 60 sums a false alarm has probability below 1e-6.

    A bound that one honest sum in twelve exceeds is found with probability 0.99. Each sum exceeds its bound with probability
    1e-12 at most. With noise, some number wraps around with probability 1e-3 at most in the worst case that the mechanism
    plans for, and these sums have half of its units.
    """
    assert 60 * CHANGED_ODDS < 1e-6
    mechanism, batch = RINGS[name], 8 if "examples" in name else None
    generator = torch.Generator().manual_seed(4)
    for trial in range(60):
        shared, clients = PublicSeed(trial), 10
        row = torch.randn(1, 300, generator=generator)
        total = torch.zeros(300, dtype=torch.int64)
        for client in range(clients):
            secret = SecretSeed.insecure(trial).child("client", client)
            units = 1 if batch is None else int(torch.poisson(torch.tensor([float(batch)]), generator=generator))
            if units:
                summed = mechanism.clipped_sum(1e3 * row.expand(units, 300), secret, shared)
                total += mechanism.noised(summed, secret)
        opened = mechanism.recovered(total & ((1 << mechanism.bits) - 1), shared)
        assert clipped_to(opened, honest_norm(mechanism, clients=clients, batch=batch)) is opened


@pytest.mark.parametrize("name", RINGS)
def test_a_garbage_sum_is_bounded_by_what_honest_clients_can_add_up_to(name):
    """Before: 2^bits/scale·√(size/12). After: the bound, which is 1 to 4 times clients·units·clip here."""
    mechanism, batch = RINGS[name], 8 if "examples" in name else None
    garbage = torch.randint(2**mechanism.bits, (300,), generator=torch.Generator().manual_seed(5))
    opened = mechanism.recovered(garbage, PublicSeed(1))
    wild = 2.0**mechanism.bits / mechanism.scale * (300 / 12) ** 0.5
    assert float(opened.norm()) == pytest.approx(wild, rel=0.2)
    most = honest_norm(mechanism, clients=10, batch=batch)
    clipped = clipped_to(opened, most)
    assert float(clipped.norm()) == pytest.approx(most, rel=1e-5)
    assert torch.nn.functional.cosine_similarity(clipped, opened, dim=0) > 0.9999
    assert 10 * (batch or 1) * mechanism.clip < most < 4 * 10 * (batch or 1) * mechanism.clip
    assert most < wild / 3
