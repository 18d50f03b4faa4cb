import subprocess
import sys

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
