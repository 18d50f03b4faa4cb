"""A client whose model, loss or data raises is left out of the round; the run goes on with the others."""

import logging

import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import sketchfed
from sketchfed.errors import InputError, NoReplyError, SecureSumError

BAD = 1e6
ALGORITHMS = {
    "plain": {"algorithm": {"rounds": 3, "local_steps": 2}},
    "adaptive": {"algorithm": {"name": "dome", "rounds": 3, "local_steps": 2}, "subspace": {"size": 5}},
    "secure": {"algorithm": {"rounds": 3, "local_steps": 2}, "secure": {"clip": 5.0, "survivors": 0.6}},
}


class Strict(nn.Module):
    """A model that raises where an input is beyond reason."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(4, 3), error

    def forward(self, x):
        if self.error is not None and bool((x.detach().abs() >= BAD).any()):
            raise self.error
        return torch.tanh(self.layer(x))


def strict(error: Exception | None = None) -> Strict:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Strict(error)


def given(*bad: int, **changes) -> dict:
    """Five clients. Some have an input that the model does not take."""
    data = [tiny.points(16, first=16 * number) for number in range(5)]
    for client in bad:
        data[client][0][[0, 3]] = BAD
    return {"model": strict(), "clients": data, "test": tiny.points(30, first=200)} | changes


def careful(outputs, targets):
    """A loss that raises where an output is beyond reason."""
    if bool((outputs.detach().abs() > 100).any()):
        raise ArithmeticError("the outputs are absurd")
    return functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("error", [ValueError("no"), KeyError("label"), RuntimeError("no"), AttributeError("no")], ids=repr)
def test_a_model_that_raises_for_one_client_drops_that_client(bad, error, caplog):
    run = sketchfed.run(ALGORITHMS["plain"], **given(bad, model=strict(error)))
    assert [line["participants"] for line in run.metrics] == [4, 4, 4]
    said = f"goes on without client {bad}: it raised {type(error).__name__}: {error}"
    assert [record.levelno for record in caplog.records if said in record.getMessage()] == [logging.WARNING] * 3


@pytest.mark.parametrize("bad", [0, 3])
def test_a_loss_that_raises_for_one_client_drops_that_client(bad, caplog):
    run = sketchfed.run(ALGORITHMS["plain"], **given(bad, model=nn.Linear(4, 3), loss=careful))
    assert [line["participants"] for line in run.metrics] == [4, 4, 4]
    assert f"goes on without client {bad}: it raised ArithmeticError: the outputs are absurd" in caplog.text


class Scans(Dataset):
    """Points of which one may be unreadable."""

    def __init__(self, first: int, *, bad: bool = False) -> None:
        self.x, self.y = tiny.points(16, first=first)
        self.bad = bad

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.bad and index == 5:
            raise KeyError("scan 5")
        return self.x[index], int(self.y[index])


@pytest.mark.parametrize("kind", ["plain", "adaptive", "secure"])
@pytest.mark.parametrize("redraw", [None, True])
@pytest.mark.parametrize("bad", [0, 3])
def test_a_dataset_that_raises_for_one_client_drops_that_client(bad, redraw, kind, caplog):
    scans = [Scans(16 * number, bad=number == bad) for number in range(5)]
    run = sketchfed.run(ALGORITHMS[kind], **given(clients=scans, redraw=redraw))
    assert [line["participants"] for line in run.metrics] == [4, 4, 4]
    assert "it raised KeyError: 'scan 5'" in caplog.text
    if kind == "plain":
        others = [Scans(16 * number) for number in range(5)]
        others[bad] = Scans(1000, bad=True)
        assert torch.equal(sketchfed.run(ALGORITHMS[kind], **given(clients=others)).weights, run.weights), (
            "it counts for nothing"
        )


def test_a_dataset_that_can_be_read_later_takes_part_later():
    scans = [Scans(16 * number, bad=number == 3) for number in range(5)]

    def mend(line):
        scans[3].bad = line["round"] < 2

    run = sketchfed.run(ALGORITHMS["plain"], **given(clients=scans), on_round=mend)
    assert [line["participants"] for line in run.metrics] == [4, 4, 5]


@pytest.mark.parametrize("kind", ["adaptive", "secure"])
@pytest.mark.parametrize("bad", [0, 3])
def test_what_else_looks_at_clients_data_goes_on_too(kind, bad, caplog):
    """Measuring captured energy, and looking at the clip norm."""
    run = sketchfed.run(ALGORITHMS[kind], **given(bad, model=strict(KeyError("label"))))
    assert [line["participants"] for line in run.metrics] == [4, 4, 4]
    assert f"without client {bad}" in caplog.text


def test_where_every_client_fails_the_run_ends_with_the_first_reason(tmp_path):
    """And it can be resumed when that is mended."""
    config = ALGORITHMS["plain"] | {"engine": {"checkpoint_seconds": 0}}
    broken, sound = given(model=strict(KeyError("label"))), given()
    for x, _ in broken["clients"]:
        x[3] = BAD  # not among the first two examples, which are tried before round 1
    with pytest.raises(NoReplyError, match=r"all 5 clients of round 1 failed, client 0 because it raised KeyError: 'label'"):
        sketchfed.run(config, **broken)
    with pytest.raises(SecureSumError, match=r"client 0.*it raised KeyError: 'label'"):
        sketchfed.run(ALGORITHMS["secure"], **broken)
    assert len(sketchfed.run(config, **sound).metrics) == 3


def test_what_every_client_shares_is_refused_before_round_1():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return {}["outputs"]

    with pytest.raises(InputError, match=r"cannot be trained on examples of shape \(4,\): KeyError: 'outputs'"):
        sketchfed.run(ALGORITHMS["plain"], **given(model=Broken()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_wants_the_run_to_end_is_heard(error):
    with pytest.raises(error):
        sketchfed.run(ALGORITHMS["plain"], **given(3, model=strict(error())))


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_client_whose_tensors_do_not_fit_is_dropped_under_every_protection_and_after_a_resumption(kind, tmp_path, caplog):
    """The rounds, and all that is sent in them, are those of a run in which that client does not answer."""
    wide, absent = given(), given()
    x, y = wide["clients"][3]
    wide["clients"][3] = (x[:, :3], y)
    absent["clients"][3] = Absent(len(x))

    def stop(line):
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(ALGORITHMS[kind] | {"engine": {"checkpoint_seconds": 0}}, **wide, folder=tmp_path, on_round=stop)
    run = sketchfed.resume(tmp_path, **wide)
    other = sketchfed.run(ALGORITHMS[kind], **absent)
    if kind == "secure":  # masks come from the operating system, and sums are rounded at random
        assert torch.allclose(run.weights, other.weights, atol=1e-3)
    else:
        assert torch.equal(run.weights, other.weights)
    assert [line["participants"] for line in run.metrics] == [line["participants"] for line in other.metrics] == [4, 4, 4]
    assert "without client 3" in caplog.text
    assert "Bring all clients to one type and shape" in caplog.text


class Absent(Dataset):
    """Data that cannot be read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise OSError("the disk is gone")
