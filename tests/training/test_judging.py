"""What is measured on one client."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from sketchfed.nn.sharing import shared
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Judge, Judged, OfBatch, Turn, examples_in
from sketchfed.training.own_parts import OWN_PARTS
from sketchfed.vectors import flatten

X = torch.randn(700, 4, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
TURN = {"seed": PublicSeed(1), "round": 3, "client": 2}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def judged(judge, module, examples, **kept):
    return judge(flatten(module), Judged(examples, None), Turn(**TURN, kept=kept))


def test_loss_accuracy_and_metrics_are_those_of_all_examples_however_many_there_are():
    module = nn.Linear(4, 2)
    judge = Judge(module=module, loss="cross_entropy", classes=True, metrics=["perplexity"])
    found = judged(judge, module, Examples(X, Y))
    outputs = module(X).detach()
    loss = float(functional.cross_entropy(outputs, Y))
    assert found == pytest.approx(
        {"loss": loss, "accuracy": float((outputs.argmax(1) == Y).float().mean()), "perplexity": math.exp(loss)},
        rel=1e-5,
    )


def test_a_loss_of_a_batch_is_averaged_over_examples():
    module = nn.Linear(4, 2)
    judge = Judge(module=module, loss=OfBatch(lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1])))
    found = judged(judge, module, examples_in((X, Y)))
    assert found == pytest.approx({"loss": float(functional.cross_entropy(module(X).detach(), Y))}, rel=1e-5)


def test_a_client_is_judged_with_its_own_parts_and_the_module_is_left_alone():
    module = shared(net(), buffers="local", personal=["2.*"])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    own = {"2.weight": torch.ones(2, 5), "2.bias": torch.tensor([0.0, 9.0]), "1.running_mean": torch.full((5,), 3.0)}
    own["1.running_var"] = torch.full((5,), 2.0)
    judge = Judge(module=module, loss="cross_entropy", classes=True)
    expected = net()
    expected.load_state_dict({**before, **own})
    outputs = expected.eval()(X).detach()
    found = judged(judge, module, Examples(X, Y), **{OWN_PARTS: own})
    assert found["loss"] == pytest.approx(float(functional.cross_entropy(outputs, Y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float(Y.float().mean())), "its head always says class 1"
    assert judged(judge, module, Examples(X, Y))["loss"] != found["loss"]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_what_the_users_function_returns_comes_before_what_the_built_in_loop_measures():
    def evaluate(model, data, context):
        return {"loss": float("nan"), "client": context.client, "round": context.round, "kept": context.kept["a"]}

    module = nn.Linear(4, 2)
    judge = Judge(module=module, loss="cross_entropy", evaluate=evaluate)
    assert judged(judge, module, Examples(X, Y), a=7) == {"loss": None, "client": 2.0, "round": 3.0, "kept": 7.0}


def test_no_gradient_is_kept_and_layers_are_in_evaluation_mode():
    def evaluate(model, data, context):
        return {"training": model.training, "gradient": model(X).requires_grad}

    module = nn.Sequential(nn.Dropout(), nn.Linear(4, 2))
    assert judged(Judge(module=module, evaluate=evaluate), module, None) == {"training": 0.0, "gradient": 0.0}
