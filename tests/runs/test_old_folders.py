"""Runs that an earlier version began are finished by this one, to what that version would have come to.

`tests/golden/make_runs.py` says which version that was and how the folders were made.
"""

import hashlib
import json
import math
import re
import shutil
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

import sketchfed
from golden.make_runs import DONE, EXPECTED, KINDS, RUNS, fingerprint, result
from sketchfed.errors import StorageError
from sketchfed.privacy.ledger_file import head_of
from sketchfed.rounds.recorder import Exchange
from sketchfed.runs.folder import is_finished
from sketchfed.runs.wire_file import read_wire

KEPT = sorted(path.parent.name for path in RUNS.glob(f"*/{EXPECTED}"))
RECORDED = [kind for kind in KEPT if (RUNS / kind / "wire.bin").exists()]
OTHER_BITS = [kind for kind in KEPT if kind.startswith("dome")]
"""Square roots of `dome` came from MKL in 0.1.0, and are correctly rounded since: the last bits differ on every processor."""
OTHER_BYTES = [kind for kind in KEPT if "secure" in kind]
"""0.1.0 spoke another protocol, with other bytes for the same sums."""


@pytest.fixture(scope="module")
def same_processor() -> bool:
    """Whether torch multiplies matrices here as it did where the folders were made."""
    return fingerprint() == json.loads((RUNS / "processor.json").read_text())["fingerprint"]


def copied(kind: str, folder: Path) -> Path:
    return Path(shutil.copytree(RUNS / kind, folder / kind, ignore=shutil.ignore_patterns(EXPECTED)))


def expected(kind: str) -> dict:
    return json.loads((RUNS / kind / EXPECTED).read_text())


def exchanges(folder: Path) -> list[Exchange]:
    return read_wire(folder / "wire.bin")


def test_every_kind_of_run_is_kept():
    assert sorted(KINDS) == KEPT


@pytest.mark.parametrize("kind", KEPT)
def test_a_run_of_an_earlier_version_is_finished_as_that_version_would_have(kind, tmp_path, same_processor):
    """To the last bit where the processor computes alike; elsewhere rounding differs by about 1e-7 in each step."""
    folder, wanted = copied(kind, tmp_path), expected(kind)
    found = result(sketchfed.resume(folder))
    assert is_finished(folder)
    if kind in OTHER_BYTES:
        for line in (*found["metrics"], *wanted["metrics"]):
            line.update(dict.fromkeys((name for name in line if name.endswith("_bytes")), 0))
    assert_alike(found, wanted)
    if same_processor and kind not in OTHER_BITS:
        assert (found["digest"], found["metrics"]) == (wanted["digest"], wanted["metrics"])


def assert_alike(found: dict, wanted: dict) -> None:
    """Equal counts and bytes, and numbers that differ by no more than rounding on another processor makes them."""
    weights, others = (np.frombuffer(b64decode(each["weights"]), "<f4") for each in (found, wanted))
    np.testing.assert_allclose(weights, others, rtol=0, atol=1e-5 * np.abs(others).max())
    assert len(found["metrics"]) == len(wanted["metrics"])
    for line, other in zip(found["metrics"], wanted["metrics"], strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            tolerance = 0.01 if name == "accuracy" else 0.0  # an example or two may change sides
            if isinstance(value, float) and isinstance(other[name], float):
                assert math.isclose(value, other[name], rel_tol=1e-4, abs_tol=tolerance), (name, line, other)
            else:
                assert value == other[name], (name, line, other)


def stripped(folder: Path) -> None:
    """Make the ledger of a run look as 0.1.0 wrote ledgers, with fewer lines."""
    path = folder / "privacy.jsonl"
    plain = re.sub(rb',"chain":"\w+"', b"", path.read_bytes()).replace(b'"version":2', b'"version":1')
    path.write_bytes(b"".join(plain.replace(b',"deviation":null,"size":null', b"").splitlines(keepends=True)[:-2]))
    head_of(path).unlink()


PRIVATE = {
    "data": {"clients": 3},
    "model": {"hidden": [4]},
    "algorithm": {"name": "fedavg", "rounds": 2},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-4, "clip": 1.0},
    "engine": {"checkpoint_seconds": 0.0},
}


@pytest.mark.parametrize("also", [(), ("identity.json",), ("identity.json", "public_start")], ids=str)
def test_the_ledger_of_a_new_run_cannot_be_made_to_look_old(also, tmp_path):
    """Neither where the run's identity is deleted, nor where the settings look old: the checkpoint says it as well."""
    sketchfed.run(PRIVATE, folder=tmp_path / "run")
    stripped(tmp_path / "run")
    if "identity.json" in also:
        (tmp_path / "run" / "identity.json").unlink()
    if "public_start" in also:
        config = tmp_path / "run" / "config.toml"
        config.write_text(re.sub("public_start = .*\n", "", config.read_text()))
    with pytest.raises(StorageError, match=r"looks like a ledger of sketchfed 0\.1\.0, and a later version wrote this run"):
        sketchfed.resume(tmp_path / "run")


def test_the_ledger_of_a_new_run_cannot_be_made_to_look_old_before_its_first_checkpoint(tmp_path):
    sketchfed.run(PRIVATE, folder=tmp_path / "run")
    stripped(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(StorageError, match=r"looks like a ledger of sketchfed 0\.1\.0"):
        sketchfed.resume(tmp_path / "run")


def test_the_ledger_of_an_old_run_that_was_gone_on_with_cannot_be_made_to_look_old_again(tmp_path):
    folder = copied("private_iterative", tmp_path)
    sketchfed.resume(folder)
    stripped(folder)
    with pytest.raises(StorageError, match=r"looks like a ledger of sketchfed 0\.1\.0"):
        sketchfed.resume(folder)


@pytest.mark.parametrize("kind", RECORDED)
def test_the_recorded_wire_of_an_earlier_version_is_gone_on_with(kind, tmp_path, same_processor):
    """What was recorded of saved rounds stays as it is; what belongs to the interrupted round is replaced."""
    folder = copied(kind, tmp_path)
    before = [each for each in exchanges(folder) if each.round < DONE]
    sketchfed.resume(folder)
    after = exchanges(folder)
    assert before == after[: len(before)]
    assert [each.round for each in after] == sorted(each.round for each in after)
    assert {each.round for each in after} == set(range(len(expected(kind)["metrics"])))
    if same_processor and kind not in OTHER_BITS + OTHER_BYTES:
        assert hashlib.sha256((folder / "wire.bin").read_bytes()).hexdigest() == expected(kind)["wire"]
