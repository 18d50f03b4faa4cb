"""The package of examples/plugin, installed as its users would install it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "examples" / "plugin"
CONFIG, STRIPES, TESTS = SOURCE / "rings.toml", SOURCE / "stripes.toml", SOURCE / "tests"


def install(folder: Path) -> Path:
    """Install the package below `folder`, without a network; returns what must be on `sys.path` to find it."""
    copy, site = folder / "source", folder / "site"
    shutil.copytree(SOURCE, copy)  # building leaves files beside the source
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def own_tests(path: Path, *options: str) -> int:
    """Run pytest in this process as users run it on tests of their own; returns its exit code, and prints what it prints.

    Another process would first import torch and numba again, which takes longer than most of the tests.
    """
    alone = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "-c", os.devnull, "--rootdir", str(path.parent))
    alone += ("--import-mode", "importlib")  # files of other folders have the same names
    before = set(sys.modules)
    try:
        return pytest.main(["-q", *alone, *options, str(path)])
    finally:
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or os.devnull).is_relative_to(path):
                del sys.modules[name]
