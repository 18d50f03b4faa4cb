"""How clients are shared out between ranks, and what a rank does with messages that make no sense."""

import pytest
import torch

from federation import data_of
from problems import dense_model
from sketchfed.algorithms import FedAvg
from sketchfed.config import EngineSettings, load_config
from sketchfed.errors import InputError, RankError, WireError
from sketchfed.protection import make_protection
from sketchfed.rounds import LocalEngine, Participant
from sketchfed.rounds.launch import Launch, Place
from sketchfed.rounds.rank_hub import Message
from sketchfed.rounds.ranks import Worker, _read_answer, shared_out
from sketchfed.runs.rank_greeting import Greeting, check_same
from sketchfed.seeds import PublicSeed
from sketchfed.training import make_trainer
from sketchfed.wire import Packet, pack

HERE = Place(rank=1, host="there", process=7)


def test_the_largest_clients_go_first_each_to_the_rank_with_the_least_work():
    sizes = [7, 7, 6, 6, 5, 5, 4, 4, 4]
    places = shared_out(range(9), sizes, 3, fixed={})
    loads = [sum(sizes[client] for client, rank in places.items() if rank == each) for each in range(3)]
    assert max(loads) <= 4 / 3 * sum(sizes) / 3  # Graham's bound
    assert places == shared_out(reversed(range(9)), sizes, 3, fixed={})


def test_clients_without_examples_are_shared_out_as_well_and_others_stay_where_they_were():
    assert sorted(shared_out(range(4), [0, 0, 0, 0], 4, fixed={}).values()) == [0, 1, 2, 3]
    assert shared_out([0, 1, 2], [9, 9, 1], 2, fixed={0: 1, 1: 1}) == {0: 1, 1: 1, 2: 0}


def worker():
    data, module = data_of(3), dense_model("linear")
    trainer, seed = make_trainer(module, "squares"), PublicSeed(1)
    algorithm = FedAvg().resolved(trainer.dim, 3, module)
    protection = make_protection(algorithm, privacy=None, secure=None, dim=trainer.dim, sizes=[5] * 3, seed=seed)
    participant = Participant(trainer=trainer, seed=seed, protection=protection)
    engine = LocalEngine(participant, data.__getitem__, clients=3, start=None, workers=1)
    return Worker(engine, participant, [5] * 3)


def asked(*, parts=(b"",), **changes):
    arrays = {name: torch.tensor([0]) for name in ("clients", "heads", "tasks")} | {"memories": torch.tensor([-1])}
    scalars = {"stage": "train", "call": 1, "whole": -1}
    arrays |= {name: value for name, value in changes.items() if name in arrays}
    scalars |= {name: value for name, value in changes.items() if name in scalars}
    return Message(Packet(kind="ask", arrays=arrays, scalars=scalars), parts)


def test_a_client_that_cannot_use_its_task_says_why_in_the_answer():
    begin = pack(Packet(kind="begin", arrays={}, scalars={"round": 0}))
    answer = _read_answer(worker().answer(asked(parts=(b"", begin), tasks=torch.tensor([1]))), [5] * 3)
    assert (answer.replies, answer.holds) == ({}, None)
    assert answer.complaints[0].startswith("this client holds no replica yet")


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": torch.tensor([3])},
        {"clients": torch.tensor([-1])},
        {"clients": torch.tensor([0.0])},
        {"tasks": torch.tensor([1])},
        {"tasks": torch.tensor([0, 0])},
        {"memories": torch.tensor([0])},
        {"whole": 1},
        {"whole": True},
        {"stage": 3},
    ],
)
def test_requests_that_make_no_sense_are_refused(changes):
    with pytest.raises(WireError):
        worker().answer(asked(**changes))


@pytest.mark.parametrize("spoiled", ["clients", "replies", "kept", "rounds", "memories", "holds", "complaints"])
def test_answers_that_make_no_sense_are_refused(spoiled):
    packet, parts = worker().answer(asked())
    arrays, scalars = dict(packet.arrays), dict(packet.scalars)
    if spoiled in arrays:
        arrays[spoiled] = torch.tensor([99])
    else:
        scalars[spoiled] = "much"
    with pytest.raises(WireError):
        _read_answer(Message(Packet(kind="answer", arrays=arrays, scalars=scalars), parts), [5] * 3)


def test_a_rank_that_says_nothing_of_itself_is_refused_by_name():
    for said in (b"", b"{}", b"[" * 10_000):
        with pytest.raises(RankError, match=r"rank 1 on there \(process 7\) does not say what it has"):
            Greeting.read(said, HERE)


def test_ranks_may_differ_in_how_they_compute_and_in_nothing_else():
    one = load_config({"name": "a", "engine": {"name": "ranks", "workers": 1}})
    check_same(one, load_config({"name": "b", "engine": {"name": "ranks", "workers": 2, "device": "auto"}}), HERE)
    with pytest.raises(RankError, match=r"algorithm\.rounds is 100, and 20 at rank 0\. In all, 2 keys differ"):
        check_same(one, load_config({"algorithm": {"rounds": 20}, "seed": 3}), HERE)


def test_an_environment_that_describes_no_launch_is_refused():
    whole = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert Launch.of({}) is None
    assert Launch.of(whole) == Launch(rank=1, size=2, address="10.0.0.1", port=29500)
    with pytest.raises(InputError, match=r"not MASTER_PORT\. Launch with: torchrun"):
        Launch.of({name: value for name, value in whole.items() if name != "MASTER_PORT"})
    for name, value in (("RANK", "2"), ("WORLD_SIZE", "two"), ("MASTER_PORT", "0")):
        with pytest.raises(InputError, match=f"describes no launch: .*{name}={value}"):
            Launch.of({**whole, name: value})


def test_ranks_of_a_machine_divide_its_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [EngineSettings(name=name).threads for name in ("ranks", "local")] == [2, 8]
    assert EngineSettings(name="ranks", workers=3).threads == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")
    assert EngineSettings(name="ranks").threads == 1
