"""Every kind of layer in every kind of run: it trains, it resumes, and with one client it is a plain loop of torch.

The kinds are those of `layer_cases.CASES`, and the page on training lists the same ones.
"""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from layer_cases import CASES, data_of, model_of
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.errors import InputError
from sketchfed.vectors import flatten

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
WORK = {"rounds": 2, "local_steps": 2, "local_rate": 0.1, "batch": 5}
NOISE = {"unit": "client", "noise_multiplier": 0.5, "delta": 0.01, "clip": 1.0, "insecure_noise_seed": 1}
WAYS = {
    "fedavg": {},
    "iterative sketch": {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.3}},
    "noise for clients": {"privacy": NOISE},
    "secure sums": {"secure": {"clip": 10.0}},
}
every_kind = pytest.mark.parametrize("kind", CASES)


@pytest.fixture(autouse=True)
def _peft_is_there(request):
    kind = request.node.callspec.params.get("kind", "") if hasattr(request.node, "callspec") else ""
    if "peft" in kind and importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed: pip install peft")


def batch_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def given(kind, clients=3):
    case = CASES[kind]
    data = [data_of(case, 1 + client) for client in range(clients)]
    return {"model": model_of(case), "clients": data, "test": data_of(case, 0), "batch_loss": batch_loss}


def tables(kind, way="fedavg", **algorithm):
    """A configuration. Noise could make averaged statistics negative, so with noise they stay with the clients."""
    own, model = WAYS[way], dict(CASES[kind].model)
    if "privacy" in own and model:
        model["buffers"] = "local"
    return {**own, "algorithm": {**WORK, **own.get("algorithm", {}), **algorithm}, **({"model": model} if model else {})}


class UnpluggedError(Exception):
    """What ends a run in a test."""


def unplug(line):
    raise UnpluggedError


@every_kind
@pytest.mark.parametrize("way", WAYS)
def test_it_trains_and_an_interrupted_run_goes_on_as_if_nothing_happened(kind, way, tmp_path):
    objects = given(kind)
    start = flatten(objects["model"]).clone()
    config = {**tables(kind, way), "engine": {"checkpoint_seconds": 0.0}}
    whole = sketchfed.run(config, **objects)
    assert not torch.equal(whole.weights[: len(start)], start)
    assert torch.isfinite(whole.weights).all()
    assert whole.metrics[-1]["loss"] < float("inf")
    with pytest.raises(UnpluggedError):
        sketchfed.run(config, folder=tmp_path / "run", on_round=unplug, **objects)
    resumed = sketchfed.resume(tmp_path / "run", **objects)
    if way == "secure sums":  # they round with secret random numbers
        torch.testing.assert_close(resumed.weights, whole.weights, rtol=0, atol=1e-4)
        return
    assert torch.equal(resumed.weights, whole.weights)
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]


def descended(model, data, *, rounds, **options):
    """Steps of plain torch on all examples at once."""
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, **options)
    model.train()
    for _ in range(3 * rounds):
        for value in trained:  # not None: weight_decay also decays what a pass does not use
            value.grad = torch.zeros_like(value)
        batch_loss(model, data).backward()
        optimizer.step()
    return model


def dense_twin(kind):
    """The model for a plain loop. SGD of torch takes no sparse gradients with weight decay."""
    made = model_of(CASES[kind])
    for module in made.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = False
    return made


@pytest.mark.parametrize("kind", [kind for kind in CASES if not CASES[kind].draws])
@pytest.mark.parametrize("own", [{}, {"weight_decay": 0.1}], ids=["plain", "decay"])
def test_one_client_is_a_plain_loop(kind, own):
    objects = given(kind, clients=1)
    rounds = 1 if CASES[kind].model else 2  # statistics that travel are float32 sums of their changes
    config = tables(kind, rounds=rounds, local_steps=3, **own)
    del config["algorithm"]["batch"]
    found = sketchfed.run(config, **objects)
    plain = descended(dense_twin(kind), objects["clients"][0], rounds=rounds, **own)
    theirs = plain.state_dict()
    for name, value in found.module.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6, msg=lambda said, name=name: f"{name}: {said}")


@every_kind
def test_the_result_scores_its_test_examples_one_by_one_as_it_does_together(kind):
    """The loss of a run's last line is that of its module on all test examples, however they are cut."""
    found = sketchfed.run(tables(kind), **(objects := given(kind)))
    module, (x, y) = found.module.eval(), objects["test"]
    with torch.no_grad():
        single = [float(batch_loss(module, (x[i : i + 1], y[i : i + 1]))) for i in range(len(x))]
    assert found.metrics[-1]["loss"] == pytest.approx(sum(single) / len(single), rel=1e-4)
    one = sketchfed.run(tables(kind), **{**objects, "test": (x[:1], y[:1])})
    assert torch.equal(one.weights, found.weights)
    assert one.metrics[-1]["loss"] == pytest.approx(single[0], rel=1e-4)


def test_tied_weights_stay_tied_and_frozen_ones_stay_as_they_are():
    tied = sketchfed.run(tables("tied weights"), **given("tied weights"))
    assert tied.module.head.weight is tied.module.embed.weight
    assert tied.dim == 7 * 6 + 2 * 6
    objects = given("frozen parameters")
    found = sketchfed.run(tables("frozen parameters"), **objects)
    assert torch.equal(found.module[0].weight, objects["model"][0].weight)
    assert found.dim == 8 * 3 + 3


@pytest.mark.parametrize("kind", ["LoRA (peft)"])
def test_of_lora_only_adapters_and_saved_modules_travel(kind):
    objects = given(kind)
    base = {name: value.clone() for name, value in objects["model"].named_parameters() if not value.requires_grad}
    found = sketchfed.run(tables(kind), **objects)
    assert found.dim == 2 * (6 + 8) + 8 * 3 + 3
    parameters = dict(found.module.named_parameters())
    assert base
    assert all(torch.equal(parameters[name], value) for name, value in base.items())


def test_statistics_that_nobody_named_are_refused():
    config = tables("spectral_norm")
    del config["model"]
    with pytest.raises(InputError, match=r"training changes the buffer '0\.parametrizations\.weight\.0\._u'.*model\.running"):
        sketchfed.run(config, **given("spectral_norm"))


# Sparse gradients -----------------------------------------------------------------------------------------------------

OTHER_STEPS = {
    "adamw": {"training": {"optimiser": "adamw"}},
    "clipped": {"training": {"clip_norm": 0.5}},
    "proximal": {"training": {"proximal": 0.1}},
    "momentum": {"algorithm": {"local_momentum": 0.9}},
    "noise in steps": {"privacy": {**NOISE, "unit": "example", "placement": "steps"}},
}


@pytest.mark.parametrize("steps", OTHER_STEPS)
def test_sparse_embeddings_train_as_others_do(steps):
    """Updates are dense, so `sparse=True` saves nothing here."""
    kinds = ("embeddings", "embeddings with sparse=True")
    own = OTHER_STEPS[steps]
    config = {**own, "algorithm": {**WORK, **own.get("algorithm", {})}}
    first, second = (sketchfed.run(config, **given(kind)) for kind in kinds)
    torch.testing.assert_close(first.weights, second.weights, rtol=1e-5, atol=1e-6)
    assert second.module.embed.sparse


# Privacy for single examples ------------------------------------------------------------------------------------------

EXAMPLES = {"privacy": {**NOISE, "unit": "example", "placement": "steps"}}
MIX_OR_DRAW = {
    "BatchNorm": r"training changes the buffer '1\.running_mean'",
    "spectral_norm": r"training changes the buffer '0\.parametrizations\.weight\.0\._u'",
    "embeddings with max_norm": r"layer 'embed' \(Embedding\) has max_norm",
    "dropout": "draws random numbers",
}


@every_kind
def test_noise_for_single_examples_goes_with_it_or_is_refused_before_round_1(kind):
    config, objects = tables(kind) | EXAMPLES, given(kind)
    if "model" in config:
        config["model"] |= {"buffers": "local"}
    start = flatten(objects["model"])
    if kind not in MIX_OR_DRAW:
        assert not torch.equal(sketchfed.run(config, **objects).weights, start)
        return
    with pytest.raises(InputError, match=MIX_OR_DRAW[kind]):
        sketchfed.run(config, **objects)


# Blind clients --------------------------------------------------------------------------------------------------------

SKETCHED = [kind for kind in CASES if kind.startswith(("recurrent", "attention", "transformers"))]


@pytest.mark.parametrize("kind", SKETCHED)
def test_blind_clients_train_these_layers_and_a_run_resumes(kind, tmp_path):
    objects = given(kind)
    start = flatten(objects["model"]).clone()
    algorithm = {**WORK, "name": "dbcl", "exclude": ["embed"], "public_start": True}
    config = {"algorithm": algorithm, "engine": {"checkpoint_seconds": 0.0}}
    whole = sketchfed.run(config, **objects)
    with pytest.raises(UnpluggedError):
        sketchfed.run(config, folder=tmp_path / "run", on_round=unplug, **objects)
    assert torch.equal(sketchfed.resume(tmp_path / "run", **objects).weights, whole.weights)
    assert not torch.equal(whole.weights, start)
    with pytest.raises(InputError, match=r"layer 'embed' \(Embedding\) cannot be sketched"):
        sketchfed.run({"algorithm": {**algorithm, "exclude": []}}, **objects)


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_lists_what_is_tested_here_and_nothing_else():
    (section,) = re.findall(r"### Which layers work\n(.*?)\n##", PAGE.read_text(), re.DOTALL)
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    assert [row.replace("`", "") for row in rows[2:]] == list(CASES)
