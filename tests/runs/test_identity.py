"""A run goes on with the loss, the data and the model that it began with, and with nothing else."""

import functools
import json

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.errors import InputError, StorageError
from sketchfed.runs.identity import IDENTITY

CONFIG = {"algorithm": {"rounds": 4, "local_steps": 2}, "engine": {"checkpoint_seconds": 0}}


class Net(nn.Module):
    def __init__(self, width: int = 6, frozen: float | None = None) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, width), nn.Linear(width, 3)
        if frozen is not None:
            self.inner.requires_grad_(False).weight.fill_(frozen)
            self.inner.bias.fill_(0.0)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


class Other(Net):
    """The same parameters, and another model."""

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


def smoothed(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def given(**changes) -> dict:
    clients = [tiny.points(16, first=16 * number) for number in range(3)]
    return {"model": Net(), "clients": clients, "test": tiny.points(30, first=100), "loss": smoothed} | changes


def stopped(folder, config=CONFIG, **objects):
    """A run that was interrupted after its second round."""

    def unplug(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, **objects, folder=folder, on_round=unplug)
    return folder


def refused(folder, why, **objects):
    """Resuming is refused, and leaves the run as it was."""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(InputError, match=why) as error:
        sketchfed.resume(folder, **objects)
    assert "another folder" in str(error.value), "what to do"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


# The loss


def with_weight(weight):
    return lambda outputs, targets: weight * functional.cross_entropy(outputs, targets)


def weighted(outputs, targets, *, weight=1.0):
    return weight * functional.cross_entropy(outputs, targets)


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, outputs, targets):
        return self.weight * functional.cross_entropy(outputs, targets)


def renamed(name, *, smoothing):
    """A function of that name; what is in it depends on `smoothing`."""
    space = {"functional": functional}
    exec(f"def {name}(o, t):\n    return functional.cross_entropy(o, t, label_smoothing={smoothing})", space)
    return space[name]


LOSSES = {
    "named": ("cross_entropy", None, smoothed),
    "function": (smoothed, None, functional.cross_entropy),
    "other body": (renamed("loss", smoothing=0.1), renamed("loss", smoothing=0.1), renamed("loss", smoothing=0.2)),
    "lambda": (lambda o, t: functional.cross_entropy(o, t), None, lambda o, t: 2 * functional.cross_entropy(o, t)),
    "closure": (with_weight(1.0), with_weight(1.0), with_weight(2.0)),
    "partial": (
        functools.partial(weighted, weight=1.0),
        functools.partial(weighted, weight=1.0),
        functools.partial(weighted, weight=2.0),
    ),
    "object": (Weighted(1.0), Weighted(1.0), Weighted(2.0)),
    "torch": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.2),
    ),
    "weights": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0])),
    ),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_another_loss_is_refused_and_the_same_is_not(kind, tmp_path):
    first, same, other = LOSSES[kind]
    stopped(tmp_path, **given(loss=first))
    refused(tmp_path, r"was started with another loss: .*, but now .* was given", **given(loss=other))
    assert len(sketchfed.resume(tmp_path, **given(loss=same or first)).metrics) == 4


def test_the_same_lambda_elsewhere_is_the_same_loss(tmp_path):
    def one():
        return lambda outputs, targets: functional.cross_entropy(outputs, targets, label_smoothing=0.3)

    def other():
        # It stands in another place and has a comment.
        return lambda outputs, targets: functional.cross_entropy(outputs, targets, label_smoothing=0.3)

    stopped(tmp_path, **given(loss=one()))
    assert len(sketchfed.resume(tmp_path, **given(loss=other())).metrics) == 4


SMOOTHING = 0.1


def by_a_global(outputs, targets):
    return by_a_function(outputs, targets)


def by_a_function(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=SMOOTHING)


def test_numbers_and_functions_that_a_loss_refers_to_are_part_of_it(tmp_path, monkeypatch):
    stopped(tmp_path, **given(loss=by_a_global))
    with monkeypatch.context() as patched:
        patched.setitem(globals(), "SMOOTHING", 0.2)
        refused(tmp_path, "another loss", **given(loss=by_a_global))
    assert len(sketchfed.resume(tmp_path, **given(loss=by_a_global)).metrics) == 4


# The data


def changed_clients(change) -> list:
    clients = [(x.clone(), y.clone()) for x, y in given()["clients"]]
    return change(clients) or clients


def flipped(clients):
    clients[1][0][3, 2] = torch.nextafter(clients[1][0][3, 2], torch.tensor(9.0))


def relabelled(clients):
    clients[2][1][0] = (clients[2][1][0] + 1) % 3


def shuffled(clients):
    clients[0] = (clients[0][0].flip(0), clients[0][1].flip(0))


DATA = {
    "permuted": (lambda clients: [clients[2], clients[0], clients[1]], "the same clients in another order"),
    "one bit": (flipped, r"client 1 holds other examples"),
    "a label": (relabelled, r"client 2 holds other examples"),
    "examples permuted": (shuffled, r"client 0 holds other examples"),
    "all": (lambda clients: [(x + 1, y) for x, y in clients], r"client 0, 1, 2 holds other examples"),
    "fewer": (lambda clients: clients[:2], "3 clients and now has 2"),
}


@pytest.mark.parametrize("kind", DATA)
def test_other_clients_are_refused(kind, tmp_path):
    change, why = DATA[kind]
    stopped(tmp_path, **given())
    refused(tmp_path, f"was started with other data: .*{why}", **given(clients=changed_clients(change)))
    assert len(sketchfed.resume(tmp_path, **given()).metrics) == 4


def test_other_test_data_is_refused(tmp_path):
    stopped(tmp_path, **given())
    refused(tmp_path, "was started with other data: .*the test data", **given(test=tiny.points(30, first=101)))


def test_another_way_to_read_datasets_is_refused(tmp_path):
    def sets():
        return [torch.utils.data.TensorDataset(*pair) for pair in given()["clients"]]

    stopped(tmp_path, **given(clients=sets()), redraw=True)
    refused(tmp_path, "was started with other data: .*redraw", **given(clients=sets()))
    assert len(sketchfed.resume(tmp_path, **given(clients=sets()), redraw=True).metrics) == 4


# The model


MODELS = {
    "class": (Other, "Net.*Other"),
    "layout": (lambda: Net(width=7), r"inner\.weight \[6, 4\].*inner\.weight \[7, 4\]"),
    "structure": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), "Net.*Sequential"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_another_model_is_refused(kind, tmp_path):
    make, why = MODELS[kind]
    stopped(tmp_path, **given())
    refused(tmp_path, f"was started with another model: .*{why}", **given(model=make()))


def test_another_layer_without_parameters_is_another_model(tmp_path):
    def net(between):
        return nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 3))

    stopped(tmp_path, **given(model=net(nn.Dropout(0.1))))
    refused(tmp_path, "was started with another model", **given(model=net(nn.Dropout(0.2))))
    refused(tmp_path, "was started with another model", **given(model=net(nn.Tanh())))
    assert len(sketchfed.resume(tmp_path, **given(model=net(nn.Dropout(0.1)))).metrics) == 4


def test_first_weights_may_differ_but_frozen_ones_may_not(tmp_path):
    """The checkpoint has the trained weights; nobody has the frozen ones."""
    stopped(tmp_path, **given(model=Net(frozen=0.5)))
    refused(tmp_path, "was started with another model: .*values that are not trained", **given(model=Net(frozen=0.6)))
    assert len(sketchfed.resume(tmp_path, **given(model=Net(frozen=0.5))).metrics) == 4


# Parts that are named


def named(**changes) -> dict:
    return tiny.tables("fedavg", rounds=4, checkpoint_seconds=0) | changes


def test_named_data_that_changed_is_refused(tmp_path, monkeypatch):
    stopped(tmp_path, named())
    points = tiny.points
    with monkeypatch.context() as patched:
        patched.setattr(tiny, "points", lambda count, first=0: points(count, first=first + 1))
        refused(tmp_path, r"was started with other data: .*Restore what 'tiny:data' loaded")
    assert len(sketchfed.resume(tmp_path).metrics) == 4


def test_a_data_file_that_changed_is_refused(tmp_path, monkeypatch):
    draw = np.random.default_rng(1)
    arrays = {f"x_{part}": draw.integers(0, 256, (60, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(60, dtype=np.uint8) % 10 for part in ("train", "test")}
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "mnist.npz", **arrays)
    monkeypatch.setenv("SKETCHFED_DATA", str(tmp_path / "data"))
    config = named(data={"name": "mnist", "clients": 3}, model={"name": "linear"})
    folder = stopped(tmp_path / "run", config)
    arrays["x_train"][7, 3, 3] ^= 1
    np.savez(tmp_path / "data" / "mnist.npz", **arrays)
    refused(folder, r"was started with other data: client \d holds other examples.*Restore what 'mnist' loaded.*SKETCHFED_DATA")


def test_a_named_model_that_changed_is_refused(tmp_path, monkeypatch):
    config = named(model={"name": "tiny:model"})
    stopped(tmp_path, config)
    with monkeypatch.context() as patched:
        patched.setattr(
            tiny, "model", lambda shape, outputs, width=5: nn.Sequential(nn.Linear(shape[0], 4), nn.Linear(4, outputs))
        )
        refused(tmp_path, "was started with another model")
    assert len(sketchfed.resume(tmp_path).metrics) == 4


# The file


def test_a_folder_of_before_is_resumed_with_a_warning(tmp_path, caplog):
    stopped(tmp_path, **given())
    (tmp_path / IDENTITY).unlink()
    assert "cannot be compared" not in caplog.text
    assert len(sketchfed.resume(tmp_path, **given()).metrics) == 4
    assert "cannot be compared" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "\0"])
def test_a_damaged_identity_is_said_to_be_so(text, tmp_path):
    stopped(tmp_path, **given())
    (tmp_path / IDENTITY).write_text(text)
    with pytest.raises(StorageError, match=f"{IDENTITY} .* damaged"):
        sketchfed.resume(tmp_path, **given())


def test_code_of_another_python_is_compared_by_name(tmp_path, caplog):
    stopped(tmp_path, **given())
    told = json.loads((tmp_path / IDENTITY).read_text())
    told["python"], told["loss"]["code"] = "3.9", "0" * 32
    (tmp_path / IDENTITY).write_text(json.dumps(told))
    refused(tmp_path, "another loss", **given(loss=weighted))
    assert len(sketchfed.resume(tmp_path, **given()).metrics) == 4
    assert "by name only" in caplog.text


def dicts(first: int = 0) -> list:
    return [
        [{"x": x, "y": np.int64(y)} for x, y in zip(*tiny.points(9, first=9 * number + first), strict=True)]
        for number in range(3)
    ]


def batch_loss(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def of_dicts(first: int = 0) -> dict:
    return {"model": Net(), "clients": dicts(first), "test": dicts(100)[0], "batch_loss": batch_loss}


def test_numbers_of_numpy_in_examples_are_compared(tmp_path):
    stopped(tmp_path, **of_dicts())
    changed = of_dicts()
    changed["clients"][1][2]["y"] = np.int64(int(changed["clients"][1][2]["y"]) ^ 1)
    refused(tmp_path, "client 1 holds other examples", **changed)
    assert len(sketchfed.resume(tmp_path, **of_dicts()).metrics) == 4


def test_an_identity_with_older_digests_is_compared_as_far_as_it_can_be(tmp_path, caplog):
    """Version 1 had digests of objects that are made in another way today. Those of tensors are the same."""
    stopped(tmp_path / "objects", **of_dicts())
    path = tmp_path / "objects" / IDENTITY
    told = json.loads(path.read_text())
    told["version"], told["batch_loss"]["code"], told["data"]["test"] = 1, "0" * 32, "1" * 32
    told["data"]["clients"] = ["2" * 32] * 3
    path.write_text(json.dumps(told))
    refused(tmp_path / "objects", "it had 3 clients and now has 2", **of_dicts() | {"clients": dicts()[:2]})
    assert len(sketchfed.resume(tmp_path / "objects", **of_dicts()).metrics) == 4
    assert "the number of clients is compared" in caplog.text
    assert "by an earlier version, which had other digests of code" in caplog.text

    stopped(tmp_path / "tensors", **given())
    path = tmp_path / "tensors" / IDENTITY
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))
    refused(tmp_path / "tensors", "client 2 holds other examples", **given(clients=changed_clients(relabelled)))
