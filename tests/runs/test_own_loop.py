"""Runs whose clients train by functions of the user's own."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import sketchfed
from sketchfed.errors import DivergedError, InputError
from sketchfed.runs.own_loop import size_of

W = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
ROUNDS = {"rounds": 4, "participation": 0.75}


def examples(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x @ W).argmax(1))


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 3))


def train(model, data, context):
    """An ordinary loop with Adam, whose state is kept between rounds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=context.settings.get("lr", 0.02))
    if "optimizer" in context.kept:
        optimizer.load_state_dict(context.kept["optimizer"])
    for x, y in DataLoader(data, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    context.kept["optimizer"] = optimizer.state_dict()
    return {"seen": len(data)}


def evaluate(model, data, context):
    x, y = data.tensors
    outputs = model(x)
    right = outputs.argmax(1) == y
    return {"loss": functional.cross_entropy(outputs, y), "accuracy": right.float().mean(), "wrong": (~right).sum()}


def given(**others):
    return {
        "model": net(),
        "clients": [examples(30 + client, client) for client in range(4)],
        "test": examples(200, 99),
        "train": train,
        "evaluate": evaluate,
        **others,
    }


PROTECTIONS = {
    "clear": {},
    "noise": {"privacy": {"unit": "client", "noise_multiplier": 0.1, "delta": 1e-3, "insecure_noise_seed": 1}},
    "central noise": {
        "privacy": {
            "unit": "client",
            "observer": "public",
            "noise_multiplier": 0.1,
            "delta": 1e-3,
            "insecure_noise_seed": 1,
        }
    },
    "secure sums": {"secure": {"clip": 5.0}},
}
ALGORITHMS = {
    "fedavg": {"algorithm": {"name": "fedavg", **ROUNDS}},
    "a codec with error feedback": {
        "algorithm": {"name": "fedavg", "error_feedback": True, **ROUNDS},
        "codec": {"name": "top_k", "ratio": 0.5},
    },
    "iterative": {"algorithm": {"name": "iterative", **ROUNDS}, "sketch": {"ratio": 0.5}},
    "fetchsgd": {"algorithm": {"name": "fetchsgd", **ROUNDS}},
}


@pytest.mark.parametrize(
    ("algorithm", "protection"),
    [*((algorithm, "clear") for algorithm in ALGORITHMS), *(("iterative", protection) for protection in PROTECTIONS)],
)
def test_a_loop_of_your_own_trains_under_every_algorithm_and_protection(algorithm, protection):
    result = sketchfed.run({**ALGORITHMS[algorithm], **PROTECTIONS[protection]}, **given())
    assert [line["participants"] for line in result.metrics] == [3, 3, 3, 3]
    assert result.metrics[-1]["uplink_bytes"] > 0
    assert result.metrics[-1]["wrong"] < 200
    assert result.loss < 1.2


def test_fedavg_with_a_loop_is_the_mean_of_what_torch_does_with_each_client():
    def steps(model, data, context):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(data, batch_size=100):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    module, clients = nn.Linear(4, 3), [examples(20, client) for client in range(3)]
    result = sketchfed.run({"algorithm": {"rounds": 1}}, model=module, clients=clients, train=steps)
    ends = []
    for data in clients:
        own = nn.Linear(4, 3)
        own.load_state_dict(module.state_dict())
        steps(own, data, None)
        ends.append(torch.cat([parameter.detach().reshape(-1) for parameter in own.parameters()]))
    torch.testing.assert_close(result.weights, torch.stack(ends).mean(0))
    assert result.loss is None
    assert result.accuracy is None


@pytest.mark.parametrize("protection", ["clear", "secure sums"])
def test_an_interrupted_run_goes_on_with_what_its_clients_kept(protection, tmp_path):
    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    config = {
        **ALGORITHMS["iterative"],
        **PROTECTIONS[protection],
        "training": {"lr": 0.03},
        "engine": {"checkpoint_seconds": 0},
    }
    whole = sketchfed.run(config, **given())
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, folder=tmp_path / "run", on_round=stop, **given())
    resumed = sketchfed.resume(tmp_path / "run", **given())
    tolerance = 0 if protection == "clear" else 1e-5  # masked sums are rounded at random
    torch.testing.assert_close(resumed.weights, whole.weights, rtol=0, atol=tolerance)
    assert resumed.config.training.options == {"lr": 0.03}


def test_results_do_not_depend_on_the_number_of_workers():
    one, other = (sketchfed.run({**ALGORITHMS["fedavg"], "engine": {"workers": workers}}, **given()) for workers in (1, 3))
    assert torch.equal(one.weights, other.weights)


def test_a_client_whose_loop_raises_is_left_out_with_the_reason(caplog):
    def failing(model, data, context):
        if context.client == 1:
            raise ZeroDivisionError("no data today")
        return train(model, data, context)

    with caplog.at_level(logging.WARNING):
        result = sketchfed.run({"algorithm": {"rounds": 2}}, **given(train=failing))
    assert [line["participants"] for line in result.metrics] == [3, 3]
    assert "without client 1: it raised ZeroDivisionError: no data today" in caplog.text


def test_what_a_loop_keeps_in_a_round_that_was_not_used_is_lost():
    def counting(model, data, context):
        context.kept["turns"] = context.kept.get("turns", 0) + 1
        seen.append((context.client, context.round, context.kept["turns"]))
        if (context.client, context.round) == (0, 2):
            raise ValueError("after it kept something")
        return train(model, data, context)

    seen = []
    sketchfed.run({"algorithm": {"rounds": 3}}, **given(train=counting))
    assert [turns for client, _, turns in seen if client == 0] == [1, 2, 2]
    assert [turns for client, _, turns in seen if client == 1] == [1, 2, 3]


class Words(Dataset):
    """Items of different lengths, as dicts."""

    def __len__(self):
        return 12

    def __getitem__(self, item):
        return {"tokens": torch.arange(item % 4 + 1), "label": item % 2}


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1.0, 2.0])


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (Words(), 12),
        (DataLoader(Words(), batch_size=5, collate_fn=list), 12),
        (Stream(), 1),
        ([{"x": 1}, {"x": 2}, {"x": 3}], 3),
        ((torch.zeros(7, 2), torch.zeros(7)), 7),
        ({"x": torch.zeros(7, 2), "y": torch.zeros(7)}, 7),
        ({"path": "somewhere"}, 1),
        ("a/path", 1),
        ((["a text", "another", "a third"], [0, 1, 0]), 1),
    ],
)
def test_a_client_may_hold_anything(data, size):
    def touched(model, own, context):
        assert own is data
        model.bias.data += 1

    result = sketchfed.run({"algorithm": {"rounds": 1}}, model=nn.Linear(2, 2), clients=[data, data], train=touched)
    assert torch.equal(result.module.bias - 1, nn.utils.parameters_to_vector([result.module.bias]) - 1)
    assert size_of(data) == size


@pytest.mark.parametrize("data", ["a/path", {"path": "somewhere"}, (["a text", "another"], [0, 1]), object(), Stream()])
def test_weights_by_examples_are_refused_if_nobody_can_tell_how_many_there_are(data):
    with pytest.raises(InputError, match=r"client 1 holds an object of type \w+, which does not tell it. Give .*'equal'"):
        sketchfed.run(
            {"algorithm": {"rounds": 1, "weighting": "examples"}}, model=nn.Linear(2, 2), clients=[Words(), data], train=train
        )


@pytest.mark.parametrize(
    ("config", "objects", "said"),
    [
        ({"algorithm": {"batch": 5}}, {}, r"algorithm.batch = 5 is for the built-in loop.*context.settings\['batch'\]"),
        ({"algorithm": {"local_epochs": 2}}, {}, "algorithm.local_epochs = 2 is for the built-in loop"),
        (
            {"privacy": {"unit": "example", "epsilon": 3.0, "delta": 1e-5}},
            {},
            "privacy.unit = 'example' clips the gradient of each",
        ),
        ({"algorithm": {"name": "dbcl"}}, {}, "this needs steps inside of sketched layers, and a loop of your own"),
        ({}, {"loss": "cross_entropy"}, "loss is for the built-in loop, but train does the training"),
        ({}, {"test": None}, "evaluate needs test data"),
        ({}, {"clients": []}, "data.clients must be at least 1, got 0"),
        ({}, {"clients": None}, "With train or batch_loss, model and clients suffice"),
        ({}, {"evaluate": lambda model, data, context: {"round": 1.0}}, "already has a column 'round'"),
        ({}, {"evaluate": lambda model, data, context: 0.5}, "returned float, not a dict of metrics"),
        ({"training": {"train": "given"}}, {"train": None, "evaluate": None}, "train was not passed"),
    ],
)
def test_what_cannot_work_is_refused_before_any_client_trains(config, objects, said):
    def never(model, data, context):
        raise AssertionError("a client was trained")

    with pytest.raises(InputError, match=said):
        sketchfed.run(config, **given(**{"train": never, **objects}))


def test_a_loss_that_is_not_finite_ends_the_run_with_advice():
    def diverged(model, data, context):
        return {"loss": float("nan") if context.round else 1.0}

    with pytest.raises(DivergedError, match=r"the loss after round 1 is nan.*smaller ones in 'train'"):
        sketchfed.run({"algorithm": {"rounds": 2}}, **given(evaluate=diverged))


def test_metrics_must_have_the_same_names_each_time():
    def changing(model, data, context):
        return {"loss": 1.0} | ({"late": 1.0} if context.round else {})

    with pytest.raises(InputError, match=r"returned the metrics \['late'\], and before round 1 it returned \[\]"):
        sketchfed.run({"algorithm": {"rounds": 2}}, **given(evaluate=changing))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train": lambda model, data, context: None}, "another training loop"),
        ({"evaluate": lambda model, data, context: {"loss": 1.0, "accuracy": 0.0, "wrong": 0.0}}, "another evaluation"),
        ({"clients": [examples(30, 7)] * 4}, "other data"),
        ({"model": nn.Linear(4, 3)}, "another model"),
    ],
)
def test_a_run_is_resumed_with_the_functions_that_it_began_with(changed, said, tmp_path):
    sketchfed.run({"algorithm": {"rounds": 1}}, folder=tmp_path / "run", **given())
    with pytest.raises(InputError, match=said):
        sketchfed.resume(tmp_path / "run", **given(**changed))
    with pytest.raises(InputError, match="Pass model, clients, test, train and evaluate again"):
        sketchfed.resume(tmp_path / "run", model=net(), clients=given()["clients"], test=examples(200, 99))


def test_functions_are_named_in_a_configuration(tmp_path):
    config = {
        "data": {"clients": 5},
        "training": {"train": "named_loops:train", "evaluate": "named_loops:evaluate", "lr": 0.05},
        "algorithm": {"name": "iterative", "rounds": 3},
    }
    result = sketchfed.run(config, folder=tmp_path / "run")
    assert result.accuracy > 0.3
    assert "top3" in result.metrics[-1]
    assert 'train = "named_loops:train"' in (tmp_path / "run" / "config.toml").read_text()
    assert torch.equal(sketchfed.resume(tmp_path / "run").weights, result.weights)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"training": {"lr": 0.1}}, "training.lr is no option of training.optimiser = 'sgd'"),
        ({"training": {"train": "named_loops:absent"}}, "absent"),
        (
            {"training": {"train": "named_loops:train"}, "model": {"metric": "accuracy"}},
            "model.metric is for the built-in loop",
        ),
        ({"training": {"train": 3}}, "training.train"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(tables, said):
    with pytest.raises(InputError, match=said):
        sketchfed.run(tables)


def test_an_audit_of_a_run_with_a_loop_of_your_own_is_refused_instead_of_auditing_another_loop():
    config = {"training": {"train": "named_loops:train", "lr": 0.1}, "algorithm": {"rounds": 1}}
    with pytest.raises(InputError, match="names a loop of your own, which shows only whole updates"):
        sketchfed.audit(defences={"mine": config})
