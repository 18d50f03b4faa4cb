"""Runs whose clients are corrected for drifting apart, against a few lines of torch."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed import PublicSeed
from sketchfed.algorithms import cohort
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.workload import from_config

CLIENTS, ROUNDS, RATE, STEPS = 5, 6, 0.3, 4
ROUND = {"rounds": ROUNDS, "participation": 0.6, "local_rate": RATE, "local_steps": STEPS}


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Clients with different laws."""
    draw = torch.Generator().manual_seed(100 + client)
    x = torch.randn(12, 4, generator=draw) + client / 2
    return x, (x @ torch.randn(4, 3, generator=draw)).argmax(1)


SETS = [data(client) for client in range(CLIENTS)]


def model() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def ran(config: dict, **more):
    return sketchfed.run(config, model=model(), clients=SETS, test=SETS[0], **more)


def gradient(weights: torch.Tensor, client: int) -> torch.Tensor:
    module, (x, y) = model(), SETS[client]
    nn.utils.vector_to_parameters(weights, module.parameters())
    parts = torch.autograd.grad(functional.cross_entropy(module(x), y), list(module.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def start() -> torch.Tensor:
    return nn.utils.parameters_to_vector(model().parameters()).detach()


def cohorts() -> list[list[int]]:
    return [cohort(PublicSeed(0), index, population=CLIENTS, count=3) for index in range(ROUNDS)]


def fedprox(mu: float) -> torch.Tensor:
    """Li et al. 2020, Alg. 2, with gradient descent as the local solver."""
    weights = start()
    for chosen in cohorts():
        ends = []
        for client in chosen:
            local = weights.clone()
            for _ in range(STEPS):
                local = local - RATE * (gradient(local, client) + mu * (local - weights))
            ends.append(local)
        weights = torch.stack(ends).mean(0)
    return weights


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_fedprox_takes_the_steps_of_the_paper(mu):
    found = ran({"algorithm": ROUND, "training": {"proximal": mu}})
    torch.testing.assert_close(found.weights, fedprox(mu), rtol=1e-4, atol=1e-6)


def test_the_proximal_term_keeps_clients_near_the_rounds_weights():
    assert not torch.allclose(fedprox(0.8), fedprox(0.0), rtol=1e-2)
    far, near = (ran({"algorithm": ROUND | {"rounds": 1}, "training": {"proximal": mu}}).weights for mu in (0.0, 2.0))
    assert (near - start()).norm() < 0.8 * (far - start()).norm()


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": ROUND | {"name": "iterative"}, "sketch": {"ratio": 0.5}},
        {"algorithm": ROUND | {"name": "dbcl"}},
        {"algorithm": ROUND, "training": {"optimiser": "adam", "optimiser_state": "kept"}},
        {"algorithm": ROUND, "secure": {"clip": 5.0}},
        {"algorithm": ROUND, "privacy": {"noise_multiplier": 0.1, "clip": 1.0, "insecure_noise_seed": 1}},
        {
            "algorithm": ROUND | {"batch": 4},
            "privacy": {
                "noise_multiplier": 0.1,
                "delta": 1e-3,
                "clip": 1.0,
                "insecure_noise_seed": 1,
                "unit": "example",
                "placement": "steps",
            },
        },
    ],
    ids=["iterative", "dbcl", "adam", "secure sums", "noise on changes", "noise in steps"],
)
def test_the_proximal_term_has_an_effect_wherever_clients_take_steps(config):
    own = config.get("training", {})
    one, other = (ran(config | {"training": own | {"proximal": mu}}).weights for mu in (0.0, 1.5))
    assert (one - other).norm() > 1e-3 * one.norm()


@pytest.mark.parametrize("workers", [1, 3])
def test_it_resumes_and_does_not_depend_on_threads(workers, tmp_path):
    config = {"algorithm": ROUND, "training": {"proximal": 0.5, "optimiser": "adam", "optimiser_state": "kept"}}
    config["engine"] = {"workers": workers, "checkpoint_seconds": 0}
    whole = ran(config)

    def stop(line):
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(config, folder=tmp_path / "run", on_round=stop)
    again = sketchfed.resume(tmp_path / "run", model=model(), clients=SETS, test=SETS[0])
    assert torch.equal(whole.weights, again.weights)
    assert torch.equal(whole.weights, ran(config | {"engine": {"workers": 2}}).weights)


def test_the_label_names_it():
    assert load_config({"training": {"proximal": 0.01}}).label == "fedavg proximal 0.01"


def test_what_takes_its_own_steps_refuses_it():
    proximal = {"training": {"proximal": 0.5}}
    with pytest.raises(InputError, match="a loop of your own"):
        load_config({"training": {"train": "x:y", "proximal": 0.5}})
    private = {"noise_multiplier": 1.0, "delta": 1e-3, "unit": "example"}
    with pytest.raises(InputError, match="a step consists of clipped codes"):
        ran(proximal | {"algorithm": ROUND | {"batch": 4}, "privacy": private})
    with pytest.raises(InputError, match="here the steps of plain SGD are followed"):
        from_config(load_config(proximal))
