"""FedAdam, FedYogi and FedAdagrad: the steps of Reddi et al. 2021, Alg. 2, and what they are good for."""

from hashlib import sha256

import numpy as np
import pytest
import torch
from torch import nn

from federation import SEED, advanced, data_of, federation, weights_of
from problems import by_torch, dense_model
from sketchfed.algorithms import Dbcl, FedAvg, Iterative, ServerSettings, SketchSettings
from sketchfed.errors import DivergedError, InputError, WireError
from sketchfed.server_optimisers import FedAdagrad, FedAdam, FedYogi
from sketchfed.sketches import dense, make_sketch
from sketchfed.training import LOSSES, Examples, LocalWork
from sketchfed.vectors import flatten, load
from sketchfed.wire import pack, unpack

ADAPTIVE = ("adam", "yogi", "adagrad")


def published(name, changes, *, beta1, beta2=0.99, tau=1e-3):
    """The steps of Alg. 2 for these changes, in float64."""
    m, v, steps = np.zeros(changes.shape[1]), np.full(changes.shape[1], tau**2), []
    for delta in changes.astype(np.float64):
        m = beta1 * m + (1 - beta1) * delta
        v = {
            "adagrad": v + delta**2,
            "yogi": v - (1 - beta2) * delta**2 * np.sign(v - delta**2),
            "adam": beta2 * v + (1 - beta2) * delta**2,
        }[name]
        steps.append(m / (np.sqrt(v) + tau))
    return np.array(steps)


def played(optimiser, changes):
    moments, steps = optimiser.begin(changes.shape[1]), []
    for change in torch.from_numpy(changes):
        step, moments = optimiser.step(change, moments)
        steps.append(step.numpy())
    return np.array(steps)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
@pytest.mark.parametrize(("kind", "name"), [(FedAdam, "adam"), (FedYogi, "yogi"), (FedAdagrad, "adagrad")])
def test_steps_are_those_of_algorithm_2(kind, name, beta1):
    """On changes that shrink over the rounds, so that Yogi's sign takes both values."""
    changes = np.random.default_rng(0).normal(size=(30, 50)) * np.logspace(0, -4, 30)[:, None]
    found = played(kind(beta1=beta1), changes.astype(np.float32))
    np.testing.assert_allclose(found, published(name, changes, beta1=beta1), rtol=2e-5, atol=1e-7)


def test_defaults_are_those_of_the_papers_experiments():
    for each in (FedAdam(), FedYogi()):
        assert (each.beta1, each.beta2, each.adaptivity) == (0.9, 0.99, 1e-3)
    assert (FedAdagrad().beta1, FedAdagrad().adaptivity) == (0.0, 1e-3)


def test_without_bias_correction_the_first_step_is_one_for_the_defaults_and_larger_for_others():
    """(1 − β₁)/√(1 − β₂), for changes far above τ."""
    change = np.full((1, 3), 50.0, dtype=np.float32)
    assert played(FedAdam(), change) == pytest.approx(1.0, rel=1e-3)
    assert played(FedAdam(beta2=0.999), change) == pytest.approx(0.1 / 0.001**0.5, rel=1e-3)


def moved(name, w, change, m, v, *, rate, tau):
    """One round of Alg. 2 with momentum 0.5 and β₂ = 0.9."""
    m = 0.5 * m + 0.5 * change
    squares = {"adam": 0.9 * v + 0.1 * change**2, "adagrad": v + change**2}
    v = squares.get(name, v - 0.1 * change**2 * torch.sign(v - change**2))
    return w + rate * m / (v.sqrt() + tau), m, v


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("sketched", [False, True])
def test_rounds_are_those_of_a_plain_loop(name, sketched):
    """Clients train with torch.optim.SGD, and the sketch is a matrix."""
    options = {"beta1": 0.5, "adaptivity": 0.01} | ({} if name == "adagrad" else {"beta2": 0.9})
    common = {"local_steps": 2, "global_rate": 0.05, "server_optimiser": ServerSettings(name=name, options=options)}
    algorithm = Iterative(sketch=SketchSettings(size=16), **common) if sketched else FedAvg(**common)
    server, w = federation(algorithm, data_of(3)), flatten(dense_model("linear"))
    m, v, loss, work = torch.zeros_like(w), torch.full_like(w, 1e-4), LOSSES["squares"], LocalWork(rate=0.1, steps=2)
    for index in range(5):
        server.advance()
        change = torch.stack([by_torch(dense_model("linear"), loss, w, data, work) for data in data_of(3)]).mean(0) - w
        if sketched:
            sketch = make_sketch("srht", dim=28, size=16, seed=SEED.child("round", index).child("sketch"))
            r = dense(sketch, dtype=torch.float32)
            change = r.T @ (r @ change)
        w, m, v = moved(name, w, change, m, v, rate=0.05, tau=0.01)
        assert torch.allclose(weights_of(server), w, atol=1e-4)


@pytest.mark.parametrize(("name", "digest"), [("adam", "d71dbe696b48"), ("yogi", "55b1631fa003"), ("adagrad", "28518625ccfc")])
def test_steps_are_the_same_to_the_bit_on_every_processor(name, digest):
    optimiser = ServerSettings(name=name).optimiser()
    moments, found = optimiser.begin(54), sha256()
    for t in range(30):
        change = torch.from_numpy(np.cos(np.arange(1.0, 55) * (t + 1))).float()
        step, moments = optimiser.step(change, moments)
        for tensor in (step, *moments.values()):
            found.update(tensor.numpy().tobytes())
    assert found.hexdigest()[:12] == digest


def test_a_client_gets_moments_with_the_model_only_if_it_follows_updates():
    """FedAvg's clients need the weights alone, and Adagrad without momentum has no running mean."""
    sizes = {}
    for name in ("sgd", *ADAPTIVE):
        for kind in (FedAvg, Iterative):
            server = advanced(federation(kind(server_optimiser=ServerSettings(name=name)), data_of(3)), 1)
            form, replica = server.algorithm.given(SEED, 1), server.state.replica
            packet = unpack(pack(form.packet(replica)))
            sizes[kind.name, name] = len(packet.arrays)
            assert form.replica(packet, 28).moments.keys() == (replica.moments.keys() if kind is Iterative else set())
    assert [sizes["fedavg", name] for name in ("sgd", *ADAPTIVE)] == [1, 1, 1, 1]
    assert [sizes["iterative", name] for name in ("sgd", *ADAPTIVE)] == [1, 3, 3, 2]


def test_a_whole_model_with_negative_squares_is_refused():
    server = advanced(federation(Iterative(server_optimiser=ServerSettings(name="adam")), data_of(3)), 1)
    packet = unpack(pack(server.algorithm.given(SEED, 1).packet(server.state.replica)))
    packet.arrays["moments.square"][3] = -1.0
    replica = server.algorithm.given(SEED, 1).replica(packet, 28)
    _, update = server.algorithm.server(server.state, [_reply(server)], SEED)
    with pytest.raises(WireError, match="second moments are negative"):
        server.algorithm.follow(replica, update, SEED)


def _reply(server):
    return unpack(server.engine.replies[-1][0])


def test_changes_whose_squares_overflow_end_the_run_as_diverged():
    with pytest.raises(DivergedError, match=r"no longer finite\. Lower algorithm.local_rate"):
        FedAdam().step(torch.full((3,), 1e30), FedAdam().begin(3))


# Settings


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ServerSettings(name="adm"), "Did you mean 'adam'"),
        (lambda: ServerSettings(name="adam", options={"beta": 0.5}), "Did you mean 'beta2'"),
        (lambda: ServerSettings(name="adam", options={"beta1": 1.0}), "server.beta1 must be from 0 to below 1, got 1.0"),
        (lambda: ServerSettings(name="yogi", options={"beta2": -0.1}), "server.beta2 must be from 0 to below 1"),
        (lambda: ServerSettings(name="adagrad", options={"beta2": 0.9}), "no key in .server. named 'beta2'"),
        (lambda: ServerSettings(name="adam", options={"adaptivity": 0.0}), "server.adaptivity must be from 1e-15"),
        (lambda: ServerSettings(options={"beta1": 0.5}), "algorithm.server = 'sgd' has no options"),
        (lambda: FedAvg(global_momentum=0.9, server_optimiser=ServerSettings(name="adam")), "exclude each other.*server.beta1"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(made, said):
    with pytest.raises(InputError, match=said):
        made()


def test_the_rate_is_the_optimisers_unless_it_is_set():
    for kind in (FedAvg, Iterative, Dbcl):
        for optimiser in (FedAdam, FedYogi, FedAdagrad):
            chosen = ServerSettings(name=optimiser.name)
            assert kind(server_optimiser=chosen).resolved(28).global_rate == optimiser.default_rate
            assert kind(server_optimiser=chosen, global_rate=0.5).resolved(28).global_rate == 0.5
    assert FedAvg(global_momentum=0.9).resolved(28).global_rate == pytest.approx(0.1)


# What they are good for

FEATURES, CLIENTS = 12, 4
OFTEN = torch.logspace(0, -2, FEATURES)


def sparse(clients=CLIENTS):
    """Features that are seen in all examples, down to one in a hundred, as words are. All of them matter alike."""
    generator = torch.Generator().manual_seed(3)
    wanted = torch.linspace(0.5, 1.5, FEATURES) * torch.where(torch.arange(FEATURES) % 2 == 0, 1.0, -1.0)
    x = (torch.rand(clients, 300, FEATURES, generator=generator) < OFTEN) * torch.randn(
        clients, 300, FEATURES, generator=generator
    )
    return [Examples(each, (each @ wanted)[:, None]) for each in x], wanted


def rounds_to(error, name, rate, most=120):
    """The rounds until the weights of all features are found, up to a share of their norm. `most` if they are not."""
    data, wanted = sparse()
    module = nn.Linear(FEATURES, 1, bias=False)
    load(module, torch.zeros(FEATURES))
    algorithm = FedAvg(local_steps=2, local_rate=0.2, global_rate=rate, server_optimiser=ServerSettings(name=name))
    server = federation(algorithm, data, module=module)
    for index in range(most):
        server.advance()
        if (weights_of(server) - wanted).norm() < error * wanted.norm():
            return index + 1
    return most


@pytest.mark.parametrize("name", ADAPTIVE)
def test_rare_features_are_learnt_in_fewer_rounds_than_with_fedavg(name):
    """Reddi et al. 2021, Sec. 5, find this on tasks with sparse gradients. Each method has the best rate of a grid.

    FedAvg takes more rounds at both ends of its grid, and diverges at 8. All rounds are the same each time.
    """
    adaptive = min(rounds_to(0.2, name, rate) for rate in (0.1, 0.3))
    plain = min(rounds_to(0.2, "sgd", rate) for rate in (2.0, 4.0, 6.0))
    assert adaptive <= plain / 2
