"""How many copies of the model a round holds at its peak, in a process of its own."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys, torch
from pathlib import Path
from sketchfed import run
from sketchfed.data import DataSet
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import make_sketch
from sketchfed.sketches.srht import LEAST_IN_PIECES

def held(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

def noise():
    x, y = torch.rand(4, 100), torch.arange(4)
    return DataSet(name="noise", x_train=x, y_train=y, x_test=x, y_test=y, outputs=4, shape=(100,), prepare=lambda x: x)

def config(width, rounds):
    return {
        "data": {"name": "__main__:noise", "clients": 1},
        "model": {"name": "mlp", "hidden": [width, width]},
        "algorithm": {"name": "iterative", "rounds": rounds, "local_steps": 1, "local_rate": 0.01},
        "sketch": {"ratio": 0.01},
        "engine": {"workers": 1},
    }

run(config(200, 2))  # loads and compiles
long = make_sketch("srht", dim=LEAST_IN_PIECES + 1, size=LEAST_IN_PIECES // 100, seed=PublicSeed(0))
long.adjoint(long.apply(torch.ones(long.dim)))  # compiles what works in pieces
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of compiling
before = held("VmRSS")
done = run(config(3_110, 3))
print(json.dumps({"bytes": held("VmHWM") - before, "dim": done.dim}))
"""
"""Ten million parameters, of which a copy takes 40 MB."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_round_of_one_client_holds_few_copies_of_the_model(tmp_path):
    """Model, replica, change and what becomes of it are four copies; chunks that the allocator keeps take some room besides."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bytes"] / (4 * found["dim"]) < 6
