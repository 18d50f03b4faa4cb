"""Training and evaluation by functions of the user's own."""

import logging
import random

import numpy as np
import pytest
import torch
from torch import nn

from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import LocalWork, OwnLoop, Turn
from sketchfed.training.own import checked_metrics, evaluated
from sketchfed.vectors import flatten

WORK, SEED = LocalWork(rate=0.1), PublicSeed(3)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def trained(function, turn=None, module=None, data=None, **settings):
    module = module or model()
    return OwnLoop(module, function, settings, name="train").train(flatten(module), data, WORK, turn or Turn(SEED))


def move(model):
    model[0].bias.data += 1


def test_a_loop_gets_the_rounds_weights_in_training_mode_and_its_result_is_the_update():
    def train(model, data, context):
        assert model.training
        assert torch.equal(flatten(model), weights)
        for parameter in model.parameters():
            parameter.data += data

    module = model()
    weights = torch.arange(float(len(flatten(module))))
    loop = OwnLoop(module, train, {}, name="train")
    before = flatten(module)
    assert torch.equal(loop.train(weights, 2.0, WORK, Turn(SEED)), weights + 2)
    assert torch.equal(flatten(module), before), "the module that was given is not touched"


def test_a_loop_is_told_round_client_and_settings_and_has_a_generator_of_its_own():
    told = []

    def train(model, data, context):
        move(model)
        told.append(
            (context.round, context.client, dict(context.settings), torch.rand(2, generator=context.generator).tolist())
        )

    for seed, index, client in ((1, 0, 0), (1, 0, 0), (2, 4, 7)):
        trained(train, Turn(PublicSeed(seed), round=index, client=client), rate=0.5)
    assert told[0] == told[1]
    assert told[2][:3] == (5, 7, {"rate": 0.5})
    assert told[2][3] != told[0][3]


def test_draws_of_torch_numpy_and_python_come_from_the_clients_seed_and_leave_no_trace():
    def train(model, data, context):
        move(model)
        drawn.append((torch.rand(1).item(), np.random.rand(), random.random()))  # noqa: NPY002

    drawn, module = [], model()
    before = torch.get_rng_state()
    for seed in (1, 1, 2):
        trained(train, Turn(PublicSeed(seed)), module)
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_one_client_does_to_the_module_is_forgotten_before_the_next():
    def train(model, data, context):
        assert not model[1].running_mean.any()
        assert model[0].weight.requires_grad
        assert not hasattr(model, "mark")
        model(torch.randn(8, 4) + 5)
        model[0].requires_grad_(False)
        model.mark = True

    module = model()
    loop = OwnLoop(module, train, {}, name="train")
    for client in range(2):
        loop.train(flatten(module), None, WORK, Turn(SEED, client=client))


def test_what_a_client_keeps_is_there_in_its_next_turn():
    def train(model, data, context):
        move(model)
        context.kept["turns"] = context.kept.get("turns", 0) + 1

    turn = Turn(SEED)
    for number in (1, 2):
        trained(train, turn)
        assert turn.kept == {"turns": number}


def test_frozen_parameters_are_not_part_of_the_update():
    def train(model, data, context):
        for parameter in model.parameters():
            parameter.data += 1

    module = model()
    module[0].requires_grad_(False)
    assert torch.equal(trained(train, module=module), flatten(module) + 1)


def test_a_model_that_was_moved_to_another_precision_comes_back_as_float32():
    result = trained(lambda model, data, context: model.double() and None)
    assert result.dtype == torch.float32


def replace_layer(model, data, context):
    model[2] = nn.Linear(3, 5)


def remove_layer(model, data, context):
    del model[2]


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (replace_layer, r"after 'train', the parameter '2.weight' has shape \(5, 3\); it had shape \(2, 3\)"),
        (remove_layer, "the parameter '2.weight' is gone"),
        (lambda model, data, context: nn.Linear(4, 2), "returned a module. sketchfed takes the update from the module"),
        (lambda model, data, context: 0.5, "returned float, not a dict of metrics"),
        (lambda model, data, context: {"accuracy": float("nan")}, "returned accuracy = nan"),
        (lambda model, data, context: {"accuracy": "high"}, "returned accuracy = 'high', which is not one number"),
        (lambda model, data, context: {"two words": 1.0}, "a metric named 'two words'"),
    ],
)
def test_a_loop_that_breaks_the_rules_is_told_which_one(train, said):
    with pytest.raises(InputError, match=said):
        trained(train)


def test_a_loop_that_changes_nothing_is_warned_of_once(caplog):
    def train(model, data, context):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    module = nn.Linear(4, 3)
    loop = OwnLoop(module, train, {}, name="mine")
    with caplog.at_level(logging.WARNING):
        for client in range(3):
            loop.train(flatten(module), None, WORK, Turn(SEED, client=client))
    assert caplog.text.count("'mine' left all weights of client 0 as they were") == 1


@pytest.mark.parametrize("what", ["gradients", "clipped_sum", "sketched", "outputs", "score"])
def test_what_only_the_built_in_loop_knows_is_refused_with_the_remedy(what):
    loop = OwnLoop(model(), lambda *_: None, {}, name="mine")
    given = {"gradients": (None, None), "clipped_sum": (None, None, 1.0), "sketched": (None,), "outputs": (None, None)}
    with pytest.raises(InputError, match=r"\('mine'\) shows only whole updates. Pass the loss as batch_loss"):
        getattr(loop, what)(*given.get(what, (None, None)))


def test_an_evaluation_sees_a_copy_in_evaluation_mode_without_gradients():
    def evaluate(model, data, context):
        assert not model.training
        assert not torch.is_grad_enabled()
        assert (context.client, context.round) == (None, 4)
        return {"loss": model(data).sum() * 0 + 1.5, "seen": len(data)}

    found = evaluated(
        evaluate, model(), flatten(model()), torch.ones(1, 4), settings={}, turn=Turn(SEED, round=4), name="evaluate"
    )
    assert found == {"loss": 1.5, "seen": 1.0}


def test_a_loss_may_be_infinite_because_the_run_then_says_that_it_diverged():
    assert checked_metrics({"loss": float("inf")}, "evaluate") == {"loss": float("inf")}
