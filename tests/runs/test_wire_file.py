"""The recorded wire as a file: what passed, to the byte, through crashes; and nothing else is taken for it."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from disk import Disk
from test_crashes import begin_or_resume, failing

import sketchfed
from sketchfed.errors import StorageError, WireError
from sketchfed.rounds import Exchange
from sketchfed.runs.wire_file import WIRE, WireFile, read_wire
from sketchfed.wire import Bits, Packet, pack, unpack

NOISE = {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 5}
KINDS = {kind: {} for kind in ("fedavg", "few bits, few participants, momentum", "blind clients")}
KINDS |= {"secure": {"algorithm": {"name": "fedavg"}, "privacy": NOISE, "secure": {}}}


def tables(kind: str, *, rounds: int = 3, **engine: object) -> dict:
    """A run that is recorded, of which every round is saved."""
    made = tiny.tables("fedavg" if kind == "secure" else kind, rounds=rounds, checkpoint_seconds=0, workers=1, **engine)
    made["engine"]["record"] = True
    own = KINDS[kind]
    return made | own | {"algorithm": made["algorithm"] | own.get("algorithm", {})}


def recorded(path: Path, kind: str, **changes: object) -> list[Exchange]:
    """What passed in a run that is kept in this folder."""
    passed: list[Exchange] = []
    sketchfed.run(tables(kind, **changes), folder=path, on_exchange=passed.extend)
    return passed


def exchange(client: int = 0, **changes: object) -> Exchange:
    return replace(Exchange(round=0, stage="train", client=client, request=b"task", reply=b"reply"), **changes)


def written(path: Path, *calls: list[Exchange]) -> Path:
    file = WireFile(path).open(0)
    for call in calls:
        file.append(call)
    file.close()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_leaves_behind_what_passed(tmp_path, kind):
    passed = recorded(tmp_path / "run", kind)
    assert passed
    assert read_wire(tmp_path / "run" / WIRE) == passed


def test_what_is_odd_comes_back_as_it_was(tmp_path):
    calls = [
        [exchange(5, reply=None), exchange(2, reply=b""), exchange(9, request=b"", reply=b"\0" * 7)],
        [],
        [exchange(1, round=3, stage="keys", identity=bytes(range(32))), exchange(0, round=3, stage="keys", identity=b"k" * 32)],
    ]
    assert read_wire(written(tmp_path / WIRE, *calls)) == [each for call in calls for each in call]


def test_clients_that_are_sent_the_same_share_it_whoever_comes_between(tmp_path):
    model, other = os.urandom(100_000), os.urandom(50_000)
    call = [exchange(client, request=other if client % 3 == 1 else bytes(bytearray(model))) for client in range(30)]
    path = written(tmp_path / WIRE, call)
    assert read_wire(path) == call
    assert path.stat().st_size < len(model) + len(other) + 2_000


def test_a_recorded_run_is_about_as_long_as_its_replies_and_a_model_a_round(tmp_path):
    run = sketchfed.run(tables("blind clients", rounds=8), folder=tmp_path / "run")
    last = run.metrics[-1]
    assert (tmp_path / "run" / WIRE).stat().st_size < last["uplink_bytes"] + last["broadcast_bytes"] + 8 * 500
    assert last["downlink_bytes"] > 1.9 * last["broadcast_bytes"]


def test_a_torn_tail_is_left_out(tmp_path):
    """Cut off anywhere: all whole calls are there, and the rest is as if it had not been."""
    calls = [[exchange(client, round=index, reply=os.urandom(40)) for client in range(3)] for index in range(3)]
    path = written(tmp_path / WIRE, *calls)
    data, ends = path.read_bytes(), []
    for index in range(4):
        ends.append(written(tmp_path / "some", *calls[:index]).stat().st_size)
    for length in range(0, len(data) + 1, 3):
        path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends) - 1
        assert read_wire(path) == [each for call in calls[:whole] for each in call], length


def test_damage_is_said_in_words(tmp_path):
    """A flipped bit anywhere is found by a checksum, unless it makes the rest look like a tail that was torn off."""
    calls = [[exchange(client, round=index) for client in range(3)] for index in range(2)]
    path = written(tmp_path / WIRE, *calls)
    data, said = path.read_bytes(), []
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert read_wire(path) in ([], calls[0])
        except WireError as error:
            said.append(str(error))
    assert len(said) > 0.9 * len(data)
    assert all(text.startswith(f"{path} is not recorded traffic, or it was damaged: ") for text in said)


OTHER = {
    "text": b"words",
    "zeros": b"\0" * 50,
    "another magic": b"SKFX" + b"\0" * 30,
    "chance": random.Random(1).randbytes(999),
}


@pytest.mark.parametrize("what", OTHER)
def test_files_of_another_kind_are_refused(tmp_path, what):
    (tmp_path / WIRE).write_bytes(OTHER[what])
    with pytest.raises(WireError, match="is not recorded traffic"):
        read_wire(tmp_path / WIRE)


def test_a_file_that_is_not_there_is_said_in_words(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read the recorded traffic .*: No such file"):
        read_wire(tmp_path / WIRE)


HOSTILE = {
    "another kind": lambda p: replace(p, kind="snapshot"),
    "no round": lambda p: replace(p, scalars={"stage": "train"}),
    "a negative round": lambda p: p.stamped(round=-1),
    "half a round": lambda p: p.stamped(round=0.5),
    "a stage that is a number": lambda p: p.stamped(stage=3),
    "no clients": lambda p: _with(p, clients=None),
    "clients that are no whole numbers": lambda p: _with(p, clients=torch.tensor([0.0, 1.0])),
    "clients in few bits": lambda p: _with(p, clients=Bits(torch.tensor([0, 1]), bits=1)),
    "clients in a square": lambda p: _with(p, clients=torch.zeros(2, 1, dtype=torch.int64)),
    "negative clients": lambda p: _with(p, clients=torch.tensor([-1, 0])),
    "more clients than replies": lambda p: _with(p, clients=torch.arange(3)),
    "a request that is not there": lambda p: _with(p, which=torch.tensor([0, 1])),
    "a request before the first": lambda p: _with(p, which=torch.tensor([0, -1])),
    "requests of another size": lambda p: _with(p, sizes=torch.tensor([3])),
    "requests of a negative size": lambda p: _with(p, sizes=torch.tensor([5, -1])),
    "absurd sizes": lambda p: _with(p, sizes=torch.tensor([2**62, 2**62])),
    "replies of another length": lambda p: _with(p, lengths=torch.tensor([5, 6])),
    "absurd lengths": lambda p: _with(p, lengths=torch.tensor([2**63 - 1, -(2**63)])),
    "replies that are no bytes": lambda p: _with(p, replies=torch.zeros(5, dtype=torch.bfloat16)),
    "half an identity": lambda p: _with(p, identities=torch.zeros(32, dtype=torch.uint8)),
}


def _with(packet: Packet, **arrays: torch.Tensor | Bits | None) -> Packet:
    kept = {name: array for name, array in {**packet.arrays, **arrays}.items() if array is not None}
    return Packet(kind=packet.kind, arrays=kept, scalars=packet.scalars)


@pytest.mark.parametrize("how", HOSTILE)
def test_packets_that_lie_are_refused(tmp_path, how):
    path = written(tmp_path / WIRE, [exchange(0), exchange(1)])
    path.write_bytes(pack(HOSTILE[how](unpack(path.read_bytes()))))
    with pytest.raises(WireError, match="is not recorded traffic"):
        read_wire(path)


def test_garbage_between_packets_never_raises_anything_else(tmp_path):
    draw, path = random.Random(0), tmp_path / WIRE
    data = written(path, [exchange(0), exchange(1)], [exchange(2)]).read_bytes()
    said = []
    for _ in range(300):
        pieces = [data[: draw.randrange(len(data))], draw.randbytes(draw.randrange(60)), data[draw.randrange(len(data)) :]]
        path.write_bytes(b"".join(draw.sample(pieces, draw.randrange(1, 4))))
        try:
            read_wire(path)
        except WireError as error:
            said.append(str(error))
    assert len(said) > 100
    assert all(text.endswith("Record the run again.") for text in said)


def masked(passed: list[Exchange]) -> list[tuple[int, int]]:
    """Who sent masked values in which round."""
    return [(each.round, each.client) for each in passed if each.stage == "masked" and each.reply]


@pytest.mark.parametrize(
    ("kind", "way"), [("fedavg", "killed"), ("secure", "power"), pytest.param("fedavg", "mixed", marks=pytest.mark.slow)]
)
def test_a_run_that_fails_at_any_write_records_the_same_in_the_end(tmp_path, monkeypatch, kind, way):
    """A secure sum has several exchanges a round. A resumed run begins it with fresh keys, which were carried along before."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    config = tables(kind, rounds=2)
    whole, disk = recorded(tmp_path / "whole", kind, rounds=2), failing(config, tmp_path / "run", way=way)
    for where, wreck in disk.failures():
        begin_or_resume(config, wreck)
        found = read_wire(wreck / WIRE)
        assert found == whole or (kind == "secure" and masked(found) == masked(whole)), where
    assert {f"write {WIRE}", f"fsync {WIRE}"} <= set(disk.writes)


@pytest.mark.parametrize("what", [f"open {WIRE}", f"write {WIRE}", f"fsync {WIRE}"])
def test_a_run_records_the_same_after_its_disk_was_full(tmp_path, what):
    config = tables("fedavg", rounds=2)
    whole, disk = recorded(tmp_path / "whole", "fedavg", rounds=2), failing(config, tmp_path / "run", way="killed")
    last = max(number for number, write in enumerate(disk.writes) if write == what)
    with pytest.raises(StorageError, match="No space left"), Disk(tmp_path / "full", full_at=last).watching():
        sketchfed.run(config, folder=tmp_path / "full")
    begin_or_resume(config, tmp_path / "full")
    assert read_wire(tmp_path / "full" / WIRE) == whole


def stopped(path: Path, *, after: int) -> Path:
    """The folder of a run that was interrupted after so many rounds, all of them saved."""

    def stop(line: dict) -> None:
        if line["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tables("fedavg", rounds=5), folder=path, on_round=stop)
    return path


def test_a_run_without_its_recorded_wire_is_not_resumed(tmp_path):
    folder = stopped(tmp_path / "run", after=2)
    (folder / WIRE).unlink()
    with pytest.raises(StorageError, match="should hold 2 rounds, like the checkpoint in the same folder, but does not"):
        sketchfed.resume(folder)


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-60], lambda data: data[: len(data) // 2], lambda data: b"x" + data[1:]],
    ids=["end", "half", "damaged"],
)
def test_a_run_whose_recorded_wire_tells_less_than_its_checkpoint_is_not_resumed(tmp_path, change):
    folder = stopped(tmp_path / "run", after=3)
    (folder / WIRE).write_bytes(change((folder / WIRE).read_bytes()))
    with pytest.raises(StorageError, match="should hold 3 rounds"):
        sketchfed.resume(folder)


def test_what_is_behind_the_last_checkpoint_does_not_matter(tmp_path):
    """Exchanges of a round that was not saved, a torn packet, or whatever a disk leaves that lost its power."""
    passed = recorded(tmp_path / "whole", "fedavg", rounds=5)
    for number, tail in enumerate((pack(Packet(kind="told", arrays={}, scalars={"rounds": 4})), b"SKFD torn", b"\0" * 99)):
        folder = stopped(tmp_path / str(number), after=3)
        with (folder / WIRE).open("ab") as file:
            file.write(tail)
        sketchfed.resume(folder)
        assert read_wire(folder / WIRE) == passed


def test_rounds_in_which_nobody_takes_part_are_resumed_too(tmp_path):
    """Where cohorts are hidden, a round may have none: it leaves no exchange, but is told."""
    noise = {"noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 3, "observer": "public", "hidden_cohorts": True}
    made = tables("fedavg", rounds=8)
    made |= {"privacy": noise, "algorithm": made["algorithm"] | {"participation": 0.2}}
    passed: list[Exchange] = []
    sketchfed.run(made, folder=tmp_path / "run", on_exchange=passed.extend)
    assert {each.round for each in passed} < set(range(7))
    assert passed
    sketchfed.resume(tmp_path / "run")
    assert read_wire(tmp_path / "run" / WIRE) == passed


def test_without_a_folder_nothing_is_recorded_and_nothing_changes():
    with_it, without = (sketchfed.run(tables("fedavg") | {"engine": {"record": record}}) for record in (True, False))
    assert with_it.folder is None
    assert torch.equal(with_it.weights, without.weights)


def test_a_run_that_is_not_recorded_leaves_no_wire(tmp_path):
    sketchfed.run(tables("fedavg") | {"engine": {"record": False}}, folder=tmp_path / "run")
    assert not (tmp_path / "run" / WIRE).exists()


def test_a_file_that_is_not_open_takes_nothing(tmp_path):
    with pytest.raises(StorageError, match=r"is not open for writing. Call `open` first"):
        WireFile(tmp_path / WIRE).sync(1)
