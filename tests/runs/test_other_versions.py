"""A folder that this version cannot go on with says which version wrote it, and what to do."""

import json
import shutil
from pathlib import Path

import pytest
import tiny

import sketchfed
from sketchfed import __version__
from sketchfed.errors import SketchfedError
from sketchfed.runs import checkpoint

LATER = "9.1.0"
GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
KEPT_BY = {"privacy.jsonl": "iterative-private-sent", "wire.bin": "fedavg-recorded"}
"""Interrupted runs of version 0.1.0 that have these files."""
REMEDY = (
    f"The run was written by sketchfed {LATER}, but this is sketchfed {__version__}. Resume it with sketchfed {LATER}, or "
    "start it anew in another folder."
)


class UnpluggedError(Exception):
    """What ends a run in a test."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of a run that was stopped after two of three rounds."""

    def stop(line: dict) -> None:
        if line["round"] == 2:
            raise UnpluggedError

    with pytest.raises(UnpluggedError):
        sketchfed.run(tiny.tables("fedavg", rounds=3, checkpoint_seconds=0), folder=tmp_path, on_round=stop)
    return tmp_path


def written_by(folder: Path, version: str) -> None:
    """Change the version in a run's summary."""
    summary = json.loads((folder / "summary.json").read_text())
    summary["versions"]["sketchfed"] = version
    (folder / "summary.json").write_text(json.dumps(summary))


def rewritten_in_format(folder: Path, version: object) -> None:
    """Write the checkpoint as a version with another format would, with a digest that is right."""
    tensors, about = checkpoint._unpacked(folder / checkpoint.FILE)
    (folder / checkpoint.FILE).write_bytes(checkpoint._packed(tensors, about | {"version": version}))


def refusal(folder: Path) -> str:
    with pytest.raises(SketchfedError) as refused:
        sketchfed.resume(folder)
    return str(refused.value)


def test_a_checkpoint_of_a_later_format_names_the_version_that_wrote_it(folder):
    rewritten_in_format(folder, 2)
    written_by(folder, LATER)
    said = refusal(folder)
    assert said.startswith(f"{folder / checkpoint.FILE} is not a checkpoint of this run: ")
    assert f"it has format 2, but sketchfed {__version__} reads format 1. {REMEDY}" in said


@pytest.mark.parametrize("version", [2, 0, "1", None, 1.5])
def test_a_format_of_nobody_knows_whom_is_another_version_s(folder, version):
    rewritten_in_format(folder, version)
    for lost in ("{", "[]", '{"versions": {}}', '{"versions": {"sketchfed": 7}}', '{"versions": {"sketchfed": ""}}', None):
        (folder / "summary.json").unlink(missing_ok=True)
        if lost is not None:
            (folder / "summary.json").write_text(lost)
        said = refusal(folder)
        assert f"it has format {version!r}, but sketchfed {__version__} reads format 1. " in said
        assert said.endswith(
            "Another version of sketchfed wrote it. Resume the run with that version, or start it anew in another folder."
        )


def test_a_checkpoint_that_a_later_version_packed_in_another_way_names_that_version(folder):
    (folder / checkpoint.FILE).write_bytes(b"PK\x03\x04 some archive")
    written_by(folder, LATER)
    assert refusal(folder).endswith(REMEDY)


def test_metrics_and_settings_that_this_version_does_not_know_name_the_version_that_wrote_them(folder):
    written_by(folder, LATER)
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.replace('"round"', '"fairness": 0.5, "round"'))
    said = refusal(folder)
    assert "should hold rounds 1 to 2" in said
    assert said.endswith(REMEDY)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("[engine]", "[engine]\nmoon_phase = 3"))
    said = refusal(folder)
    assert "moon_phase" in said
    assert said.endswith(REMEDY)


def test_an_identity_that_this_version_cannot_read_names_the_version_that_wrote_it(folder):
    written_by(folder, LATER)
    (folder / "identity.json").write_text('{"version": 2}')
    said = refusal(folder)
    assert "identity.json is damaged" in said
    assert said.endswith(REMEDY)


@pytest.mark.parametrize(("file", "complaint"), [("privacy.jsonl", "privacy.jsonl"), ("wire.bin", "wire.bin should hold")])
def test_books_and_traffic_that_this_version_cannot_read_name_the_version_that_wrote_them(tmp_path, file, complaint):
    begun = shutil.copytree(GOLDEN / KEPT_BY[file], tmp_path / "run")
    (begun / file).write_bytes(b"something else\n")
    said = refusal(begun)
    assert complaint in said
    assert (
        f"The run was written by sketchfed 0.1.0, but this is sketchfed {__version__}. Resume it with sketchfed 0.1.0" in said
    )


def test_a_damaged_folder_of_this_version_is_said_to_be_damaged(folder):
    (folder / checkpoint.FILE).write_bytes(b"")
    assert refusal(folder).endswith("It was damaged or replaced; start the run anew in another folder.")


def test_a_folder_of_another_version_that_can_be_read_is_gone_on_with(folder):
    for version in (LATER, "0.0.1"):
        written_by(folder, version)
        assert sketchfed.resume(folder).metrics[-1]["round"] == 3
    assert json.loads((folder / "summary.json").read_text())["versions"]["sketchfed"] == __version__
