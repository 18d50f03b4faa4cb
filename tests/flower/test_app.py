"""An app that exists already, with five lines changed, on a real federation."""

import re
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from own_data import CLIENTS

from sketchfed.errors import InputError
from sketchfed.flower import Sketched
from sketchfed.flower.connection import joined
from sketchfed.flower.layout import ArrayLayout
from sketchfed.flower.link import SuperLink
from sketchfed.flower.strategy import opened
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.ledger import PrivacyLedger

APP = Path(__file__).parents[2] / "examples" / "flower-quickstart"
SKETCH = {"algorithm": {"name": "iterative"}, "sketch": {"ratio": 0.1}}


@pytest.fixture
def arrays(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from quickstart.task import Net

    torch.manual_seed(0)
    yield ArrayRecord(Net().state_dict())
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


def started(federation, strategy, arrays, *, rounds=2):
    link = SuperLink(address=federation.address, root_certificates=federation.root_certificates)
    with joined(link, app=APP) as connection:
        config = ConfigRecord({"lr": 0.1})
        return strategy.start(connection.grid, arrays, num_rounds=rounds, train_config=config, timeout=90)


def flat(record: ArrayRecord) -> torch.Tensor:
    return ArrayLayout.of(record, train_config={}, evaluate_config={}).flat(record)


def test_five_lines_of_the_quick_start_are_changed():
    source = "".join((APP / "quickstart" / f"{name}_app.py").read_text() for name in ("client", "server"))
    assert re.findall(r"# (\d)", source) == ["1", "2", "3", "4", "5"]
    assert len([line for line in source.splitlines() if "sketch" in line.lower()]) == 5


@pytest.mark.timeout(280)
def test_whole_updates_through_the_mod_are_what_flowers_own_strategy_gives_and_messages_of_others_pass(federation, arrays):
    """Clients have equally many examples, so a mean is a weighted mean. Flower adds in float64 and another order."""
    ours = Sketched(FedAvg(fraction_evaluate=0.0), {"algorithm": {"name": "fedavg"}})
    result = started(federation, ours, arrays, rounds=1)
    theirs = started(federation, FedAvg(fraction_evaluate=0.0), arrays, rounds=1)
    torch.testing.assert_close(flat(result.arrays), flat(theirs.arrays), rtol=1e-4, atol=1e-5)
    losses = [made.train_metrics_clientapp[1]["train_loss"] for made in (result, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.timeout(280)
def test_sketches_travel_both_ways_and_evaluation_needs_no_whole_models(federation, arrays):
    ours = Sketched(FedAvg(), SKETCH | {"algorithm": {"name": "iterative", "global_rate": 0.5}})
    result = started(federation, ours, arrays)
    whole = 4 * len(flat(arrays))
    assert ours.server.tally.uplink_bytes < 0.12 * 2 * CLIENTS * whole
    assert ours.server.tally.downlink_bytes < 1.5 * CLIENTS * whole  # the first model, and then sketches
    assert set(result.evaluate_metrics_clientapp) == {1, 2}
    assert result.evaluate_metrics_clientapp[2]["eval_acc"] > 0.6, "0.81 when this was written, a tenth by chance"
    assert ours.server.epsilon is None


@pytest.mark.timeout(290)
def test_noise_and_secure_sums_keep_a_ledger_and_tell_nothing_of_single_clients(federation, arrays, tmp_path):
    private = SKETCH | {
        "privacy": {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 0.5},
        "secure": {"survivors": 0.6},
    }
    ours = Sketched(FedAvg(), private, ledger=tmp_path / "privacy.jsonl")
    result = started(federation, ours, arrays, rounds=1)
    kept = PrivacyLedger.load(tmp_path / "privacy.jsonl")
    assert [entry.clients for entry in kept.entries] == [tuple(range(CLIENTS))]
    assert ours.server.epsilon == kept.epsilon() > 0
    assert not result.train_metrics_clientapp
    assert not result.evaluate_metrics_clientapp
    assert not torch.equal(flat(result.arrays), flat(arrays))


def test_what_cannot_work_is_refused_before_anybody_is_asked():
    with pytest.raises(InputError, match=r"FedAdam aggregates in a way of its own.*algorithm.server"):
        Sketched(FedAdam(), SKETCH)
    with pytest.raises(InputError, match="only arrays are known"):
        Sketched(FedAvg(), {"algorithm": {"name": "dbcl"}})
    with pytest.raises(InputError, match=r"Remove \[data\]"):
        Sketched(FedAvg(), SKETCH | {"data": {"name": "mnist"}})
    with pytest.raises(InputError, match=r"privacy\.unit = 'client'"):
        Sketched(
            FedAvg(),
            {"algorithm": {"name": "iterative", "batch": 5}, "privacy": {"unit": "example", "noise_multiplier": 1.0}},
        )


def test_training_that_is_begun_again_spends_what_was_left(tmp_path):
    claim = Claim(unit="client", adjacency="zero-out", observer="server", delta=1e-5, accountant="rdp", insecure=False)
    first = opened(tmp_path / "privacy.jsonl", claim)
    first.intend(round=0, draw="a", clients=[0, 1], charge=Charge(multiplier=2.0))
    again = opened(tmp_path / "privacy.jsonl", claim)
    assert again.epsilon() == first.epsilon() > 0
    again.intend(round=0, draw="b", clients=[0, 1], charge=Charge(multiplier=2.0))
    assert again.epsilon() > first.epsilon()


def test_a_running_variance_is_not_sketched():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    record = ArrayRecord(module.state_dict())
    layout = ArrayLayout.of(record, train_config={}, evaluate_config={})
    assert layout.fixed == {"1.num_batches_tracked": [0]}
    with pytest.raises(InputError, match=r"negative variance.*layer normalisation"):
        layout.check_sketchable()


def test_arrays_come_back_as_they_were():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).double()
    record = ArrayRecord(module.state_dict())
    layout = ArrayLayout.from_text(ArrayLayout.of(record, train_config={"lr": 0.1}, evaluate_config={}).text)
    again = layout.record(layout.flat(record)).to_torch_state_dict()
    for name, tensor in module.state_dict().items():
        assert again[name].dtype == tensor.dtype
        torch.testing.assert_close(again[name], tensor, rtol=1e-6, atol=1e-7)
    assert layout.train_config == {"lr": 0.1}
