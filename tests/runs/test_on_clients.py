"""Metrics on each client's own data, in runs whose clients are in this process."""

import logging
import math
import statistics
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.runs.workload import Workload

TRUTH = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
ON = {"training": {"evaluate_clients": True}}
ROUNDS = {"rounds": 3, "local_steps": 2, "local_rate": 0.1}


def pair(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size, 6, generator=torch.Generator().manual_seed(seed)) * (1 + seed / 4) + seed / 4
    return x, (x @ TRUTH).argmax(1)


CLIENTS = [pair(12 + seed, seed) for seed in range(12)]
OWN_TESTS = [pair(9, 100 + seed) for seed in range(12)]
TEST = pair(40, 1)


def net(*, normed: bool = False) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if normed else nn.Tanh(), nn.ReLU(), nn.Linear(8, 3))


def evaluate(model, data, context):
    x, y = data
    outputs = model(x)
    return {"loss": functional.cross_entropy(outputs, y), "accuracy": (outputs.argmax(1) == y).float().mean()}


def train(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    context.kept["turns"] = context.kept.get("turns", 0) + 1


def batch_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


WAYS = {
    "loss of outputs": {},
    "loss of a batch": {"batch_loss": batch_loss, "evaluate": evaluate},
    "own loop": {"train": train, "evaluate": evaluate},
}


def run(config=None, *, way="loss of outputs", model=None, **others):
    algorithm = {"rounds": 3} if "train" in WAYS[way] else ROUNDS
    tables = {"algorithm": algorithm, **ON, **(config or {})}
    given = {"model": model or net(), "clients": CLIENTS, "test": TEST, **WAYS[way], **others}
    return sketchfed.run(tables, **given)


def in_torch(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> dict[str, float]:
    with torch.no_grad():
        return {name: float(value) for name, value in evaluate(model.eval(), data, None).items()}


@pytest.mark.parametrize("tests", [None, OWN_TESTS], ids=["training data", "client_test"])
@pytest.mark.parametrize("way", WAYS)
def test_columns_are_mean_worst_tenth_and_spread_of_what_torch_finds_on_each_client(way, tests):
    """Twelve clients: their worst tenth, rounded up, are two."""
    found = run(way=way, client_test=tests)
    each = [in_torch(found.module, data) for data in tests or CLIENTS]
    losses, shares = ([one[name] for one in each] for name in ("loss", "accuracy"))
    line = found.metrics[-1]
    assert line["clients_scored"] == 12
    assert line["clients_loss"] == pytest.approx(statistics.fmean(losses), rel=1e-5)
    assert line["clients_loss_worst"] == pytest.approx(statistics.fmean(sorted(losses)[-2:]), rel=1e-5)
    assert line["clients_loss_spread"] == pytest.approx(statistics.pstdev(losses), rel=1e-4)
    assert line["clients_accuracy"] == pytest.approx(statistics.fmean(shares))
    assert line["clients_accuracy_worst"] == pytest.approx(statistics.fmean(sorted(shares)[:2]))
    assert line["clients_accuracy_spread"] == pytest.approx(statistics.pstdev(shares))
    assert line["clients_loss_worst"] > line["clients_loss"] + 0.01
    assert line["clients_accuracy_worst"] < line["clients_accuracy"] - 0.01


@pytest.mark.parametrize("way", WAYS)
def test_evaluating_on_clients_changes_nothing_else(way):
    alone, both = run({"training": {}}, way=way), run(way=way)
    assert torch.equal(alone.weights, both.weights)
    for line, same in zip(both.metrics, alone.metrics, strict=True):
        assert all(line[key] == value for key, value in same.items() if key != "seconds")
    assert set(both.metrics[0]) - set(alone.metrics[0]) == {
        "clients_scored",
        "clients_bytes",
        *(f"clients_{name}{end}" for name in ("loss", "accuracy") for end in ("", "_worst", "_spread")),
    }


@pytest.mark.parametrize("way", WAYS)
def test_personal_layers_and_local_buffers_are_those_of_the_client(way):
    """Each client overfits its own data with its own last layer, so no common model can explain what is measured.

    The reference runs the same rounds in plain torch: FedBN's buffers, and FedPer's head.
    """
    table, names = {"buffers": "local", "personal": ["3.*"]}, ["0.weight", "0.bias", "1.weight", "1.bias"]
    reference, own = net(normed=True), {}
    for _ in range(3):
        copies = [deepcopy(reference) for _ in CLIENTS]
        for client, copy in enumerate(copies):
            copy.load_state_dict({**copy.state_dict(), **own.get(client, {})})
            optimizer = torch.optim.SGD(copy.train().parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                batch_loss(copy, CLIENTS[client]).backward()
                optimizer.step()
            own[client] = {name: value.clone() for name, value in copy.state_dict().items() if name not in names}
        mean = {name: torch.stack([copy.state_dict()[name] for copy in copies]).mean(0) for name in names}
        reference.load_state_dict({**reference.state_dict(), **mean})
    losses = []
    for client, data in enumerate(OWN_TESTS):
        copy = deepcopy(reference)
        copy.load_state_dict({**reference.state_dict(), **own[client]})
        losses.append(in_torch(copy, data)["loss"])
    found = run({"model": table}, way=way, model=net(normed=True), client_test=OWN_TESTS)
    line = found.metrics[-1]
    assert line["clients_loss"] == pytest.approx(statistics.fmean(losses), rel=1e-3)
    assert line["clients_loss_spread"] == pytest.approx(statistics.pstdev(losses), rel=1e-3)
    common = statistics.fmean(in_torch(found.module, data)["loss"] for data in OWN_TESTS)
    assert abs(common - line["clients_loss"]) > 0.05, "the model without the clients' own parts is another one"


def test_clients_that_never_took_part_have_the_parts_that_the_model_was_given_with():
    table = {"model": {"personal": ["3.*"]}, "algorithm": {**ROUNDS, "rounds": 1, "participation": 0.1}}
    seen = {}

    def head(model, data, context):
        seen[context.client] = model[3].weight.clone()
        return {"size": len(data[0])}

    module = net()
    given = module[3].weight.detach().clone()
    run(table, way="loss of outputs", model=module, evaluate=head)
    changed = [client for client, weight in seen.items() if client is not None and not torch.equal(weight, given)]
    assert len(changed) == 1, "one of twelve clients took part"


def test_the_function_is_told_the_client_and_what_it_keeps_and_cannot_change_it():
    told = []

    def curious(model, data, context):
        told.append((context.round, context.client, context.kept.get("turns", 0), "sketchfed.own_parts" in context.kept))
        context.kept["turns"] = 1_000
        return evaluate(model, data, context)

    table = {"model": {"personal": ["3.*"]}, "training": {"evaluate_clients": True}}
    run(table, way="own loop", evaluate=curious)
    assert {turns for index, client, turns, _ in told if client is not None and index == 3} == {3}
    assert {client for index, client, *_ in told if index == 3} == {None, *range(12)}
    assert not any(own for *_, own in told)


def test_a_value_that_is_not_finite_leaves_its_client_out_of_that_metric_only(caplog):
    def broken(model, data, context):
        found = evaluate(model, data, context)
        return {**found, "loss": math.nan} if context.client == 3 else found

    with caplog.at_level(logging.WARNING):
        found = run(way="own loop", evaluate=broken)
    line = found.metrics[-1]
    each = [in_torch(found.module, data) for data in CLIENTS]
    assert line["clients_loss"] == pytest.approx(statistics.fmean(one["loss"] for at, one in enumerate(each) if at != 3))
    assert line["clients_accuracy"] == pytest.approx(statistics.fmean(one["accuracy"] for one in each))
    assert line["clients_scored"] == 12
    said = [record.getMessage() for record in caplog.records]
    assert said == ["evaluation after round 1: 'loss' leaves out client 3, where it has no finite value."], "said once"


def test_a_function_that_raises_on_one_client_leaves_it_out_with_the_reason(caplog):
    def broken(model, data, context):
        if context.client == 2 and context.round == 2:
            raise KeyError("label")
        return evaluate(model, data, context)

    with caplog.at_level(logging.WARNING):
        found = run(way="own loop", evaluate=broken)
    assert [line["clients_scored"] for line in found.metrics] == [12, 11, 12]
    assert "evaluation after round 2: metrics leave out client 2: 'broken' raised KeyError: 'label'" in caplog.text


def test_without_any_value_the_columns_are_null():
    def never(model, data, context):
        return {"accuracy": 0.5 if context.client is None else math.inf}

    line = run(way="own loop", evaluate=never).metrics[-1]
    assert [line[f"clients_accuracy{end}"] for end in ("", "_worst", "_spread")] == [None, None, None]
    assert line["accuracy"] == 0.5


def test_a_function_that_fails_on_every_client_is_refused_before_round_1():
    def broken(model, data, context):
        return evaluate(model, data, context) if context.client is None else {}["x"]

    with pytest.raises(
        InputError, match="none of the first 5 clients can be evaluated: for client 0, 'broken' raised KeyError"
    ):
        run(way="own loop", evaluate=broken)


def test_metrics_that_only_clients_have_are_columns_and_the_server_needs_no_test_data():
    def own(model, data, context):
        return {"share": len(data[0]) / 10}

    for way in ("own loop", "loss of a batch"):
        line = run(way=way, evaluate=own, test=None).metrics[-1]
        assert line["clients_share"] == pytest.approx(statistics.fmean(len(x) / 10 for x, _ in CLIENTS))
        assert "share" not in line


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_run_writes_the_same_lines(way, workers, tmp_path):
    table = {
        "model": {"personal": ["3.*"]},
        "algorithm": {**({} if way == "own loop" else ROUNDS), "rounds": 4, "participation": 0.5},
        "engine": {"workers": workers, "checkpoint_seconds": 0.0, "evaluate_every": 2},
    }

    def stop(line):
        if line["round"] == 3:
            raise KeyboardInterrupt

    whole = run(table, way=way, client_test=OWN_TESTS)
    with pytest.raises(KeyboardInterrupt):
        run(table, way=way, client_test=OWN_TESTS, folder=tmp_path / "run", on_round=stop)
    given = {"model": net(), "clients": CLIENTS, "test": TEST, **WAYS[way]}
    resumed = sketchfed.resume(tmp_path / "run", client_test=OWN_TESTS, **given)
    timeless = [[{**line, "seconds": 0} for line in each.metrics] for each in (whole, resumed)]
    assert timeless[0] == timeless[1]
    assert [line["clients_loss"] is None for line in resumed.metrics] == [True, False, True, False]
    for other in (None, [*OWN_TESTS[1:], OWN_TESTS[0]]):
        with pytest.raises(InputError, match="the data on which clients are evaluated"):
            sketchfed.resume(tmp_path / "run", client_test=other, **given)


def test_bytes_of_evaluation_have_a_column_of_their_own():
    """All clients hold the round's weights after training in it, but for its update, which all are sent."""
    found = run({"algorithm": {**ROUNDS, "name": "iterative"}})
    moved = [line["clients_bytes"] for line in found.metrics]
    assert moved == sorted(moved)
    assert moved[0] > 12 * found.metrics[0]["broadcast_bytes"] > 0


NAMED = {"data": {"name": "runs.tiny:data", "clients": 4, "client_validation": 0.25}, "algorithm": {"rounds": 2}}


def test_of_a_named_data_set_each_client_holds_out_its_share():
    config = load_config({**NAMED, **ON})
    workload = Workload.from_config(config)
    whole = Workload.from_config(load_config({**NAMED, "data": {**NAMED["data"], "client_validation": 0.5}, **ON}))
    for client, left in enumerate(workload.sizes):
        held = len(workload.judged(client).examples.x)
        assert held == round(0.25 * (left + held))
        assert left + held == whole.sizes[client] + len(whole.judged(client).examples.x)
        trained, judged = (workload.examples(client).x, workload.judged(client).examples.x)
        assert not (trained[:, None] == judged[None]).all(2).any(), "nothing is trained on that is evaluated"
    line = sketchfed.run({**NAMED, **ON}).metrics[-1]
    assert 0 <= line["clients_accuracy_worst"] <= line["clients_accuracy"] <= 1


@pytest.mark.parametrize(
    ("config", "others", "why"),
    [
        ({"privacy": {"epsilon": 8.0, "delta": 1e-3, "unit": "client"}}, {}, r"\[privacy\] hides single clients"),
        ({"secure": {"clip": 5.0}}, {}, r"\[secure\] hides single clients"),
        ({"algorithm": {"name": "dbcl", "rounds": 1}}, {}, "see sketched layers only"),
        ({"training": {}}, {"client_test": OWN_TESTS}, "nothing evaluates the clients. Set evaluate_clients = true"),
        ({}, {"client_test": OWN_TESTS[:3]}, "client_test holds data of 3 clients, and there are 12"),
        (
            {},
            {"client_test": [(x[:, :5], y) for x, y in OWN_TESTS]},
            r"client_test must have the form of clients and test, .*\(5,\)",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_a_remedy(config, others, why):
    with pytest.raises(InputError, match=why):
        run(config, **others)


def test_a_loop_of_ones_own_needs_a_function_that_evaluates():
    with pytest.raises(InputError, match=r"Pass evaluate, or set training\.evaluate"):
        run(way="own loop", evaluate=None)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"data": {"client_validation": 0.2}}, "Set training.evaluate_clients = true"),
        ({"data": {"client_validation": 1.0}, **ON}, "above 0 and below 1"),
        ({"data": {"client_validation": 0.0}, **ON}, "above 0 and below 1"),
    ],
)
def test_shares_that_make_no_sense_are_refused(tables, why):
    with pytest.raises(InputError, match=why):
        sketchfed.run(tables)


def test_two_metrics_cannot_have_one_column():
    def twice(model, data, context):
        return {"accuracy": 0.5, "accuracy_worst": 0.1}

    with pytest.raises(InputError, match="already has a column 'clients_accuracy_worst'"):
        run(way="own loop", evaluate=twice)


def test_what_is_recorded_for_an_audit_is_what_training_sends(tmp_path):
    record = {"engine": {"record": True}, "algorithm": {"rounds": 2}, "data": {"clients": 3, "name": "runs.tiny:data"}}
    for name, training in (("plain", {}), ("judged", ON)):
        sketchfed.run({**record, **training}, folder=tmp_path / name)
    assert (tmp_path / "plain" / "wire.bin").read_bytes() == (tmp_path / "judged" / "wire.bin").read_bytes()
