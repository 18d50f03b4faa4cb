"""How many copies of the model a round holds at its peak, in a process of its own."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys, torch
from pathlib import Path
from torch import nn
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

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(100, width), nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))

def net(shape, outputs, *, width):
    return Net(width)

def config(width, rounds):
    model = {"name": "__main__:net", "width": width} if sys.argv[1] == "custom" else {"name": "mlp", "hidden": [width, width]}
    return {
        "data": {"name": "__main__:noise", "clients": 1},
        "model": model,
        "algorithm": {"name": sys.argv[2], "rounds": rounds, "local_steps": 1, "local_rate": 0.01},
        **({"sketch": {"ratio": 0.01}} if sys.argv[2] == "iterative" else {}),
        "engine": {"workers": 1},
    }

run(config(1_500, 2))  # loads and compiles
long = make_sketch("srht", dim=LEAST_IN_PIECES + 1, size=LEAST_IN_PIECES // 100, seed=PublicSeed(0))
long.adjoint(long.apply(torch.ones(long.dim)))  # compiles what works in pieces
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of compiling
before = held("VmRSS")
done = run(config(3_110, 3))
print(json.dumps({"bytes": held("VmHWM") - before, "dim": done.dim}))
"""
"""Ten million parameters, of which a copy takes 40 MB."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("model", "algorithm", "copies"),
    [("mlp", "iterative", 4), ("custom", "iterative", 4.5), ("mlp", "fedavg", 5.5), ("custom", "fedavg", 5.5)],
)
def test_a_round_of_one_client_holds_few_copies_of_the_model(model, algorithm, copies, tmp_path):
    """The first weights, trial weights and their gradients are three copies; so are replica, change and gradients later on.

    Whole updates travel in further copies. What the allocator keeps takes some room besides.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    order = [sys.executable, "script.py", model, algorithm]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["bytes"] / (4 * found["dim"]) < copies
