"""Runs whose clients train and encode on another device, which is pretended, come to the results of the CPU."""

import tomllib
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from sketchfed import devices, resume, run
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.testing import data_of
from sketchfed.testing.devices import pretended

DEVICE = pretended()
THERE = {"engine": {"device": "pretend", "workers": 1}}
WORK = {"rounds": 2, "local_steps": 3, "batch": 4}


def both(tables, **objects):
    """The results of a run on the CPU and on the other device."""
    return [run(tables | where, **deepcopy(objects)) for where in ({}, THERE)]


def same(here, there, tolerance=1e-4):
    assert torch.allclose(here.weights, there.weights, atol=tolerance), float((here.weights - there.weights).abs().max())
    assert there.weights.device.type == "cpu"
    for mine, theirs in zip(here.metrics, there.metrics, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-3)
        assert theirs["uplink_bytes"] == mine["uplink_bytes"]


NAMED = {
    "dense layers": {"algorithm": {"name": "fedavg", **WORK}},
    "a sketch": {"algorithm": {"name": "iterative", **WORK}, "sketch": {"ratio": 0.1}},
    "a sketch of few bits": {"algorithm": {"name": "iterative", **WORK}, "sketch": {"ratio": 0.1, "bits": 8}},
    "rounded updates": {"algorithm": {"name": "fedavg", **WORK}, "codec": {"name": "qsgd", "bits": 8}},
    "momentum, decay and metrics": {
        "algorithm": {"name": "fedavg", **WORK, "local_momentum": 0.9, "weight_decay": 0.01},
        "model": {"metric": ["f1", "auroc"]},
    },
    "control variates": {"algorithm": {"name": "iterative", **WORK, "scaffold": True}, "sketch": {"ratio": 0.5}},
    "dynamic regularisation": {"algorithm": {"name": "iterative", **WORK, "feddyn": 0.1}, "sketch": {"ratio": 0.5}},
    "asynchronous steps": {
        "algorithm": {"name": "fedavg", **WORK},
        "codec": {"name": "sketched"},
        "asynchronous": {"buffer": 2, "concurrency": 3},
    },
    "weights and a pull": {
        "algorithm": {"name": "fedavg", **WORK, "weighting": "examples"},
        "training": {"proximal": 0.5},
        "data": {"partition": "dirichlet", "clients": 4},
    },
    "an optimiser with everything": {
        "algorithm": {"name": "fedavg", **WORK, "local_rate": 0.001},
        "training": {
            "optimiser": "adamw", "eps": 1e-3, "optimiser_state": "kept", "clip_norm": 1.0, "accumulate": 2, "proximal": 0.1,
            "round_schedule": "cosine", "step_schedule": "linear",
        },
    },
    "sketched layers": {"algorithm": {"name": "dbcl", "public_start": True, **WORK}, "sketch": {"ratio": 0.5}},
    "private examples and sums": {
        "algorithm": {"name": "iterative", "rounds": 2, "local_steps": 1, "batch": 8},
        "privacy": {
            "name": "discrete_gaussian", "unit": "example", "noise_multiplier": 1.0, "insecure_noise_seed": 5, "delta": 1e-5,
        },
        "secure": {},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_named_problem_is_solved_as_on_the_cpu(name):
    tables = {"data": {"clients": 4}} | NAMED[name]
    same(*both(tables), tolerance=2e-3 if name == "rounded updates" or "bits" in name else 1e-4)


def test_convolutions_train_as_the_kernels_of_the_cpu_do():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)]
    data = [tuple(part) for part in data_of(3, shape=(1, 8, 8), loss="cross_entropy")]
    same(*both({"algorithm": WORK}, model=nn.Sequential(*layers), clients=data, test=data[0], loss="cross_entropy"))


def loop(model, data, context):
    """A loop of the user's own that draws, keeps an optimiser, and moves what it reads."""
    assert next(model.parameters()).device == context.device
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if "optimiser" in context.kept:
        optimiser.load_state_dict(context.kept["optimiser"])
    for x, y in DataLoader(TensorDataset(*data), batch_size=4, shuffle=True, drop_last=True, generator=context.generator):
        noise = 0.01 * torch.randn(x.shape, generator=context.generator)
        optimiser.zero_grad()
        functional.cross_entropy(model((x + noise).to(context.device)), y.to(context.device)).backward()
        optimiser.step()
    context.kept["optimiser"] = optimiser.state_dict()


def evaluate(model, data, context):
    outputs = model(data[0].to(context.device))
    return {"loss": functional.cross_entropy(outputs, data[1].to(context.device)), "width": float(outputs.std())}


def sets(clients=3):
    return [tuple(part) for part in data_of(clients, loss="cross_entropy")]


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_loop_of_your_own_finds_its_model_on_the_device(buffers):
    tables = {"algorithm": {"rounds": 3}, "model": {"buffers": buffers, "personal": ["3.*"] if buffers == "local" else []}}
    here, there = both(tables, model=small(), clients=sets(), test=sets()[0], train=loop, evaluate=evaluate)
    same(here, there)
    assert there.metrics[-1]["width"] == pytest.approx(here.metrics[-1]["width"], rel=1e-3)


def dict_loss(model, batch):
    assert {value.device for value in batch.values()} == {next(model.parameters()).device}
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def pair_loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


FORMS = {
    "dicts of tensors": (dict_loss, lambda x, y: {"x": x, "y": y}),
    "lists of dicts": (dict_loss, lambda x, y: [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]),
    "Datasets": (pair_loss, lambda x, y: TensorDataset(x, y)),
    "DataLoaders": (pair_loss, lambda x, y: DataLoader(TensorDataset(x, y), batch_size=4)),
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_any_form_are_moved(form):
    loss, form_of = FORMS[form]
    work = {"rounds": 2, "local_steps": 2} | ({} if form == "DataLoaders" else {"batch": 4})
    model, data = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), [form_of(*part) for part in sets()]
    for privacy in ({}, {"unit": "example", "placement": "steps", "noise_multiplier": 1.0, "insecure_noise_seed": 5}):
        if privacy and form == "DataLoaders":
            continue
        tables = {"algorithm": {"name": "iterative", **work}, "sketch": {"ratio": 0.5}}
        tables |= {"privacy": privacy | {"delta": 1e-3}} if privacy else {}
        same(*both(tables, model=model, clients=data, test=data[0], batch_loss=loss))


@pytest.mark.parametrize("where", [THERE, {}], ids=["on that device", "on the CPU"])
@pytest.mark.parametrize("how", ["a loss of outputs", "a loss of batches", "a loop"])
def test_a_model_and_data_may_be_on_a_device_already(how, where):
    functions = {
        "a loss of outputs": {"loss": "cross_entropy"},
        "a loss of batches": {"batch_loss": pair_loss},
        "a loop": {"train": loop, "evaluate": evaluate},
    }
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), sets()
    tables = {"algorithm": {"name": "iterative", "rounds": 2, **({} if how == "a loop" else {"batch": 4})}}
    here = run(tables, model=deepcopy(model), clients=data, test=data[0], **functions[how])
    given = [tuple(part.to(DEVICE) for part in each) for each in data]
    if how == "a loop":  # data is handed on as it is, and this loop draws on the CPU
        given = data
    there = run(tables | where, model=model.to(DEVICE), clients=given, test=given[0], **functions[how])
    same(here, there)


def test_mixed_precision_runs_on_the_device():
    training = {"training": {"precision": "bfloat16"}, "algorithm": {"rounds": 1, "local_steps": 2, "batch": 4}}
    result = run(training | THERE, model=nn.Linear(6, 4), clients=sets(), test=sets()[0], batch_loss=pair_loss)
    assert torch.isfinite(result.weights).all()


def test_dropout_is_drawn_from_the_clients_seed():
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    tables = {"algorithm": {"rounds": 2, "local_steps": 2}} | THERE
    one, other = (run(tables, model=model, clients=sets(), test=sets()[0], loss="cross_entropy") for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(one.weights, other.weights)


class StoppedError(Exception):
    """The process ends here."""


def stop_after(rounds):
    def on_round(line):
        if line["round"] == rounds:
            raise StoppedError

    return on_round


def test_a_run_is_resumed_on_another_device(tmp_path):
    tables = {"algorithm": {"name": "iterative", "rounds": 4}, "data": {"clients": 4}, "engine": {"checkpoint_seconds": 0.0}}
    whole = run(tables)
    with pytest.raises(StoppedError):
        run(tables, folder=tmp_path / "run", on_round=stop_after(2))
    moved = resume(tmp_path / "run", device="pretend")
    same(whole, moved)
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert kept["engine"]["device"] == "cpu", "the folder names the device that the run began on"


def test_runs_that_began_on_a_device_are_resumed_bit_for_bit(tmp_path):
    tables = {"algorithm": {"name": "iterative", "rounds": 4}, "data": {"clients": 4}}
    tables |= {"engine": {"device": "pretend", "checkpoint_seconds": 0.0}}
    with pytest.raises(StoppedError):
        run(tables, folder=tmp_path / "run", on_round=stop_after(2))
    assert torch.equal(resume(tmp_path / "run").weights, run(tables).weights)


# Names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "CPU", "meta", "", "cuda:1:2", "auto:1"])
def test_names_of_no_device_are_refused(name):
    with pytest.raises(InputError, match=r"engine.device must be 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps', got"):
        load_config({"engine": {"device": name}})


@pytest.mark.parametrize(
    ("name", "there", "found"),
    [
        ("cuda:7", {"cpu": 1, "cuda": 2}, "besides the CPU, it finds cuda:0, cuda:1"),
        ("cuda", {"cpu": 1}, "it finds only the CPU"),
        ("mps", {"cpu": 1}, "it finds only the CPU"),
        ("cpu:1", {"cpu": 1, "mps": 1}, "besides the CPU, it finds mps:0"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_is(monkeypatch, name, there, found):
    monkeypatch.setattr(devices, "_count", lambda kind: there.get(kind, 0))
    with pytest.raises(InputError, match=rf"engine.device = '{name}' is not there.*{found}.*'auto'"):
        run({"engine": {"device": name}, "data": {"clients": 2}})


def test_a_device_has_a_number_so_that_it_equals_that_of_a_tensor():
    assert devices.device_named("pretend") == DEVICE == torch.ones(1, device="pretend").device


@pytest.mark.parametrize(("there", "chosen"), [(("cuda", "mps"), "cuda"), (("mps",), "mps"), ((), "cpu")])
def test_auto_takes_a_gpu_if_there_is_one(monkeypatch, there, chosen):
    monkeypatch.setattr(devices, "_count", lambda kind: int(kind in (*there, "cpu")))
    assert devices.device_named("auto").type == chosen


def test_a_configuration_for_a_device_that_is_elsewhere_can_be_read():
    assert load_config({"engine": {"device": "cuda:3"}}).engine.device == "cuda:3"


def test_what_knows_how_to_move_is_moved():
    class Encoding(SimpleNamespace):
        def to(self, device):
            return Encoding(ids=self.ids.to(device))

    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = devices.moved({"a": [Encoding(ids=torch.ones(2))], "b": (packed, "text", 3)}, DEVICE)
    assert moved["a"][0].ids.device == moved["b"][0].data.device == DEVICE
    assert moved["b"][0].batch_sizes.device.type == "cpu"
    assert moved["b"][1:] == ("text", 3)
