"""Clients that differ in one way only, three ways with BatchNorm, and tables that say what was measured."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from sketchfed.data import DataSet
from sketchfed_lab.experiments import batch_norm as experiment
from sketchfed_lab.experiments import batch_norm_report as report
from sketchfed_lab.experiments import batch_norm_task as task
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.batch_norm import ARMS, arm, measured, tuned

SETTINGS = make_settings(experiment, recorded_settings("batch-norm"))
SMALL = replace(SETTINGS, clients=2, images=60, held=20, width=4, local_steps=2, batch=20, evaluate_every=2)


def as_floats(x):
    return x.float().movedim(-1, 1) / 255


@pytest.fixture
def numbered(monkeypatch):
    """A data set like CIFAR-10 whose first pixel is the number of the image. Test images count from 20,000."""

    def images(count, first):
        x = torch.randint(256, (count, 32, 32, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
        numbers = torch.arange(first, first + count)
        x[:, 0, 0] = torch.stack([numbers // 65536, numbers // 256 % 256, numbers % 256], 1).to(torch.uint8)
        return x, torch.arange(count) % 10

    (x, y), (x_test, y_test) = images(2_000, 0), images(400, 20_000)
    data = DataSet(
        name="cifar10", x_train=x, y_train=y, x_test=x_test, y_test=y_test, outputs=10, shape=(3, 32, 32), prepare=as_floats
    )
    monkeypatch.setattr(task, "_cifar10", lambda: data)


def numbers(images):
    """Which images these are."""
    pixels = (images[:, :, 0, 0] * 255).round().long()
    return (pixels * torch.tensor([65536, 256, 1])).sum(1).tolist()


def made(skew, part="test", seed=3):
    return task.clients_of(skew, clients=4, images=200, held=50, concentration=0.5, seed=seed, part=part)


@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize("skew", task.SKEWS)
def test_nobody_trains_on_what_is_held_out_or_on_images_of_others(numbered, monkeypatch, skew, part):
    monkeypatch.setattr(task, "_look", lambda draw: (1.0, 0.0))
    clients = made(skew, part)
    trained = [number for client in clients for number in numbers(client.x)]
    held = [number for client in clients for number in numbers(client.x_held)]
    assert len(trained) == 4 * 200
    assert len(set(trained)) == len(trained)
    assert not set(trained) & set(held)
    assert all((number >= 20_000) == (part == "test") for number in held)


def test_with_labels_classes_differ_and_a_clients_held_out_images_are_of_its_own_classes(numbered):
    for client in made("labels"):
        shares, held = (
            client.y.bincount(minlength=10) / len(client.y),
            client.y_held.bincount(minlength=10) / len(client.y_held),
        )
        assert float((shares - held).abs().max()) < 1.5 / 50
        assert float(shares.max()) > 0.15


def test_with_features_looks_differ_and_classes_do_not(numbered):
    clients = made("features")
    assert all(client.y.bincount().tolist() == [20] * 10 for client in clients)
    means = torch.stack([client.x.mean((0, 2, 3)) for client in clients])
    held = torch.stack([client.x_held.mean((0, 2, 3)) for client in clients])
    assert torch.allclose(means, held, atol=0.02)
    assert float((means[0] - means[1]).abs().max()) > 0.05


def test_equal_seeds_give_equal_clients_and_others_do_not(numbered):
    one, same, other = (made("features", seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(one.x, same.x)
    assert not torch.equal(one.x, other.x)


def test_a_norm_of_groups_takes_the_place_of_every_batch_norm():
    batch, group = (task.resnet(8, norm, seed=1) for norm in ("batch", "group"))
    count = sum(isinstance(layer, nn.BatchNorm2d) for layer in batch.modules())
    assert count == 9
    assert sum(isinstance(layer, nn.GroupNorm) for layer in group.modules()) == count
    assert not list(group.buffers())
    assert [each.shape for each in batch.parameters()] == [each.shape for each in group.parameters()]


def test_arms_differ_in_the_norm_its_buffers_and_what_is_sent_only():
    places = [("features", name) for name in ARMS]
    tables = [arm(SETTINGS, place, 0.1, seed=3, rounds=2).tables for place in places]
    assert all(each["task"] == tables[0]["task"] for each in tables)
    runs = [{key: value for key, value in each["run"].items() if key not in ("model", "sketch")} for each in tables]
    work = [{**each, "algorithm": {**each["algorithm"], "name": ""}} for each in runs]
    assert all(each == work[0] for each in work)
    assert [each["net"]["norm"] for each in tables] == ["batch", "batch", "group", "batch"]


def test_averaged_statistics_cost_their_bytes_and_clients_have_the_servers_model(numbered):
    rows = {name: measured(arm(SMALL, ("features", name), 0.05, seed=1, rounds=4)) for name in ARMS}
    last = {name: row["curve"][-1] for name, row in rows.items()}
    statistics = sum(
        len(buffer) for name, buffer in task.resnet(4, "batch", seed=1).named_buffers() if "num_batches" not in name
    )
    # 8 replies, each with four bytes more for each statistic, and a few bytes that say so
    assert 0 <= last["averaged"][3] - last["local"][3] - 8 * 4 * statistics < 8 * 64
    assert last["averaged, sketch 1/10"][3] < 0.4 * last["averaged"][3]
    for name in ("averaged", "GroupNorm", "averaged, sketch 1/10"):
        assert last[name][2] == pytest.approx(last[name][5])


def test_tuning_is_by_the_loss_of_clients_on_other_images(monkeypatch, tmp_path):
    seen = []

    def fake(arms, path, **_):
        seen.extend(arms)
        scores = [abs(math.log2(each.key["local_rate"] / 0.1)) for each in arms]
        return [{"diverged": score > 1, "curve": [[15, score, 0.5, 1, 0.1, 0.5]]} for score in scores]

    monkeypatch.setattr(experiment, "run_arms", fake)
    places = [(skew, name) for skew in SETTINGS.skews for name in SETTINGS.arms]
    assert tuned(SETTINGS, places, tmp_path / "tuning.jsonl") == dict.fromkeys(places, (0.1,))
    assert {each.tables["task"]["part"] for each in seen} == {"validation"}
    assert {each.key["seed"] for each in seen}.isdisjoint(SETTINGS.seeds)


def row(name, seed, accuracy):
    key = {"skew": "labels", "arm": name, "local_rate": 0.1, "seed": seed}
    return {"key": key, "diverged": accuracy is None, "curve": [[5, 1.0, accuracy, 10_000, 0.25, 0.5]] if accuracy else []}


def test_the_table_compares_runs_of_the_same_seed(tmp_path):
    rows = [row("averaged", seed, 0.5 + 0.1 * seed) for seed in (1, 2, 3)]
    rows += [row("local", seed, 0.55 + 0.1 * seed) for seed in (1, 2, 3)]
    rows += [row("GroupNorm", seed, None) for seed in (1, 2, 3)]
    report.write(rows, tmp_path, clients=10)
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in (tmp_path / "table.md").read_text().splitlines()
    ]
    # Student's t with two degrees of freedom: 4.303 · 0.1 / √3
    assert lines[2][3:] == ["200 B", "0.700 ± 0.248", "", "0.250", "0.500"]
    assert lines[3][3:] == ["200 B", "0.750 ± 0.248", "+0.050 ± 0.000", "0.250", "0.500"]
    assert lines[4][3:] == ["diverged"] * 5
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
