"""Bad models, losses and loops. Each is explained in words, and what one client does wrong drops that client only."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bad_input import (
    BAD,
    MARKED,
    NUMBERS,
    NUMBERS_TEST,
    PAIRS,
    TEST,
    Case,
    Cases,
    batch_classes,
    check,
    for_one,
    net,
    numbers,
    pairs,
)
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.errors import SketchfedError

CASES = Cases()

# Outputs that do not fit the targets ----------------------------------------------------------------------------------


def squares(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def batch_squares(model, batch):
    return squares(model(batch[0]), batch[1])


def weighted(model, batch):
    losses = functional.mse_loss(model(batch[0]), batch[1][:, None], reduction="none")
    return (losses * torch.ones(len(batch[1]))).mean()


def column(data):
    return data[0], data[1][:, None]


SHAPES = r"outputs.* have shape \(2, {}\) and the targets shape \(2,{}\).*Give both the same shape"
CASES.refuse("outputs (n, 1), targets (n,)", SHAPES.format(1, ""), **numbers())
CASES.refuse("outputs (n, k), targets (n,)", SHAPES.format(3, ""), **numbers(model=net(3)))
CASES.refuse(
    "outputs (n,), targets (n, 1)",
    r"outputs have shape \(2,\) and the targets shape \(2, 1\)",
    **numbers(model=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), clients=[*map(column, NUMBERS)], test=column(NUMBERS_TEST)),
)
CASES.refuse("a loss of one's own that broadcasts", SHAPES.format(1, ""), **numbers(loss=squares))
COMPARES = r"compares outputs of shape \({0}, 1\) with targets of shape \({0},\).*Give both the same shape"
CASES.refuse("a batch_loss that broadcasts", COMPARES.format(2), model=net(1), clients=NUMBERS, batch_loss=batch_squares)
CASES.refuse(
    "a batch_loss by torch's mse_loss",
    COMPARES.format(2),
    model=net(1),
    clients=NUMBERS,
    batch_loss=lambda model, batch: functional.mse_loss(model(batch[0]), batch[1]),
)
CASES.refuse(
    "a batch_loss that weighs each by all", r"shape \(2, 1\) with targets of shape \(2,\)", model=net(1), clients=NUMBERS,
    batch_loss=weighted,
)  # fmt: skip
CASES.drop(
    "a batch_loss that broadcasts for one",
    COMPARES.format(12),
    model=net(1),
    clients=[column(data) if client != BAD else data for client, data in enumerate(NUMBERS)],
    batch_loss=batch_squares,
)
CASES.refuse("too few outputs", "3 classes|[Tt]arget 2|class 2", **pairs(model=net(2)))
CASES.refuse(
    "inputs of another width", r"examples of shape \(4,\).*Check the model's input shape", **pairs(model=nn.Linear(5, 3))
)


class Answers(nn.Linear):
    """Returns a dict, as many models of texts do."""

    def forward(self, x):
        return {"logits": super().forward(x)}


OTHER_FORM = r"If the model takes several inputs, or returns something else than a tensor, pass batch_loss\(model, batch\)"
CASES.refuse("outputs in a dict", f"not dict. .*{OTHER_FORM}", **pairs(model=Answers(4, 3)))
CASES.refuse("a model of two inputs", f"missing 1 required.*{OTHER_FORM}", **pairs(model=nn.Bilinear(4, 4, 3)))
CASES.refuse(
    "a batch_loss that calls a model of two inputs with one",
    r"Check the model's input shape, its number of outputs and the loss\.$",
    model=nn.Bilinear(4, 4, 3), clients=PAIRS, batch_loss=batch_classes,
)  # fmt: skip
for name in ("F1", "no_such_module:metric"):
    for clients in (PAIRS, [list(zip(*data, strict=True)) for data in PAIRS]):
        CASES.refuse(
            f"a metric {name} of a {type(clients[0]).__name__}",
            "^(there is no metric named 'F1'. Did you mean 'f1'|metric 'no_such)",
            **pairs(clients=clients, metric=name),
        )

# Losses that are not one number ------------------------------------------------------------------------------------------

LOSSES: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "many numbers": (lambda losses: losses, r"returned numbers of shape \(\d+,\), and a loss is one. Return their mean"),
    "a float": (lambda losses: float(losses.detach().mean()), "returned a float, and a loss is a tensor. Return the mean"),
    "nothing": (lambda losses: None, "returned None, and a loss is a tensor. Return the mean"),
    "a detached number": (lambda losses: losses.mean().detach(), "does not depend on the model's parameters"),
    "a tuple": (lambda losses: (losses.mean(), 1), "returned a tuple of 2, and a loss is a tensor"),
    "a complex number": (lambda losses: losses.mean() * 1j, "torch.complex64, and a loss is a real number"),
}


def always(spoil):
    return lambda outputs, targets: spoil(functional.cross_entropy(outputs, targets, reduction="none"))


def for_marked(spoil):
    """Bad only for a client whose targets are 3 or more."""

    def loss(outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return spoil(losses) if (targets >= 3).any() else losses.mean()

    return loss


def later(spoil):
    """Good with the weights on which a model is tried, and with the first weights."""

    def batch_loss(model, batch):
        losses = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        first = float(model[0].weight.detach()[0, 0])
        untrained = min(abs(first - START), abs(first + 0.1)) < 1e-6
        return losses.mean() if untrained else spoil(losses)

    return batch_loss


START = float(net()[0].weight.detach()[0, 0])
for kind, (spoil, said) in LOSSES.items():
    CASES.refuse(f"a loss of {kind}", said, **pairs(loss=always(spoil)))
    CASES.drop(f"a loss of {kind} for one", said, **pairs(model=net(6), clients=MARKED, loss=for_marked(spoil)))
    marked = for_marked(spoil)
    CASES.drop(
        f"a batch_loss of {kind} for one",
        said,
        model=net(6),
        clients=MARKED,
        batch_loss=lambda model, batch, marked=marked: marked(model(batch[0]), batch[1]),
    )
    CASES[f"a batch_loss of {kind} in round 2"] = Case(
        given={"model": net(), "clients": PAIRS, "batch_loss": later(spoil)},
        refused=f"all 4 clients of round 2 failed, client 0 because its training failed: .*{said}",
        config={"algorithm": {"local_epochs": 1}},
    )
CASES.drop(
    "a loss that is NaN for one",
    "NaN or infinity, so this client sends nothing. Look for NaN in its data",
    **pairs(clients=for_one(lambda data: (data[0] * float("nan"), data[1]))),
)

# Loops that break the model ------------------------------------------------------------------------------------------------


def steps(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def replace_layer(model, data, context):
    model[0] = nn.Linear(4, 5)


def remove_layer(model, data, context):
    del model[0]


def rebind(model, data, context):
    model[0].weight = nn.Parameter(torch.zeros(4, 3))


def wrap(model, data, context):
    nn.utils.parametrizations.weight_norm(model[0])
    steps(model, data, context)


def assign_data(model, data, context):
    model[0].weight.data = torch.zeros(2, 2)


def move_away(model, data, context):
    model.to("meta")


def return_module(model, data, context):
    model = copy.deepcopy(model)
    steps(model, data, context)
    return model


def return_number(model, data, context):
    return 0.5


def spoil_weights(model, data, context):
    steps(model, data, context)
    model[0].weight.data[0, 0] = float("nan")


KEPT = "Train the parameters of the module that is given, and do not replace, wrap or remove its layers"
UNUSED = "neither changed the weights of the module that it was given, nor computed gradients for them. Train that module"


def train_copy(model, data, context):
    steps(copy.deepcopy(model), data, context)


def train_new(model, data, context):
    model = net()
    steps(model, data, context)


def use_double(model, data, context):
    torch.set_default_dtype(torch.float64)
    steps(model, data, context)


LOOPS = {
    train_copy: UNUSED,
    train_new: UNUSED,
    replace_layer: rf"'0.weight' has shape \(5, 4\); it had shape \(3, 4\). {KEPT}",
    remove_layer: rf"'0.weight' is gone; it had shape \(3, 4\). {KEPT}",
    rebind: rf"'0.weight' has shape \(4, 3\); it had shape \(3, 4\). {KEPT}",
    wrap: rf"'0.weight' is gone.* {KEPT}",
    assign_data: r"'0.weight' has shape \(2, 2\)",
    move_away: "'0.weight' is on the device 'meta', which holds no numbers",
    return_module: "returned a module.*change that one in place, and return metrics or nothing",
    return_number: "returned float, not a dict of metrics. Return for example",
    spoil_weights: "NaN or infinity, so this client sends nothing",
}


def only_bad(loop):
    def train(model, data, context):
        return (loop if context.client == BAD else steps)(model, data, context)

    train.__name__ = loop.__name__
    return train


def returning(value):
    def train(model, data, context):
        steps(model, data, context)
        return {"found": value} if context.client == BAD else {"found": 1.0}

    return train


for loop, said in LOOPS.items():
    CASES.drop(f"a loop: {loop.__name__} for one", said, model=net(), clients=PAIRS, train=only_bad(loop))
    CASES.refuse(f"a loop: {loop.__name__} for all", said, model=net(), clients=PAIRS, train=loop)
for value, said in (
    (float("nan"), "returned found = nan.*training diverged, or that the data holds NaN"),
    (float("inf"), "returned found = inf"),
    (torch.tensor(float("nan")), "returned found = nan"),
    ("high", "returned found = 'high', which is not one number.*Return a float"),
    (None, "returned found = None, which is not one number"),
    (torch.ones(300), r"returned found = a tensor of shape \(300,\), which is not one number"),
):
    CASES.drop(f"a client's metric {str(value)[:12]}", said, model=net(), clients=PAIRS, train=returning(value))
CASES.drop(
    "a client's loss NaN",
    "returned loss = nan",
    model=net(),
    clients=PAIRS,
    train=only_bad(lambda model, data, context: {"loss": float("nan")}),
)


def evaluating(function, **given):
    return {"model": net(), "clients": PAIRS, "train": steps, "test": TEST, "evaluate": function} | given


CASES.refuse(
    "an evaluation that raises",
    r"'evaluate' raised ZeroDivisionError: division by zero \(after 0 rounds\).*Correct it",
    **evaluating(lambda model, data, context: {"found": 1 / 0}),
)
CASES.refuse(
    "an evaluation that raises later",
    r"raised ZeroDivisionError: division by zero \(after 1 rounds\)",
    **evaluating(lambda model, data, context: {"found": 1 / (context.round - 1)}),
)
CASES.refuse("an evaluation of nothing", "returned None, not a dict", **evaluating(lambda model, data, context: None))
CASES.refuse("an evaluation of a text", "which is not one number", **evaluating(lambda model, data, context: {"found": "high"}))
CASES.refuse(
    "an evaluation whose loss is NaN",
    "the loss after round 1 is nan",
    **evaluating(lambda model, data, context: {"loss": float("nan")}),
)
for name in ("train", "evaluate"):
    CASES.refuse(
        f"{name} with other parameters",
        rf"'{name}' cannot be called as {name}\(model, data, context\).*Change its parameters",
        **evaluating(lambda model, data, context: {}, **{name: lambda model, data: None}),
    )
    CASES.refuse(
        f"{name} that is no function", rf"{name} must be a function .*Pass the function itself",
        **(evaluating(steps) | {name: 3}),
    )  # fmt: skip
CASES.refuse(
    "batch_loss with other parameters",
    r"cannot be called as batch_loss\(model, batch\)",
    model=net(),
    clients=PAIRS,
    batch_loss=lambda batch: 0,
)
CASES.refuse("a metric with other parameters", r"cannot be called as metric\(outputs", **pairs(metric=lambda outputs: 0.0))
CASES.refuse(
    "a metric beside batch_loss",
    r"metric is for pairs of inputs and targets.*measure it in evaluate\(model, data, context\)",
    model=net(),
    clients=PAIRS,
    batch_loss=batch_classes,
    metric="f1",
)
CASES.refuse("a function for a model", r"model must be a torch.nn.Module, got function", **pairs(model=always))
CASES.refuse("a class for a model", r"got the class Linear. Pass an instance", **pairs(model=nn.Linear))
NORMED = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
ONE_LEFT = for_one(lambda data: (data[0][:9], data[1][:9]))
ALONE = "BatchNorm needs at least two examples in a batch, and this one has a single example.*drop_last = True"


def by_fours(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in zip(data[0].split(4), data[1].split(4), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


for name, objects, algorithm in (
    ("pairs", {"test": TEST}, {"batch": 4}),
    ("batch_loss", {"batch_loss": batch_classes}, {"batch": 4}),
    ("train", {"train": by_fours}, {}),
):
    config = {"algorithm": algorithm, "model": {"buffers": "local"}}
    objects = {"model": NORMED, "clients": ONE_LEFT, **objects}
    CASES[f"BatchNorm with a last batch of one and {name}"] = Case(given=objects, drops=ALONE, config=config)
LAZY = r"parameter '0.weight' has no shape yet, .*Call the model once on a batch of examples before the run"
for own in ({}, {"train": steps}, {"batch_loss": batch_classes}):
    CASES.refuse(
        f"a model of lazy layers with {', '.join(own) or 'pairs'}",
        LAZY,
        **{"model": nn.Sequential(nn.LazyLinear(3)), "clients": PAIRS} | ({} if own else {"test": TEST}) | own,
    )
CASES.refuse("a model without parameters", "no trainable parameters", **pairs(model=nn.Flatten()))


def test_a_default_type_that_a_loop_sets_is_put_back_and_said(caplog):
    run = sketchfed.run({"algorithm": {"rounds": 2}}, model=net(), clients=PAIRS, train=use_double)
    assert torch.get_default_dtype() == torch.float32
    assert [line["participants"] for line in run.metrics] == [4, 4]
    assert caplog.text.count("'use_double' set torch's default type to float64") == 1


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_explained(name, caplog):
    check(CASES[name], caplog)


# What looks odd, and works --------------------------------------------------------------------------------------------------


def test_a_metric_that_does_not_exist_is_refused_before_anybody_trains():
    clients = [list(zip(*data, strict=True)) for data in PAIRS]
    rounds = []
    with pytest.raises(SketchfedError, match="no metric named 'F1'"):
        sketchfed.run(
            {"algorithm": {"rounds": 2}, "engine": {"evaluate_every": 2}},
            on_round=rounds.append,
            **pairs(clients=clients, metric="F1"),
        )
    assert rounds == []


def test_a_metric_without_a_value_is_recorded_as_missing(caplog):
    def evaluate(model, data, context):
        return {"found": float("nan") if context.round == 1 else 1.0}

    run = sketchfed.run({"algorithm": {"rounds": 2}}, **evaluating(evaluate))
    assert [line["found"] for line in run.metrics] == [None, 1.0]
    assert "'evaluate' returned found = nan after 1 rounds" in caplog.text


def test_a_layer_replaced_by_one_of_the_same_shape_counts_with_its_numbers():
    def train(model, data, context):
        model[0] = nn.Linear(4, 3)
        nn.init.zeros_(model[0].weight)
        nn.init.ones_(model[0].bias)

    run = sketchfed.run({"algorithm": {"rounds": 1}}, model=net(), clients=PAIRS, train=train)
    torch.testing.assert_close(run.weights, torch.cat([torch.zeros(12), torch.ones(3)]))


@pytest.mark.parametrize("batch", [(4, 1), (1,)], ids=["the same shape", "one target for all"])
def test_shapes_that_differ_on_purpose_are_not_refused(batch):
    """A mask, a temperature, or weights of classes."""

    def batch_loss(model, data):
        outputs = model(data[0])
        return ((outputs - data[1][:, None]) * torch.ones(batch if batch[0] == 1 else (len(outputs), 1))).square().mean()

    run = sketchfed.run({"algorithm": {"rounds": 1}}, model=net(1), clients=NUMBERS, batch_loss=batch_loss)
    assert run.metrics[0]["participants"] == 4
