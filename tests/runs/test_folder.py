"""What is found in a run's folder is not taken on trust, and what cannot be stored is said so."""

import errno
import fcntl
import json
import os
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

import sketchfed
from command_line import refused
from sketchfed.config import load_config
from sketchfed.errors import InputError, SketchfedError, StorageError
from sketchfed.runs.folder import RunFolder, free_path, is_finished, latest_path

MEMORY = "projection"
DIM = 4 * 5 + 5 + 5 * 3 + 3
MOMENTUM = "few bits, few participants, momentum"


def begun(folder: Path, kind: str = MEMORY) -> Path:
    """The folder of a run that was stopped after four of six rounds."""

    def stop(line: dict) -> None:
        if line["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(tiny.tables(kind, rounds=6, checkpoint_seconds=0), folder=folder, on_round=stop)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(StorageError) as refused:
        sketchfed.resume(folder)
    return str(refused.value)


# --- damaged files


@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_checkpoint_is_refused(tmp_path, share):
    file = begun(tmp_path) / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    said = refusal(tmp_path)
    assert said.startswith(f"{file} is not a checkpoint of this run: ")
    assert said.endswith("start the run anew in another folder.")


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "memory"])
def test_no_bit_of_a_checkpoint_can_change_unnoticed(tmp_path, name):
    folder = begun(tmp_path)
    file = folder / name if name != "memory" else next((folder / "memories").iterdir())
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        for bit in (0, 5):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            with pytest.raises(StorageError, match="is not a checkpoint of this run"):
                load(folder)
    file.write_bytes(content)
    assert load(folder) is not None


def load(folder: Path):
    """The checkpoint of a run of `begun`, without all that is around it."""
    return RunFolder(folder).checkpoints.load(RunFolder.config(folder).algorithm.begin(torch.zeros(DIM)))


def test_a_checkpoint_of_another_model_or_algorithm_is_refused(tmp_path):
    begun(tmp_path / "run", MOMENTUM)
    others = {
        "wider": tiny.tables(MOMENTUM, rounds=4) | {"model": {"name": "mlp", "hidden": [6]}},
        "fetchsgd": tiny.tables("fetchsgd", rounds=4),
        "no momentum": tiny.tables(MEMORY, rounds=4),
    }
    for name, tables in others.items():
        sketchfed.run(tables, folder=tmp_path / name)
        shutil.copy(tmp_path / name / "checkpoint.safetensors", tmp_path / "run")
        said = refusal(tmp_path / "run")
        assert "is not a checkpoint of this run: it holds " in said
        assert f"a run of this model and algorithm holds velocity float32[{DIM}], weights float32[{DIM}]." in said


def test_tensors_that_somebody_else_wrote_are_refused(tmp_path):
    file = begun(tmp_path) / "checkpoint.safetensors"
    save_file(load_file(file), file)
    assert "is not a checkpoint of this run: 'sketchfed'" in refusal(tmp_path)
    save_file(load_file(file), file, metadata={"sketchfed": "[]", "digest": "0"})
    assert "the content of checkpoint.safetensors is not what was written to it" in refusal(tmp_path)


def test_a_missing_memory_is_refused(tmp_path):
    memory = next((begun(tmp_path) / "memories").iterdir())
    memory.unlink()
    assert memory.name in refusal(tmp_path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[:2],
        lambda lines: [],
        lambda lines: lines[1:],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0], "", *lines[1:]],
        lambda lines: [lines[0], "words", *lines[2:]],
        lambda lines: [lines[0], "5", *lines[2:]],
        lambda lines: [lines[0], '{"round": 2}', *lines[2:]],
        lambda lines: [lines[0], lines[1].replace("null", "NaN"), *lines[2:]],
        lambda lines: [lines[0], "\udcff", *lines[2:]],
    ],
)
def test_edited_metrics_are_refused(tmp_path, edit):
    file = begun(tmp_path) / "metrics.jsonl"
    text = "\n".join(edit(file.read_text().splitlines())) + "\n"
    file.write_bytes(text.encode(errors="surrogateescape"))
    said = refusal(tmp_path)
    assert said.startswith(f"{file} should hold rounds 1 to 4, like the checkpoint in the same folder")
    assert said.endswith("start the run anew in another folder.")


def test_missing_metrics_are_refused_and_a_broken_configuration_is_named(tmp_path):
    (begun(tmp_path) / "metrics.jsonl").unlink()
    assert "should hold rounds 1 to 4" in refusal(tmp_path)
    (tmp_path / "config.toml").write_text("[")
    with pytest.raises(InputError, match="is not valid TOML"):
        sketchfed.resume(tmp_path)


def test_what_was_refused_was_not_changed_and_is_free_again(tmp_path):
    """Someone who puts the file back can go on, in the same process."""
    whole = sketchfed.run(tiny.tables(MEMORY, rounds=6))
    file = begun(tmp_path) / "checkpoint.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:100])
    refusal(tmp_path)
    file.write_bytes(content)
    assert torch.equal(sketchfed.resume(tmp_path).weights, whole.weights)


def test_what_is_not_ours_in_the_folder_is_left_alone(tmp_path):
    (begun(tmp_path) / "notes.txt").write_text("tried on Monday")
    sketchfed.resume(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "tried on Monday"


# --- disks that are full, and folders that are in use


def test_too_little_room_is_refused_before_the_first_round(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5 * 10**5, 5 * 10**5))
    with pytest.raises(StorageError, match=r"has 0\.5 MB of free space; checkpoints of this model take 1\.\d MB.*--out"):
        sketchfed.run(tiny.tables("fedavg", rounds=2), folder=tmp_path)
    assert not (tmp_path / "config.toml").exists()
    monkeypatch.undo()
    assert sketchfed.run(tiny.tables("fedavg", rounds=2), folder=tmp_path).folder == tmp_path


def test_a_disk_that_takes_part_of_a_line_is_asked_again(tmp_path, monkeypatch):
    """The system may write less than it was asked to; the rest must follow, and no line may be cut."""

    class Reluctant:
        def __init__(self, file) -> None:
            self._file = file

        def write(self, data: bytes) -> int:
            return self._file.write(data[:10])

        def __getattr__(self, name: str):
            return getattr(self._file, name)

    real = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda path, *arguments, **options: (
            Reluctant(real(path, *arguments, **options))
            if path.name == "metrics.jsonl" and arguments == ("ab",)
            else real(path, *arguments, **options)
        ),
    )
    run = sketchfed.run(tiny.tables("fedavg", rounds=2), folder=tmp_path)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == run.metrics


@pytest.mark.parametrize(
    ("largest", "checkpoint_seconds", "file"), [(4_000, 0, "checkpoint.safetensors"), (2_000, 1e9, "metrics.jsonl")]
)
def test_a_full_disk_is_a_sentence_and_the_run_goes_on_after(monkeypatch, capsys, tmp_path, largest, checkpoint_seconds, file):
    """Files may not grow beyond a limit, as on a disk that is full."""
    tables = {"data": {"clients": 3}, "model": {"hidden": [16]}, "algorithm": {"rounds": 12, "local_steps": 1}}
    tables |= {"engine": {"checkpoint_seconds": checkpoint_seconds}}
    (tmp_path / "full.toml").write_text(load_config(tables).to_toml())
    folder, (before, most) = tmp_path / "runs" / "full", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, most))
    try:
        said = refused(monkeypatch, capsys, "run", str(tmp_path / "full.toml"), "--out", str(tmp_path / "runs"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    told = said.partition("sketchfed: ")[2]
    assert told.startswith(f"cannot write {folder / file}: {os.strerror(errno.EFBIG)}.")
    assert told.endswith("then go on with --resume.\n")
    assert "Traceback" not in said
    assert not is_finished(folder)
    assert torch.equal(sketchfed.resume(folder).weights, sketchfed.run(tables).weights)
    assert is_finished(folder)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match=f"cannot write {folder}"):
            sketchfed.run(tiny.tables("fedavg", rounds=1), folder=folder)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match=r"Permission denied.*change the folder's permissions"):
        sketchfed.run(tiny.tables("fedavg", rounds=1), folder=tmp_path / "run")
    tmp_path.chmod(0o700)


def test_a_folder_that_is_in_use_is_refused(tmp_path):
    folder = begun(tmp_path)
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=f"another process is working on {folder}. Wait for it"):
            sketchfed.resume(folder)
    assert len(sketchfed.resume(folder).metrics) == 6


@pytest.mark.parametrize("wrong", [{"algorithm": {"name": "fetchsgd", "rows": 5000}}, {"data": {"clients": 10**6}}])
def test_a_configuration_that_does_not_fit_the_data_leaves_no_folder(tmp_path, wrong):
    with pytest.raises(SketchfedError):
        sketchfed.run(wrong, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_resumed_to_the_same_end(tmp_path):
    run = sketchfed.run(tiny.tables(MEMORY, rounds=3), folder=tmp_path)
    assert is_finished(tmp_path)
    again = sketchfed.resume(tmp_path)
    assert torch.equal(again.weights, run.weights)
    assert again.metrics == run.metrics


# --- names of folders


def test_free_and_latest_paths_are_numbered(tmp_path):
    def holds_run(name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()

    assert free_path(tmp_path, "a") == latest_path(tmp_path, "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()  # begun, but killed before its configuration was there
    assert free_path(tmp_path, "a") == tmp_path / "a"
    assert free_path(tmp_path, "a", taken=[tmp_path / "a", tmp_path / "a-2"]) == tmp_path / "a-3"
    shutil.rmtree(tmp_path / "a")
    for name in ("a", "a-2"):
        holds_run(name)
        assert latest_path(tmp_path, "a") == tmp_path / name
    assert free_path(tmp_path, "a") == tmp_path / "a-3"
