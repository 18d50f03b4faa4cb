import json
import tomllib

import pytest
import tiny
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import sketchfed
from sketchfed.algorithms.settings import default_global_rate
from sketchfed.errors import DivergedError, InputError, SketchfedError
from sketchfed.runs.workload import KEYS

SHORT = {"algorithm": {"rounds": 3, "local_steps": 2}}


class Pairs(Dataset):
    """A data set as people write them, without tensors inside."""

    def __init__(self, first: int) -> None:
        x, y = tiny.points(16, first=first)
        self.rows = [(row.tolist(), int(kind)) for row, kind in zip(x, y, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x, y = self.rows[index]
        return torch.tensor(x), y


class OwnModel(nn.Module):
    def __init__(self, outputs: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.outer = nn.Linear(6, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.outer(self.dropout(torch.tanh(self.inner(x))))


def seeded(**options) -> OwnModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return OwnModel(**options)


def given(**changes) -> dict:
    clients = [tiny.points(16, first=16 * number) for number in range(3)]
    return {"model": seeded(), "clients": clients, "test": tiny.points(30, first=100)} | changes


def test_a_mapping_a_file_and_nothing_can_be_run(tmp_path):
    run = sketchfed.run(SHORT)
    assert isinstance(run, sketchfed.Run)
    (tmp_path / "short.toml").write_text("[algorithm]\nrounds = 3\nlocal_steps = 2\n")
    for source in (tmp_path / "short.toml", str(tmp_path / "short.toml"), run.config):
        assert torch.equal(sketchfed.run(source).weights, run.weights)


def test_a_run_says_what_it_came_to():
    seen = []
    run = sketchfed.run({"seed": 5, **SHORT}, on_round=seen.append)
    assert seen == run.metrics
    assert (run.label, run.model, run.dim, run.clients, run.folder) == ("fedavg", "64-64-64-10", 8_970, 20, None)
    assert (run.accuracy, run.loss) == (run.metrics[-1]["accuracy"], run.metrics[-1]["loss"])
    assert run.config.seed == 5
    assert run.config.model.options == {"hidden": [64, 64]}
    assert torch.equal(torch.cat([parameter.reshape(-1) for parameter in run.module.parameters()]), run.weights)
    assert "tensor" not in repr(run)


def test_each_round_has_a_line_of_totals():
    run = sketchfed.run(tiny.tables("few bits, few participants, momentum", rounds=8))
    assert [line["round"] for line in run.metrics] == list(range(1, 9))
    assert all(tuple(line) == KEYS for line in run.metrics)
    assert all(line["participants"] == 2 and line["epsilon"] is None for line in run.metrics)
    for total in ("uplink_bytes", "downlink_bytes", "seconds"):
        values = [line[total] for line in run.metrics]
        assert values == sorted(values)
        assert values[0] > 0
    each = run.metrics[0]["uplink_bytes"]
    assert [line["uplink_bytes"] for line in run.metrics] == [each * number for number in range(1, 9)]


def test_rounds_between_evaluations_have_no_score():
    run = sketchfed.run(tiny.tables("fedavg", rounds=5, evaluate_every=2))
    assert [line["loss"] is None for line in run.metrics] == [True, False, True, False, False]
    assert [line["accuracy"] is None for line in run.metrics] == [True, False, True, False, False]
    assert run.loss == run.metrics[-1]["loss"]


def test_a_run_can_stop_at_an_accuracy():
    run = sketchfed.run(tiny.tables("fedavg", rounds=60, target_accuracy=0.9))
    assert len(run.metrics) < 60
    assert run.accuracy >= 0.9 > max(line["accuracy"] for line in run.metrics[:-1])


def test_the_seed_decides_and_workers_do_not():
    base = tiny.tables("few bits, few participants, momentum", rounds=4)
    run = sketchfed.run(base | {"engine": {"workers": 1}})
    assert torch.equal(sketchfed.run(base | {"engine": {"workers": 3}}).weights, run.weights)
    assert not torch.equal(sketchfed.run(base | {"seed": 1}).weights, run.weights)


def test_own_functions_are_run_from_a_configuration():
    config = tiny.tables("fedavg", rounds=2) | {"model": {"name": "tiny:model", "width": 7}}
    run = sketchfed.run(config | {"data": {"name": "tiny:data", "count": 30, "clients": 5}})
    assert (run.dim, run.clients) == (4 * 7 + 7 + 7 * 3 + 3, 5)
    assert run.config.data.options == {"count": 30}


# --- objects instead of names


def test_own_model_and_tensors_are_trained():
    objects = given()
    before = [parameter.clone() for parameter in objects["model"].parameters()]
    run = sketchfed.run({"algorithm": {"name": "iterative", "rounds": 30, "local_rate": 0.5}}, **objects)
    assert run.accuracy > 0.9
    assert (run.model, run.dim, run.clients) == ("OwnModel", 51, 3)
    assert isinstance(run.module, OwnModel)
    with torch.no_grad():
        hits = (run.module.eval()(objects["test"][0]).argmax(1) == objects["test"][1]).float().mean()
    assert float(hits) == pytest.approx(run.accuracy)
    unchanged = zip(before, objects["model"].parameters(), strict=True)
    assert all(torch.equal(old, new) for old, new in unchanged)


def test_datasets_do_as_well_as_tensors():
    run = sketchfed.run(SHORT, **given())
    pairs = [Pairs(16 * number) for number in range(3)]
    tensors = [TensorDataset(*tiny.points(16, first=16 * number)) for number in range(3)]
    for clients in (pairs, tensors):
        assert torch.equal(sketchfed.run(SHORT, **given(clients=clients)).weights, run.weights)


def positions() -> dict:
    """A regression: each point's place in a plane."""

    def placed(first):
        x, _ = tiny.points(20, first=first)
        return x, x @ torch.tensor([[1.0, 0], [0, 2], [3, 1], [0, 0]])

    clients = [placed(20 * number) for number in range(3)]
    return {"model": nn.Linear(4, 2), "clients": clients, "test": placed(90), "task": "regression"}


def test_a_regression_has_a_loss_and_no_accuracy():
    run = sketchfed.run({"algorithm": {"rounds": 40, "local_steps": 5}}, **positions())
    assert run.loss < 0.05 < run.metrics[0]["loss"]
    assert run.accuracy is None
    assert all(line["accuracy"] is None for line in run.metrics)


class Line(nn.Module):
    """A model whose outputs have the shape of its targets, without a column: (n,)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def heights(**changes) -> dict:
    """A regression of one number, given without a column."""

    def placed(first):
        x, _ = tiny.points(20, first=first)
        return x, x @ torch.tensor([1.0, -2.0, 3.0, 0.5])

    clients = [placed(20 * number) for number in range(3)]
    return {"model": Line(), "clients": clients, "test": placed(90), "task": "regression"} | changes


@pytest.mark.parametrize("loss", [None, nn.functional.mse_loss, lambda outputs, targets: ((outputs - targets) ** 2).mean()])
def test_targets_without_a_column_meet_outputs_without_one(loss):
    """Every output compared with every target would leave their variance, about 5."""
    run = sketchfed.run({"algorithm": {"rounds": 20, "local_steps": 10, "local_rate": 0.3}}, **heights(loss=loss))
    assert run.loss < 0.01


@pytest.mark.parametrize("loss", [None, nn.functional.mse_loss, lambda outputs, targets: ((outputs - targets) ** 2).mean()])
def test_outputs_that_would_be_broadcast_against_targets_are_refused_before_round_1(loss):
    with pytest.raises(InputError, match=r"outputs have shape \(\d, 1\) and the targets shape \(\d,\)"):
        sketchfed.run(SHORT, **heights(model=nn.Linear(4, 1), loss=loss))
    columns = [(x, y[:, None]) for x, y in heights()["clients"]]
    with pytest.raises(InputError, match=r"outputs have shape \(\d,\) and the targets shape \(\d, 1\)"):
        sketchfed.run(SHORT, **heights(clients=columns, test=columns[0], loss=loss))


def test_a_loss_of_ones_own_is_minimised_and_scored():
    def smoothed(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.2)

    plain, own = (sketchfed.run(SHORT, **given(loss=loss)) for loss in (None, smoothed))
    assert torch.equal(sketchfed.run(SHORT, **given(loss="cross_entropy")).weights, plain.weights)
    assert not torch.equal(plain.weights, own.weights)
    x, y = given()["test"]
    with torch.no_grad():
        assert own.loss == pytest.approx(float(smoothed(own.module.eval()(x), y)))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"model": seeded()}, "model, clients and test belong together"),
        ({"loss": "squares"}, "model, clients and test belong together"),
        (given(test=None), "model, clients and test belong together"),
        (given(config={"data": {"name": "mnist"}}), "Remove these tables."),
        (given(config={"model": {"hidden": [3]}}), "Remove these tables."),
        (given(model=OwnModel(outputs=2)), "Give the model's last layer 3 outputs"),
        (given(model=nn.Linear(5, 3)), "mat1 and mat2 shapes cannot be multiplied"),
        (given(loss="hinge"), "there is no loss named 'hinge'"),
        (given(task="ranking"), "there is no task named 'ranking'"),
        (given(clients=[]), "must be at least 1, got 0"),
        (given(clients=[(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))]), "same number of rows"),
        (given(model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), r"use nn\.GroupNorm or nn\.LayerNorm"),
    ],
)
def test_objects_that_do_not_go_together_are_refused(arguments, why):
    with pytest.raises(InputError, match=why):
        sketchfed.run(**arguments)


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sketchfed.run(SHORT, **given())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["fedavg", "iterative"])
def test_divergence_names_the_step_that_theory_allows(name):
    def steps(rate):
        return {"algorithm": {"name": name, "rounds": 50, "local_rate": rate, "global_rate": 1, "local_steps": 3}}

    with pytest.raises(DivergedError, match=r"Theory allows local_rate = [\d.e-]+ with global_rate = 1") as refused:
        sketchfed.run(steps(1e6), **positions())
    assert "local_rate = 1e+06 with 3 local steps and global_rate = 1." in str(refused.value)
    allowed = float(str(refused.value).partition("Theory allows local_rate = ")[2].split()[0])
    run = sketchfed.run(steps(allowed), **positions())
    assert run.loss < run.metrics[0]["loss"]


def test_data_that_are_not_finite_are_said_to_be_so():
    broken = [(torch.full((8, 4), float("nan")), torch.zeros(8, dtype=torch.int64))]
    with pytest.raises(SketchfedError, match="look for NaN, infinity or huge numbers in the data"):
        sketchfed.run(SHORT, **given(clients=broken))


# --- folders


def test_a_folder_holds_the_exact_configuration_and_every_line(tmp_path):
    config = {"data": {"partition": "dirichlet"}, "algorithm": {"name": "iterative", "rounds": 2}, "sketch": {"bits": 4}}
    run = sketchfed.run(config, folder=tmp_path / "deep" / "run")
    assert run.folder == tmp_path / "deep" / "run"
    written = tomllib.loads((run.folder / "config.toml").read_text())
    assert written == run.config.to_tables()
    assert written["data"] == {
        **{"name": "digits", "clients": 20, "partition": "dirichlet", "validation": 0.0},
        **{"concentration": 0.5, "minimum": 1},
    }
    assert written["model"] == {"name": "mlp", "hidden": [64, 64]}
    assert written["algorithm"]["global_rate"] == default_global_rate(897 / 8_970)
    assert (written["sketch"]["ratio"], written["seed"], written["engine"]["evaluate_every"]) == (0.1, 0, 1)
    assert [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()] == run.metrics
    summary = json.loads((run.folder / "summary.json").read_text())
    assert {key: summary[key] for key in ("model", "dim", "clients", "data", "finished", "label")} == {
        "model": "mlp 64-64-64-10",
        "dim": 8_970,
        "clients": 20,
        "data": "digits",
        "finished": True,
        "label": "iterative srht 1/10 4 bits",
    }
    again = sketchfed.run(run.folder / "config.toml")
    assert torch.equal(again.weights, run.weights)


def test_the_folder_of_a_run_is_not_used_twice(tmp_path):
    sketchfed.run(SHORT, **given(), folder=tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run"):
        sketchfed.run(SHORT, **given(), folder=tmp_path / "run")


def stop_after(rounds):
    def stop(line):
        if line["round"] == rounds:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("checkpoint_seconds", [0, 1e9], ids=["saved every round", "never saved"])
def test_given_objects_are_resumed_when_given_again(tmp_path, dropout, checkpoint_seconds):
    """Also before the first checkpoint, and with a model whose first weights are others this time."""
    config = {
        "algorithm": {"name": "iterative", "rounds": 6, "participation": 0.7},
        "engine": {"checkpoint_seconds": checkpoint_seconds},
    }
    whole = sketchfed.run(config, **given(model=seeded(dropout=dropout)))
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, **given(model=seeded(dropout=dropout)), folder=tmp_path, on_round=stop_after(3))
    with pytest.raises(InputError, match="Pass model, clients and test again"):
        sketchfed.resume(tmp_path)
    resumed = sketchfed.resume(tmp_path, **given(model=OwnModel(dropout=dropout)))
    assert torch.equal(resumed.weights, whole.weights)
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]


def test_resuming_refuses_objects_where_names_were(tmp_path):
    sketchfed.run(tiny.tables("fedavg", rounds=1), folder=tmp_path)
    with pytest.raises(InputError, match="it takes no model, clients, test"):
        sketchfed.resume(tmp_path, **given())
    with pytest.raises(InputError, match="holds no run"):
        sketchfed.resume(tmp_path / "nowhere")
