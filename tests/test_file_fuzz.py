"""Files that were damaged, or written by somebody else, are read or refused: no other error, and no waiting.

For each kind of file there is a reader and two ways of damage: of its bytes, and of what it says under checksums that hold, so
that damage gets past them. A thousand of each in the quick suite, twenty thousand among the slow tests.
"""

import json
import logging
import os
import random
import re
import resource
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from damage import EDGES, changed, spoiled
from secure.cohorts import Cohort, small_terms
from sketchfed.config import load_config
from sketchfed.errors import SketchfedError
from sketchfed.nodes.policy import Policy
from sketchfed.nodes.rules import Offer, verdicts
from sketchfed.nodes.template import commented
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.privacy.ledger_file import HEAD_FORMAT, LedgerFile, _sealed, head_of
from sketchfed.report.loading import read as read_record
from sketchfed.runs import checkpoint
from sketchfed.runs import identity as identities
from sketchfed.runs.checkpoint import FILE, MEMORIES, Checkpoints
from sketchfed.runs.folder import RunFolder
from sketchfed.runs.identity import IDENTITY, check_identity
from sketchfed.runs.wire_file import WIRE, WireFile, read_wire
from sketchfed.runs.workload import Workload
from sketchfed.secure import SecureClient, run_stages
from sketchfed.secure.kept import sealed
from sketchfed.secure.transcript import HASH
from sketchfed.wire import Packet, pack, unpack

GOLDEN = Path(__file__).parent / "golden" / "runs"
EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK, FULL = 1_000, 20_000
SECONDS, BYTES = 10.0, 400 * 2**20  # for one file, and for all of them together

Written = dict[str, bytes]
Kind = tuple[Callable[[random.Random], Written], Callable[[Path], None]]
"""What damages a good file, as the names and bytes of a folder, and what reads it."""


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode()


# Each kind of file.


def checkpoints() -> Kind:
    folder = GOLDEN / "fedavg-error-feedback"
    config = load_config(folder / "config.toml")
    good = {FILE: (folder / FILE).read_bytes()}
    good |= {f"{MEMORIES}/{path.name}": path.read_bytes() for path in (folder / MEMORIES).iterdir()}
    tensors, about = checkpoint._unpacked(folder / FILE)
    dim = len(tensors["weights"])
    start = config.algorithm.resolved(dim, 4, torch.nn.Linear(1, 1)).begin(torch.zeros(dim))
    spare = [torch.empty(0), torch.zeros(3), torch.full((2, 2), 2**62), torch.tensor(-1), torch.zeros(dim, dtype=torch.float64)]

    def damage(chance: random.Random) -> Written:
        name = chance.choice(list(good))
        if chance.random() < 0.5:
            return good | {name: spoiled(chance, good[name])}
        if name != FILE:
            return good | {name: checkpoint._packed({"memory": chance.choice(spare)}, chance.choice([{}, {"a": 1}]))}
        told, kept = dict(tensors), about
        if chance.random() < 0.5:
            kept = changed(chance, about)
        else:
            one = chance.choice(list(told))
            match chance.randrange(5):
                case 0:
                    del told[one]
                case 1:
                    told[one + "x"] = told[one].clone()
                case 2:
                    told[one] = told[one].flatten()[: chance.randrange(told[one].numel() + 1)].clone()
                case 3:
                    wild = told[one].clone().flatten()
                    if wild.numel():
                        wild[chance.randrange(wild.numel())] = chance.choice([-1, 0, 3, 100])
                    told[one] = wild.reshape(told[one].shape)
                case _:
                    told[one] = chance.choice(spare).clone()
        return good | {FILE: checkpoint._packed(told, kept)}

    def read(folder: Path) -> None:
        Checkpoints(folder).load(start)

    return damage, read


def recorded_wires() -> Kind:
    good = (GOLDEN / "fedavg-recorded" / WIRE).read_bytes()
    packets = []
    while good[sum(map(len, packets)) :]:
        rest = good[sum(map(len, packets)) :]
        size = 20 + int.from_bytes(rest[6:8], "little") + int.from_bytes(rest[8:16], "little")
        packets.append(rest[:size])
    opened = [unpack(packet) for packet in packets[:3]]

    def damage(chance: random.Random) -> Written:
        if chance.random() < 0.5:
            return {WIRE: spoiled(chance, b"".join(packets[: chance.randint(1, 4)]))}
        out = list(packets[:3])
        at = chance.randrange(len(opened))
        packet = opened[at]
        arrays, scalars = dict(packet.arrays), dict(packet.scalars)
        match chance.randrange(4) if arrays else 0:
            case 0:
                scalars = changed(chance, scalars, [0, -1, 2**62, 2**63 - 1, -(2**63), 0.5, "", "train", True])
            case 1:
                del arrays[chance.choice(list(arrays))]
            case 2:
                name = chance.choice(list(arrays))
                arrays[name] = chance.choice([torch.zeros(3), torch.empty(0, dtype=torch.int64), torch.tensor([2**62, 2**62])])
            case 3:
                name = chance.choice([each for each in arrays if arrays[each].dtype == torch.int64])
                wild = arrays[name].clone()
                wild[chance.randrange(len(wild))] = chance.choice([-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1])
                arrays[name] = wild
        scalars = {key: value for key, value in scalars.items() if key} if isinstance(scalars, dict) else {}
        kind = packet.kind if chance.random() < 0.9 else "other"
        out[at] = pack(Packet(kind=kind, arrays=arrays, scalars=scalars))
        return {WIRE: b"".join(out)}

    def read(folder: Path) -> None:
        try:
            read_wire(folder / WIRE)
        finally:
            WireFile(folder / WIRE).open(1).close()

    return damage, read


LITERALS = [
    "true", "0", "-1", "1", "2", "1_000_000_000", "9223372036854775807", "9223372036854775808", "1e300", "-1e300", "1e-320",
    "nan", "inf", '""', '"x"', "'a:b'", "'json:loads'", "'os.path:join'", "[]", "[1]", "[[1]]", "{}", "{a = 1}", "1979-05-27",
    "07:32:00", "9" * 4_000, "9" * 5_000, "[" * 2_000, "{a=" * 900, '"' + "a" * 4_000 + '"', '"\\u0000"', "0.5", "[8, -8]",
    '["a"]',
]  # fmt: skip


def damaged_lines(chance: random.Random, texts: list[str]) -> bytes:
    """One of these TOML texts, damaged in its bytes, or in lines and values that are replaced by others."""
    lines = chance.choice(texts).splitlines()
    if chance.random() < 0.3:
        return spoiled(chance, "\n".join(lines).encode())
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(lines))
        match chance.randrange(5):
            case 0:
                lines.insert(at, chance.choice([line for line in chance.choice(texts).splitlines() if line.strip()]))
            case 1:
                del lines[at]
                lines = lines or ["[data]"]
            case _:
                valued = [place for place, line in enumerate(lines) if "=" in line]
                if valued:
                    place = chance.choice(valued)
                    lines[place] = lines[place].partition("=")[0] + "= " + chance.choice(LITERALS)
    return "\n".join(lines).encode()


def configurations() -> Kind:
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))]
    texts += [(GOLDEN / kind / "config.toml").read_text() for kind in ("iterative-secure", "dome-centre", "fetchsgd")]

    def read(folder: Path) -> None:
        config = load_config(folder / "config.toml")
        assert config.label
        assert load_config(folder / "config.toml", ["algorithm.rounds=7"]).algorithm.rounds == 7

    return lambda chance: {"config.toml": damaged_lines(chance, texts)}, read


def policies() -> Kind:
    """A node's policy with every rule in it, and one that its owner might write."""
    every = re.sub(r"(?m)^# (\w+ = |\[)", r"\1", commented()).replace("= null", "= 1.0")
    texts = [every, '[demand]\nsecure = true\nepsilon = 3\n[limits]\nrounds = 9\n[data."*"]\nlifetime_epsilon = 8.0\n']
    run = {"algorithm": {"name": "fedavg", "rounds": 5}, "model": {"name": "mlp"}, "privacy": {"epsilon": 2.0}, "secure": {}}

    def read(folder: Path) -> None:
        policy = Policy.load(folder / "policy.toml", {"epsilon": 3.0})
        assert all(verdict.text for verdict in verdicts(policy, Offer(tables=run, data="ward-7", clients=20, shape=(64,))))
        policy.lifetime("ward-7")

    assert tomllib.loads(every)["data"], "the rules are no comments any more"
    return lambda chance: {"policy.toml": damaged_lines(chance, texts)}, read


def ledgers() -> Kind:
    name = "ledger.jsonl"
    claim = Claim(unit="example", adjacency="add-remove", observer="server", delta=1e-5)
    noise = [
        Charge(multiplier=10.0),
        Charge(multiplier=8.0, sampling=0.1, steps=2),
        Charge(multiplier=9.0, discrete=True, slack=1e-9, deviation=80.0, size=40),
    ]
    lines = [text_of({"format": "sketchfed privacy ledger", "version": 2, "claim": msgspec.to_builtins(claim)})]
    for round_, charge in enumerate(noise):
        for settled in (False, True):
            entry = {"round": round_, "draw": "a", "clients": [1, 4], "charge": msgspec.to_builtins(charge)}
            lines.append(text_of(entry | {"settled": settled, "covered": []}))

    def written(contents: list[bytes], counted: int) -> Written:
        chain, data, links = "", b"", [""]
        for content in contents:
            line, chain = _sealed(chain, content)
            data += line
            links.append(chain)
        head = {"format": HEAD_FORMAT, "version": 1, "lines": counted, "chain": links[counted]}
        return {name: data, head_of(Path(name)).name: text_of(head)}

    good = written(lines, len(lines))

    def damage(chance: random.Random) -> Written:
        which = chance.random()
        if which < 0.25:
            some = chance.choice(list(good))
            return good | {some: spoiled(chance, good[some])}
        if which < 0.35:
            beside = head_of(Path(name)).name
            return good | {beside: text_of(changed(chance, json.loads(good[beside])))}
        out = list(lines)
        at = chance.randrange(len(out))
        out[at] = text_of(changed(chance, json.loads(out[at]))) if chance.random() < 0.8 else spoiled(chance, out[at])
        out[at] = out[at].replace(b"\n", b" ") or b"{}"
        return written(out, chance.randrange(len(out) + 1))

    def read(folder: Path) -> None:
        ledger = PrivacyLedger.load(folder / name)
        assert ledger.epsilon() >= 0
        assert ledger.text
        assert LedgerFile.open(folder / name).chained

    return damage, read


@cache
def identified() -> tuple[Workload, dict[str, Any]]:
    """A small run and its identity."""
    tables = {"data": {"name": "runs.tiny:data", "clients": 4}, "model": {"name": "runs.tiny:model"}}
    workload = Workload.from_config(load_config(tables))
    return workload, identities.identity(workload)


def identity_files() -> Kind:
    workload, now = identified()

    def damage(chance: random.Random) -> Written:
        if chance.random() < 0.4:
            return {IDENTITY: spoiled(chance, text_of(now))}
        value = changed(chance, json.loads(text_of(now)))
        for _ in range(chance.randrange(2)):
            value = changed(chance, value)
        return {IDENTITY: text_of(value)}

    def read(folder: Path) -> None:
        check_identity(folder, workload, data_name="tiny")

    return damage, read


def metrics_files() -> Kind:
    folder = GOLDEN / "iterative-secure"
    names = ("config.toml", "metrics.jsonl", "summary.json")
    good = {name: (folder / name).read_bytes() for name in names}
    lines = good["metrics.jsonl"].splitlines()
    keys = json.loads(lines[0]).keys() | {"captured"}

    def damage(chance: random.Random) -> Written:
        name = chance.choice(["metrics.jsonl", "metrics.jsonl", "summary.json"])
        if chance.random() < 0.4:
            return good | {name: spoiled(chance, good[name])}
        if name == "summary.json":
            return good | {name: text_of(changed(chance, json.loads(good[name])))}
        out = list(lines)
        at = chance.randrange(len(out))
        out[at] = text_of(changed(chance, json.loads(out[at])))
        return good | {name: b"\n".join(out) + b"\n"}

    def read(folder: Path) -> None:
        held = RunFolder(folder)
        try:
            read_record(folder)
        finally:
            try:
                held.metrics(2, keys)
            finally:
                held.close()

    return damage, read


def kept_sums() -> Kind:
    corpus: list[bytes] = []
    for neighbours in (None, 4):
        cohort = Cohort(small_terms(9, neighbours=neighbours, colluders=0.0, dropouts=0.0) if neighbours else small_terms(5))

        def ask(stage, requests, cohort=cohort):
            found = cohort.ask(stage, requests, gone=lambda stage, client: False)
            corpus.append(cohort.clients[1].to_bytes())
            return found

        run_stages(cohort.server(), ask)
    edges = [*(edge for edge in EDGES if edge not in (10**400, 2**64, "\ud800")), b"", b"a" * 32, bytes(33)]

    def damage(chance: random.Random) -> Written:
        data = chance.choice(corpus)
        if chance.random() < 0.4:
            return {"sum": spoiled(chance, data)}
        tree = msgspec.msgpack.decode(data[HASH:], strict=False)
        for _ in range(chance.randint(1, 2)):
            tree = changed(chance, tree, edges)
        return {"sum": sealed(msgspec.msgpack.encode(tree))}

    def read(folder: Path) -> None:
        client = SecureClient.from_bytes((folder / "sum").read_bytes())
        assert client.stage != ""
        assert SecureClient.from_bytes(client.to_bytes()).state == client.state

    return damage, read


KINDS = {
    "checkpoint": checkpoints,
    "wire.bin": recorded_wires,
    "configuration": configurations,
    "policy": policies,
    "ledger": ledgers,
    "identity.json": identity_files,
    "metrics.jsonl": metrics_files,
    "kept secure sum": kept_sums,
}
made = cache(lambda kind: KINDS[kind]())


def fuzz(kind: str, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many files were read, and how many refused by which error."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(logging.getLogger("sketchfed"), "disabled", True)  # warnings quote what no test report can hold
    damage, read = made(kind)
    if kind == "identity.json":  # worked out once, since it does not change
        monkeypatch.setattr(identities, "identity", lambda workload: identified()[1])
    outcomes: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chance = random.Random(f"{kind} {count}")
    for number in range(count):
        files = damage(chance)
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        start = time.process_time()
        try:
            read(folder)
            outcomes["read"] += 1
        except SketchfedError as error:
            outcomes[type(error).__name__] += 1
        except BaseException as error:
            error.add_note(f"{kind}, mutation {number} of {count}")
            raise
        assert time.process_time() - start < SECONDS, f"{kind}, mutation {number} of {count}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < BYTES, f"{grown / 2**20:.0f} MB for files of {sum(map(len, files.values()))} bytes"
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damaged_files_are_read_or_refused(kind, tmp_path, monkeypatch):
    outcomes = fuzz(kind, QUICK, tmp_path, monkeypatch)
    assert outcomes.total() == QUICK
    assert outcomes["read"] < QUICK / 2, "damage that nobody notices is none"
    assert outcomes["read"] > 0, "all damage stops at the first check"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_damaged_files_are_read_or_refused(kind, tmp_path, monkeypatch):
    assert fuzz(kind, FULL, tmp_path, monkeypatch).total() == FULL
