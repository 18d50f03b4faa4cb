"""Double-blind learning: the same as training W through S, with neither W nor a plain gradient on the wire."""

import numpy as np
import pytest
import torch
from blind_federation import (
    FAMILIES,
    MODULES,
    SHAPE,
    all_bytes,
    assert_trains_through_sketches,
    contains_run,
    convolutional,
    data_of,
    dbcl,
    federated,
    perceptron,
    seen_weights,
)
from torch.nn import functional

from federation import advanced, federation, weights_of
from problems import SEED, examples
from sketchfed import run
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.training import AutogradTrainer, PerceptronTrainer
from sketchfed.vectors import Layout
from sketchfed.wire import unpack


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MODULES)
def test_it_trains_the_weights_through_the_sketches(name, family):
    assert_trains_through_sketches(dbcl(family), MODULES[name]())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    "options",
    [
        {"vary": 0.4},
        {"biases": "sketched"},
        {"output": "sketched", "biases": "sketched"},
        {"output": "withheld", "biases": "withheld"},
        {"local_momentum": 0.8, "weight_decay": 0.1},
        {"exclude": ["1"]},
        {"ratio": 1.0},
    ],
    ids=str,
)
def test_so_it_does_with_every_option(name, family, options):
    module = MODULES[name]()
    if "exclude" in options and name == "convolutional":
        options = {"exclude": ["4"]}
    assert_trains_through_sketches(dbcl(family, **options), module, rounds=1, clients=2)


def test_one_local_step_is_distributed_sgd():
    """W ← W − η·(1/m)ΣΓᵢ·Sᵀ (Zhang & Wang 2021, Eq. 2): the step of the mean loss over all clients' batches."""
    module = perceptron()
    server = federated(dbcl(local_epochs=None, local_steps=1, batch=None), module=module)
    before, form = weights_of(server).clone().requires_grad_(True), server.algorithm.given(server.seed, 0).sketch
    losses = [
        functional.cross_entropy(torch.func.functional_call(module, seen_weights(form, before), (part.x,)), part.y)
        for part in data_of(3)
    ]
    (gradient,) = torch.autograd.grad(sum(losses) / 3, before)
    server.advance()
    torch.testing.assert_close(weights_of(server), before.detach() - 0.1 * gradient, rtol=0, atol=1e-6)


def test_dense_layers_have_the_fast_trainer_where_steps_do_not_mix_buckets():
    server = federated(dbcl())
    trainer = server.engine.inner._participant.trainer
    slow = federated(dbcl("srht")).algorithm.given(SEED, 0).trainer(trainer)
    fast = server.algorithm.given(SEED, 0).trainer(trainer)
    assert (type(fast), type(slow)) == (PerceptronTrainer, AutogradTrainer)
    assert server.algorithm.given(SEED, 0).trainer(trainer) is fast  # all clients of a round share one


# --- what else may be sketched or withheld


def test_what_is_withheld_never_travels_and_never_changes():
    module = convolutional()
    server = federated(dbcl(output="withheld", biases="withheld"), module=module)
    start = Layout.of(module).views(weights_of(server).clone())
    form = advanced(server, 3).algorithm.given(server.seed, 0).sketch
    end = Layout.of(module).views(weights_of(server))
    assert form.withheld == {"0.bias", "7.bias", "9.weight", "9.bias"}
    assert not form.withheld & set(form.seen.names)
    for name in form.withheld:
        assert torch.equal(start[name], end[name])
        assert bool((end[name] == 0).all()) == name.endswith("bias")
        assert name == "9.weight" or not torch.equal(end["9.weight"], module.get_parameter("9.weight"))
    assert not torch.equal(start["1.weight"], end["1.weight"])  # normalisation travels as it is


def test_with_everything_sketched_no_array_is_plain():
    form = federated(dbcl(output="sketched", biases="sketched")).algorithm.given(SEED, 0).sketch
    assert set(form.seen.names) == set(form.sketches) == {"1.weight", "3.weight", "5.weight"}


# --- the first weights

TINY_RUN = {"data": {"clients": 4}, "algorithm": {"name": "dbcl", "rounds": 2}}


def test_the_first_weights_are_a_secret_of_the_server():
    first, second = (run(TINY_RUN) for _ in range(2))
    assert not torch.equal(first.weights, second.weights)
    shared = {**TINY_RUN, "algorithm": {**TINY_RUN["algorithm"], "public_start": True}}
    assert torch.equal(run(shared).weights, run(shared).weights)


def test_even_public_first_weights_travel_as_sketches():
    """Otherwise a client of the first round would train W itself."""
    server = federated(dbcl())
    server.advance()
    assert unpack(server.engine.tasks[0][0]).kind == "snapshot"


def test_an_interrupted_run_keeps_its_secret_start(tmp_path):
    from sketchfed import resume

    done = run({**TINY_RUN, "engine": {"checkpoint_seconds": 0.0}}, folder=tmp_path / "run")
    assert torch.equal(resume(tmp_path / "run").weights, done.weights)


# --- with noise and secure sums


@pytest.mark.parametrize("vary", [0.0, 0.5])
def test_secure_sums_and_noise_compose_with_it(vary):
    algorithm = dbcl(vary=vary, participation=0.6)
    plain = advanced(federated(algorithm, clients=6), 3)
    secure = advanced(federated(algorithm, clients=6, secure=SecureSettings(clip=50.0)), 3)
    torch.testing.assert_close(weights_of(secure), weights_of(plain), rtol=1e-3, atol=1e-4)
    noise = PrivacySettings(name="discrete_gaussian", noise_multiplier=0.5, delta=1e-3, clip=0.5, insecure_noise_seed=1)
    private = advanced(federated(algorithm, clients=6, privacy=noise, secure=SecureSettings()), 2)
    assert 0 < private.epsilon < float("inf")
    assert not any(
        contains_run(all_bytes(private.engine), w) for w in Layout.of(perceptron()).views(weights_of(private)).values()
    )


@pytest.mark.parametrize("placement", ["sent", "steps"])
def test_noise_in_each_local_step_goes_through_the_sketch(placement):
    """With next to no noise and batches that everyone is in, several private steps are several plain ones."""
    work = {"local_epochs": None, "local_steps": 3, "batch": 100, "vary": 0.4}
    noise = PrivacySettings(
        unit="example", placement=placement, noise_multiplier=1e-12, delta=1e-3, clip=1e3, insecure_noise_seed=2
    )
    data = [examples(16, shape=SHAPE) for _ in range(3)]
    settings = {"module": perceptron(), "loss": "cross_entropy"}
    plain = advanced(federation(dbcl(**work), data, **settings), 2)
    # A private step divides by the batch that is expected, not by the one that came.
    private = advanced(federation(dbcl(**work, local_rate=0.1 * 100 / 16), data, privacy=noise, **settings), 2)
    torch.testing.assert_close(weights_of(private), weights_of(plain), rtol=1e-3, atol=1e-4)


def test_noise_is_in_what_clients_say():
    noise = PrivacySettings(noise_multiplier=2.0, delta=1e-3, clip=0.1, insecure_noise_seed=2)
    server = advanced(federated(dbcl(), privacy=noise), 1)
    sent = unpack(server.engine.replies[0][0]).arrays["values"]
    # ‖noise‖² is (2·0.1)²·χ² with as many degrees of freedom as numbers; six deviations: false alarm below 1e-8.
    assert abs(float((sent / 0.2).square().sum()) / len(sent) - 1) < 6 * np.sqrt(2 / len(sent)) + 0.5 / len(sent)
