"""The lab as others get it: installed from its wheel, far from any checkout."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from sketchfed_lab.experiments import EXPERIMENTS, find, make_settings, recorded_settings

LAB = Path(__file__).parents[1]
LISTS = """
import sketchfed_lab
from sketchfed.cli import app

print(sketchfed_lab.__file__)
for command in ("reproduce", "bench"):
    app([command], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=LAB, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def said(installed: Path, cwd: Path, *arguments: str) -> str:
    """What Python prints there."""
    paths = [str(installed), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_recorded_settings_are_settings_of_their_experiment(name):
    if name == "flower-soak":
        pytest.importorskip("flwr")
    assert make_settings(find(name), recorded_settings(name))


def test_the_wheel_has_the_settings_of_every_experiment_and_no_results(installed):
    recorded = [file.relative_to(installed / "sketchfed_lab" / "recorded") for file in installed.rglob("recorded/**/*.*")]
    assert {str(file) for file in recorded} == {f"{name}/experiment.toml" for name in EXPERIMENTS}


def test_the_wheel_works_without_a_checkout(installed, tmp_path):
    listed = said(installed, tmp_path, "-c", LISTS)
    assert all(name in listed for name in (str(installed), "table-1", "kernels"))
    smaller = [part for setting in ("trials=3", "sizes=[8]", "dim=64") for part in ("--set", setting)]
    said(installed, tmp_path, "-m", "sketchfed.cli", "reproduce", "table-1", "--out", "here", *smaller)
    assert {"results.jsonl", "table.md", "figure.svg"} <= {file.name for file in (tmp_path / "here").iterdir()}
