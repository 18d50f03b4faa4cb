import os
import shutil
import subprocess
import sys
from pathlib import Path

import sketchfed

PROGRAM = """
import numba
from numba.core.caching import FunctionCache

def no_place(*_):
    raise RuntimeError("cannot cache function: no locator available")

FunctionCache.__init__ = no_place
import torch
from sketchfed import PublicSeed
from sketchfed.sketches import make_sketch
sketch = make_sketch("sampling", dim=10, size=5, seed=PublicSeed(1))
print(sketch.apply(torch.ones(10)).square().sum().item())
"""


def test_kernels_work_where_nothing_can_be_cached():
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=True)
    assert abs(float(said.stdout) - 10) < 1e-5


def test_what_is_kept_on_disk_is_dropped_when_a_callee_changes(tmp_path):
    copy = shutil.copytree(
        Path(sketchfed.__file__).parent, tmp_path / "sketchfed", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    program = """
from sketchfed import PublicSeed
from sketchfed.kernels.draws import subset
print(subset(PublicSeed(1).stream, dim=1000, size=5))
"""

    def drawn() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout

    before = drawn()
    assert drawn() == before
    assert list((tmp_path / "cache").rglob("*.nbi"))
    callee = copy / "kernels" / "philox.py"
    callee.write_text(callee.read_text().replace("0xD2511F53", "0xD2511F55"))
    assert drawn() != before
