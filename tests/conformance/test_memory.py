"""Sketches cost small multiples of what goes in and out: measured as peak resident memory in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from sketchfed.sketches import SKETCHES

PROGRAM = """
import sys, torch
from pathlib import Path
from sketchfed import PublicSeed
from sketchfed.sketches import SKETCHES, make_sketch

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

torch.set_num_threads(1)
for name in SKETCHES:
    dim, size = (2**21, 2**17) if name not in ("gaussian", "ams") else (2**21, 2)
    warm = make_sketch(name, dim=100, size=2, seed=PublicSeed(1))
    warm.adjoint(warm.apply(torch.ones(100)))
    x = torch.ones(dim)
    sketch = make_sketch(name, dim=dim, size=size, seed=PublicSeed(1))
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    y = sketch.apply(x)
    back = sketch.adjoint(y)
    print(name, (peak() - before) / (4 * (dim + size)))
    del x, y, back, sketch
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_a_round_trip_needs_at_most_five_times_its_input_and_output():
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250, check=True).stdout
    multiples = {name: float(value) for name, value in (line.split() for line in printed.splitlines())}
    assert multiples.keys() == SKETCHES.keys()
    assert {name: value for name, value in multiples.items() if value > 5} == {}
