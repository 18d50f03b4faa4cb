"""Audits of what a run with objects of the user's own really sent."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.audits import Effort, record, recorded_run
from sketchfed.errors import InputError
from sketchfed.runs.workload import from_objects

EFFORT = Effort(victims=1, iterations=1, judged=2, member_rounds=2, canaries=0, shadows=10)
WORK = {"name": "iterative", "rounds": 3, "local_steps": 1, "batch": 1}
CONFIG = {"algorithm": WORK, "sketch": {"ratio": 0.5}, "engine": {"record": True}}


def people(count, seed):
    x = torch.rand(count, 9, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > x[:, 1]).long()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 2))


MODEL, CLIENTS, TEST = network(), [people(20, seed) for seed in range(3)], people(60, 9)
OBJECTS = {"model": MODEL, "clients": CLIENTS, "test": TEST}


def audited(folder, **changes):
    given = {"model": MODEL, "loss": None, "data": CLIENTS, "test": TEST, "effort": EFFORT, "attacks": ["first layer"]}
    return sketchfed.audit(recorded=folder, **given | changes)


def test_the_recorded_messages_are_attacked_and_nothing_is_trained_again(tmp_path, monkeypatch):
    config = CONFIG | {"privacy": {"unit": "client", "noise_multiplier": 2.0, "delta": 1e-3}}
    run = sketchfed.run(config, folder=tmp_path / "mine", **OBJECTS)
    trained = []
    monkeypatch.setattr(
        "sketchfed.audits.running.record", lambda *given, **more: trained.append(given) or record(*given, **more)
    )
    found = audited(tmp_path / "mine")
    assert [defence.name for defence in found.defences] == ["undefended", "mine"]
    assert len(trained) == 1, "only the undefended run is made for the audit"
    assert found.defences[1].epsilon == pytest.approx(run.metrics[-1]["epsilon"])
    verdicts = [{(finding.role, finding.attack): finding.verdict for finding in defence.findings} for defence in found.defences]
    assert verdicts[0]["server", "first layer"] == "leaks"
    assert verdicts[1]["server", "first layer"] == "not applicable"


def test_the_evidence_is_what_passed_in_the_run(tmp_path):
    passed = []
    sketchfed.run(CONFIG, folder=tmp_path / "mine", on_exchange=passed.extend, **OBJECTS)
    evidence = recorded_run(tmp_path / "mine", from_objects(MODEL, CLIENTS, TEST, None, "classification"))
    assert [each.reply for each in evidence.exchanges] == [each.reply for each in passed]


def test_a_run_by_batch_loss_is_audited_with_it(tmp_path):
    def batch_loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    sketchfed.run(CONFIG, folder=tmp_path / "mine", batch_loss=batch_loss, **OBJECTS)
    found = audited(tmp_path / "mine", batch_loss=batch_loss)
    assert {finding.attack for finding in found.defences[1].findings} == {"first layer"}
    with pytest.raises(InputError, match="batch_loss"):
        audited(tmp_path / "mine")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": [people(20, seed) for seed in (0, 1, 5)]}, "was started with other data"),
        ({"test": people(60, 8)}, "the test data differs"),
        ({"model": nn.Linear(9, 2)}, "was started with another model"),
        ({"loss": lambda outputs, targets: functional.cross_entropy(2 * outputs, targets)}, "loss of your own|another loss"),
        ({"algorithm": {"algorithm": WORK}}, "Remove algorithm and defences"),
        ({"model": None, "data": None, "test": None}, "recorded and batch_loss are for a model and data of your own"),
    ],
)
def test_other_objects_than_those_of_the_run_are_refused(changes, said, tmp_path):
    sketchfed.run(CONFIG, folder=tmp_path / "mine", **OBJECTS)
    with pytest.raises(InputError, match=said):
        audited(tmp_path / "mine", **changes)


def test_runs_that_cannot_be_followed_are_refused_with_what_to_do(tmp_path):
    def train(model, data, context):
        functional.cross_entropy(model(data[0]), data[1]).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    own = {"algorithm": {"rounds": 1}, "engine": {"record": True}}
    sketchfed.run(own, folder=tmp_path / "loop", model=MODEL, clients=CLIENTS, train=train)
    with pytest.raises(InputError, match="a loop of your own, which shows only whole updates"):
        audited(tmp_path / "loop")
    sketchfed.run(CONFIG | {"training": {"optimiser": "adam"}}, folder=tmp_path / "adam", **OBJECTS)
    with pytest.raises(InputError, match="the steps of plain SGD are followed"):
        audited(tmp_path / "adam")
    sketchfed.run({"algorithm": WORK}, folder=tmp_path / "silent", **OBJECTS)
    with pytest.raises(InputError, match=r"was not recorded. Run it with record = true"):
        audited(tmp_path / "silent")
    sketchfed.run(CONFIG, folder=tmp_path / "mine", **OBJECTS)
    with pytest.raises(InputError, match=r"Audit it from Python with the same objects: sketchfed.audit\(.*recorded="):
        recorded_run(tmp_path / "mine")


@pytest.mark.parametrize("training", [{"optimiser": "adam"}, {"proximal": 0.1}, {"clip_norm": 1.0}])
def test_objects_are_not_audited_with_other_steps_than_those_that_are_set(training):
    """They were ignored, and plain SGD was audited instead."""
    config = {"algorithm": WORK, "training": training}
    with pytest.raises(InputError, match="steps of plain SGD are followed"):
        sketchfed.audit(deepcopy(MODEL), None, CLIENTS, test=TEST, algorithm=config, effort=EFFORT)
