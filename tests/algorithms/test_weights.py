"""Weights by the number of examples, beside any codec, noise and secure sums."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.algorithms import ALGORITHMS, CombineSettings, FedAvg, Iterative, cohort
from sketchfed.errors import InputError, WireError
from sketchfed.protection import SecureSums
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, pack, unpack

SIZES = [4, 10, 25, 60]
TRUTH = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def pair(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size, 5, generator=torch.Generator().manual_seed(seed)) + seed / 4
    return x, (x @ TRUTH).argmax(1)


CLIENTS = [pair(size, seed) for seed, size in enumerate(SIZES)]
TEST = pair(50, 7)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def trained(algorithm: dict, **others):
    table = {"rounds": 5, "local_steps": 3, "local_rate": 0.2, "participation": 0.75, **algorithm}
    return sketchfed.run({"algorithm": table, **others}, model=net(), clients=CLIENTS, test=TEST)


def fedavg_of_mcmahan(rounds: int, most: int) -> torch.Tensor:
    """McMahan et al. 2017, Alg. 1: w ← Σ n_k·w_k / Σ n_k over the clients of the round."""
    weights = torch.nn.utils.parameters_to_vector(net().parameters()).detach()
    for index in range(rounds):
        chosen = cohort(PublicSeed(0), index, population=4, count=3)
        total, count = torch.zeros_like(weights), 0
        for client in chosen:
            model = net()
            torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())
            for _ in range(3):
                loss = functional.cross_entropy(model(CLIENTS[client][0]), CLIENTS[client][1])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter -= 0.2 * gradient
            size = min(SIZES[client], most)
            total += size * torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            count += size
        weights = total / count
    return weights


@pytest.mark.parametrize("most", [None, 20])
def test_the_mean_is_weighted_by_the_numbers_of_examples_up_to_a_bound(most):
    bound = {} if most is None else {"most_examples": most}
    found = trained({"weighting": "examples", **bound}).weights
    assert torch.allclose(found, fedavg_of_mcmahan(5, most or max(SIZES)), atol=1e-5)
    assert not torch.allclose(found, trained({}).weights, atol=1e-2), "equal weights are another mean"


LOSSLESS = {
    "fedavg": {},
    "a whole sketch": {"name": "iterative", "global_rate": 1.0},
    "secure sums": {},
    "secure sums in a whole sketch": {"name": "iterative", "global_rate": 1.0},
}


@pytest.mark.parametrize("way", LOSSLESS)
def test_whatever_loses_nothing_comes_to_the_same_weighted_mean(way):
    """The SRHT of as many coefficients as the padded vector loses nothing."""
    tables = {"sketch": {"name": "gaussian", "size": 57}} if "sketch" in way else {}
    if "sketch" in way:
        tables["sketch"] = {"name": "srht", "size": 57}
    if "secure" in way:
        tables["secure"] = {"clip": 4.0}
    found = trained({"weighting": "examples", **LOSSLESS[way]}, **tables).weights
    exact = fedavg_of_mcmahan(5, max(SIZES))
    if "sketch" in way:  # RᵀR of a padded transform is the identity only on average; it still has to point the same way
        assert functional.cosine_similarity(found - flat(), exact - flat(), dim=0) > 0.8
    else:
        assert torch.allclose(found, exact, atol=1e-3)


def flat() -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(net().parameters()).detach()


def test_few_bits_and_error_feedback_keep_the_weights():
    """The mean of many runs is the weighted mean; here errors are fed back, so a single run comes close."""
    exact = fedavg_of_mcmahan(30, max(SIZES))
    table = {"weighting": "examples", "rounds": 30, "error_feedback": True}
    found = trained(table, codec={"name": "qsgd"}).weights
    equal = trained({**table, "weighting": "equal"}, codec={"name": "qsgd"}).weights
    assert (found - exact).norm() < 0.3 * (equal - exact).norm()


def test_a_weight_costs_four_bytes_each_way():
    plain, weighted = trained({}), trained({"weighting": "examples"})
    replies = 3 * 5
    assert weighted.metrics[-1]["uplink_bytes"] - plain.metrics[-1]["uplink_bytes"] == 4 * replies


def test_noise_and_secure_sums_with_noise_go_with_weights():
    for tables in (
        {"privacy": {"name": "gaussian", "unit": "client", "noise_multiplier": 1e-4, "delta": 1e-3, "clip": 8.0}},
        {
            "privacy": {
                "name": "gaussian",
                "unit": "client",
                "noise_multiplier": 1e-4,
                "delta": 1e-3,
                "clip": 8.0,
                "observer": "public",
            }
        },
        {
            "privacy": {"name": "discrete_gaussian", "unit": "client", "noise_multiplier": 1e-3, "delta": 1e-3, "clip": 8.0},
            "secure": {},
        },
    ):
        found = trained({"weighting": "examples"}, **tables)
        exact = fedavg_of_mcmahan(5, max(SIZES))
        assert (found.weights - exact).norm() < 0.3 * (trained({}).weights - exact).norm()
        assert found.metrics[-1]["epsilon"] is not None


@pytest.mark.parametrize("clip", [0.5, 8.0])
def test_secure_sums_without_noise_go_with_weights(clip):
    found = trained({"weighting": "examples"}, secure={"clip": clip})
    exact = fedavg_of_mcmahan(5, max(SIZES))
    assert (found.weights - exact).norm() < 0.5 * (trained({}).weights - exact).norm()


class Tampering:
    """Replaces the weight in the packets of one client."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, replies: dict[int, bytes]) -> dict[int, bytes]:
        client = min(replies)
        packet = unpack(replies[client])
        values = packet.arrays["values"].clone()
        values[-1] = self.weight
        arrays = {**packet.arrays, "values": values}
        return {**replies, client: pack(Packet(kind=packet.kind, arrays=arrays, scalars=packet.scalars, seed=packet.seed))}


@pytest.mark.parametrize("weight", [0.0, -1.0, 1.5, 1e6])
def test_a_client_that_claims_an_impossible_weight_is_refused(weight):
    from sketchfed.testing.federation import advanced, federation, weights_of
    from sketchfed.testing.problems import data_of, dense_model

    def server(tamper=dict):
        algorithm = FedAvg(weighting="examples", local_steps=2, local_rate=0.1, rounds=3)
        data = data_of(4, loss="cross_entropy")
        return federation(algorithm, data, module=dense_model("mlp", hidden=[5]), loss="cross_entropy", tamper=tamper)

    attacked = advanced(server(Tampering(weight)), 1)
    assert attacked.tally.refused == 1
    assert torch.isfinite(weights_of(attacked)).all()


@pytest.mark.parametrize("factor", [-6, -60])
def test_an_impossible_weight_in_a_secure_sum_does_not_stop_the_run(factor, monkeypatch):
    def lying(self, work, honest=SecureSums.integers):
        values = honest(self, work)
        if work.context.client == 0:
            values[-1] = values[-1] * factor % 2**self.mechanism.bits
        return values

    monkeypatch.setattr(SecureSums, "integers", lying)
    found = trained({"weighting": "examples", "participation": 1.0}, secure={"clip": 4.0})
    assert torch.isfinite(found.weights).all()
    assert len(found.metrics) == 5


def test_the_weight_of_a_packet_is_said_to_be_out_of_range():
    segments = replace(FedAvg(weighting="examples").resolved(5, 3)._segments, scale=0.5)
    segments.check_weight(0.5, 1)
    with pytest.raises(WireError, match="client 1 sent a weight of 3, and weights are above 0 and at most 1"):
        segments.check_weight(1.5, 1)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"weighting": "sizes"}, "must be 'equal' or 'examples'"),
        ({"most_examples": 3}, "bounds the weights of weighting = 'examples'"),
        ({"weighting": "examples", "most_examples": 0}, "must be at least 1"),
        ({"weighting": "examples", "combine": CombineSettings(name="median")}, "exclude each other"),
        ({"weighting": "examples", "scaffold": True}, "exclude each other"),
    ],
)
def test_what_does_not_go_with_weights_is_refused(settings, why):
    with pytest.raises(InputError, match=why):
        FedAvg(**settings)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].alone])
def test_algorithms_with_a_step_of_their_own_refuse_weights_and_control_variates(name):
    for setting in ({"weighting": "examples"}, {"scaffold": True}):
        with pytest.raises(InputError, match="does not go with algorithm"):
            ALGORITHMS[name](**setting)


def test_noise_for_single_examples_refuses_weights():
    privacy = {"name": "gaussian", "unit": "example", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}
    with pytest.raises(InputError, match="number of examples is not to be told"):
        trained({"weighting": "examples", "batch": 2, "local_steps": 1}, privacy=privacy)


def test_an_interrupted_run_with_weights_goes_on_to_the_same_bits(tmp_path):
    objects = {"model": net(), "clients": CLIENTS, "test": TEST}
    table = {"algorithm": {"name": "iterative", "weighting": "examples", "rounds": 6, "participation": 0.75}}
    whole = sketchfed.run(table, **objects)

    def stop(line):
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run({**table, "engine": {"checkpoint_seconds": 0.0}}, folder=tmp_path / "run", on_round=stop, **objects)
    assert torch.equal(sketchfed.resume(tmp_path / "run", **objects).weights, whole.weights)


def test_iterative_refuses_nothing_that_fedavg_takes():
    assert Iterative(weighting="examples").resolved(10, 4).segments.weight == 1
