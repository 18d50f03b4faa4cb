"""What is compiled is kept on disk where that is possible, and dropped when any source changes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sketchfed.kernels.jit

CALLEE = """
from kernels.jit import kernel

@kernel
def power(x, n):
    return x**n
"""
CALLER = """
from kernels.callee import power
from kernels.jit import kernel

@kernel
def twice(x, n):
    return 2 * power(x, n)
"""
UNCACHED = """
from numba.core.caching import FunctionCache

def no_place(*_):
    raise RuntimeError("cannot cache function: no locator available")

FunctionCache.__init__ = no_place
"""
PROGRAM = """
from kernels.caller import twice

print(twice(3.0, 4))
"""


@pytest.fixture
def printed(tmp_path):
    """Runs a program beside a package of two small kernels, with a torch that is imported in no time: only its name is used."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    shutil.copy(Path(sketchfed.kernels.jit.__file__), folder)
    (folder / "callee.py").write_text(CALLEE)
    (folder / "caller.py").write_text(CALLER)
    (tmp_path / "torch.py").write_text("Tensor = object")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run(program: str) -> float:
        command = [sys.executable, "-c", program]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True).stdout)

    return run


def test_kernels_work_where_nothing_can_be_cached(printed, tmp_path):
    assert printed(UNCACHED + PROGRAM) == 162
    assert not (tmp_path / "cache").exists()


def test_what_is_kept_on_disk_is_dropped_when_a_callee_changes(printed, tmp_path):
    assert printed(PROGRAM) == 162
    assert list((tmp_path / "cache").rglob("*.nbi"))
    (tmp_path / "kernels" / "callee.py").write_text(CALLEE.replace("x**n", "x**n + 1"))
    assert printed(PROGRAM) == 164
