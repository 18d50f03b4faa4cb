"""The package of examples/plugin, installed as its users would install it."""

import shutil
import subprocess
import sys
from pathlib import Path

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
