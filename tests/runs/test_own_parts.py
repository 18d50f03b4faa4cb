"""Runs whose parts are somebody else's, named as `package.module:Thing`."""

import json

import pytest
import torch
from torch import nn

from runs import brought, tiny
from sketchfed import resume, run
from sketchfed.algorithms import ALGORITHMS
from sketchfed.config import Config, load_config
from sketchfed.data import partition
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.report.loading import read
from sketchfed.runs.workload import KEYS
from sketchfed.seeds import PublicSeed

HERE = "runs.brought"
BASE = {"data": {"name": "runs.tiny:data", "clients": 4}, "model": {"name": "runs.tiny:model"}}
OWN = {
    "sketch": {"algorithm": {"name": "iterative"}, "sketch": {"name": f"{HERE}:OwnSketch", "ratio": 0.5}},
    "codec": {"codec": {"name": f"{HERE}:OwnCodec"}},
    "algorithm": {"algorithm": {"name": f"{HERE}:OwnAlgorithm", "extra": 2.0}},
    "partition": {"data": BASE["data"] | {"partition": f"{HERE}:turns", "first": 2}},
    "loss": {"model": BASE["model"] | {"loss": f"{HERE}:margin_loss"}},
    "engine": {"engine": {"name": f"{HERE}:Deaf", "client": 2}},
    "metric": {"model": BASE["model"] | {"metric": f"{HERE}:largest_share"}},
}


def tables(kind: str) -> dict:
    own = OWN.get(kind, {})
    algorithm = {"rounds": 4, "local_steps": 2} | own.get("algorithm", {})
    engine = {"checkpoint_seconds": 0} | own.get("engine", {})
    return BASE | own | {"algorithm": algorithm, "engine": engine}


class StopError(Exception):
    pass


def stop(line):
    if line["round"] == 2:
        raise StopError


@pytest.mark.parametrize("kind", OWN)
def test_an_own_part_runs_is_kept_and_resumes_bit_for_bit(kind, tmp_path):
    whole = run(tables(kind), folder=tmp_path / "whole")
    with pytest.raises(StopError):
        run(tables(kind), folder=tmp_path / "parted", on_round=stop)
    resumed = resume(tmp_path / "parted")
    assert torch.equal(whole.weights, resumed.weights)
    assert load_config(whole.config) == whole.config == load_config(tmp_path / "parted" / "config.toml")
    assert read(tmp_path / "parted").rounds == 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("sketch.name=nowhere:X", "sketch 'nowhere:X': there is no module"),
        (f"sketch.name={HERE}:OwnCodec", "is not a subclass of sketchfed.sketches.base.Sketch"),
        (f"codec.name={HERE}:OwnSketch", "is not a subclass of sketchfed.codecs.base.Codec"),
        (f"algorithm.name={HERE}:OwnSketch", "is not a subclass of sketchfed.algorithms.base.Algorithm"),
        (f"data.partition={HERE}:nothing", "partition .* has no 'nothing'"),
        (f"model.loss={HERE}:KIND", "loss .* has no 'KIND'"),
    ],
)
def test_what_is_no_such_part_is_refused(change, complaint):
    algorithm = {"algorithm": {"name": "iterative"}} if change.startswith("sketch") else {}
    with pytest.raises(InputError, match=complaint):
        load_config(algorithm, [change])


def test_an_own_engine_moves_the_bytes():
    assert [line["participants"] for line in run(tables("engine")).metrics] == [3] * 4
    with pytest.raises(
        InputError, match=r"no_engine' is a function, not a class\. Name a subclass of sketchfed\.runs\.hosts\.Host"
    ):
        run(tables("plain") | {"engine": {"name": f"{HERE}:no_engine"}})
    with pytest.raises(UnknownNameError, match=r"no key in \[engine\] named 'cleint'. Did you mean 'client'"):
        load_config({"engine": {"name": f"{HERE}:Deaf", "cleint": 1}})
    with pytest.raises(UnknownNameError, match=r"no key in \[engine\] named 'client'"):
        load_config({"engine": {"client": 1}})


PRIVATE = {"noise_multiplier": 1.0, "insecure_noise_seed": 1, "delta": 1e-3}


@pytest.mark.parametrize("placement", ["sent", "steps"])
def test_own_normal_noise_is_used_and_charged_as_normal_noise(placement):
    unit = {"placement": placement, **({"unit": "example"} if placement == "steps" else {})}
    own, usual = (
        run(tables("plain") | {"privacy": PRIVATE | unit | {"name": name}, "algorithm": {"rounds": 2, "batch": 4}})
        for name in (f"{HERE}:OwnMechanism", "gaussian")
    )
    assert not torch.equal(own.weights, usual.weights)
    assert torch.allclose(own.weights, usual.weights, atol=0.01)
    assert own.metrics[-1]["epsilon"] == usual.metrics[-1]["epsilon"] > 0


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (f"{HERE}:Foreign", "cannot be accounted for: .* Derive Foreign from sketchfed.privacy.GaussianNoise"),
        ("rounded", "adds no noise, so no ε holds"),
        ("laplace", "no mechanism named 'laplace'"),
        (f"{HERE}:OwnCodec", "is not a subclass of sketchfed.privacy.base.Mechanism"),
    ],
)
def test_noise_that_the_accountant_does_not_know_is_refused(name, complaint):
    with pytest.raises(InputError, match=complaint):
        load_config({"privacy": {"name": name, "epsilon": 3}})


def test_own_normal_noise_is_no_noise_for_secure_sums():
    with pytest.raises(InputError, match="OwnMechanism' adds real-valued noise, but secure sums add integers"):
        run(tables("plain") | {"privacy": PRIVATE | {"name": f"{HERE}:OwnMechanism"}, "secure": {}})


def test_an_algorithm_that_python_made_is_found_again_by_where_it_is():
    config = Config(algorithm=brought.OwnAlgorithm(rounds=3))
    assert config.to_tables()["algorithm"]["name"] == f"{HERE}:OwnAlgorithm"
    assert load_config(config) == config
    assert ALGORITHMS.name_of(type(Config().algorithm)) == "fedavg"


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("all_to_one", "gave client 1 no example"),
        ("too_few", r"array of shape \(3,\) and type int64. It must return the number of its client"),
        ("too_many", "numbered its clients from 0 to 47. Number them from 0 to 3"),
    ],
)
def test_a_partition_that_leaves_something_out_is_refused(rule, complaint):
    with pytest.raises(InputError, match=complaint):
        partition(tiny.data(), name=f"{HERE}:{rule}", clients=4, seed=PublicSeed(1))


def test_a_metric_is_one_more_column_and_nothing_else_changes(tmp_path):
    plain, scored = (
        run(tables(kind) | {"engine": {"evaluate_every": 3}}, folder=tmp_path / kind) for kind in ("plain", "metric")
    )
    assert torch.equal(plain.weights, scored.weights)
    lines = [json.loads(line) for line in (tmp_path / "metric" / "metrics.jsonl").read_text().splitlines()]
    assert list(lines[0]) == [*KEYS, "largest_share"]
    assert [line["largest_share"] is None for line in lines] == [True, True, False, False]
    outputs = scored.module(tiny.data().x_test)
    assert lines[-1]["largest_share"] == pytest.approx(float(outputs.argmax(1).bincount().max()) / 24)
    for line, same in zip(lines, plain.metrics, strict=True):
        assert all(line[key] == same[key] for key in KEYS if key != "seconds")


def test_several_metrics_are_as_many_columns():
    chosen = ["f1", "accuracy", "top5", f"{HERE}:largest_share"]
    line = run(tables("plain") | {"model": {"metric": chosen}}).metrics[-1]
    assert set(line) - set(KEYS) == {"f1", "top5", "largest_share"}


@pytest.mark.parametrize(
    ("metric", "said"),
    [("mse", "'mse' does not suit the data, a task of classification"), (["f1", "f1"], "already has a column 'f1'")],
)
def test_metrics_that_do_not_suit_the_data_or_each_other_are_refused(metric, said):
    with pytest.raises(InputError, match=said):
        run(tables("plain") | {"model": {"metric": metric}})


def test_a_metric_that_is_not_finite_is_null():
    assert run(tables("plain") | {"model": {"metric": f"{HERE}:undefined"}}).metrics[-1]["undefined"] is None


def test_the_accuracy_is_there_in_any_case():
    assert set(run(tables("plain") | {"model": {"metric": "accuracy"}}).metrics[0]) == set(KEYS)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ({"metric": f"{HERE}:loss"}, "metrics.jsonl already has a column 'loss'"),
        ({"metric": f"{HERE}:many_numbers"}, "metric 'many_numbers' cannot score outputs of shape"),
        ({"loss": "squares"}, "model.loss = 'squares' does not suit the data, a classification. Use 'cross_entropy'"),
    ],
)
def test_losses_and_metrics_that_do_not_fit_are_refused_before_the_first_round(model, complaint):
    with pytest.raises(InputError, match=complaint):
        run(tables("plain") | {"model": model})


def test_unknown_losses_and_metrics_are_refused():
    with pytest.raises(UnknownNameError, match=r"no metric named 'acuracy'\. Did you mean 'accuracy'"):
        load_config({"model": {"metric": "acuracy"}})
    with pytest.raises(UnknownNameError, match="no loss named 'cross'"):
        load_config({"model": {"loss": "cross"}})


def test_a_metric_can_be_a_function_where_the_model_is_an_object():
    clients, test = [tiny.points(10, first=50 * client) for client in range(3)], tiny.points(24, first=500)
    result = run({"algorithm": {"rounds": 2}}, model=nn.Linear(4, 3), clients=clients, test=test, metric=brought.largest_share)
    assert 1 / 3 <= result.metrics[-1]["largest_share"] <= 1
    with pytest.raises(InputError, match="'accuracy' does not suit the data, a task of regression"):
        run({}, model=nn.Linear(4, 3), clients=clients, test=test, metric="accuracy", task="regression")
