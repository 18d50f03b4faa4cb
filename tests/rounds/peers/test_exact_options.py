"""What travels beside parameters, and the server's step, are the same whoever adds up."""

import pytest
import torch
from torch import nn

from sketchfed import run

PLAIN = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
NORMED = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
CASES = {
    "weights by examples": ({"algorithm": {"weighting": "examples"}}, PLAIN),
    "a server optimiser": ({"algorithm": {"server": "adam"}}, PLAIN),
    "averaged buffers": ({"model": {"buffers": "average"}}, NORMED),
    "an optimiser on clients": ({"training": {"optimiser": "adam"}}, PLAIN),
}


@pytest.mark.parametrize("case", CASES)
def test_a_tree_adds_up_to_the_bits_of_a_server(case):
    draw = torch.Generator().manual_seed(0)
    sizes = [30 + 5 * node for node in range(6)]
    data = [(torch.randn(size, 5, generator=draw), torch.randint(0, 2, (size,), generator=draw)) for size in sizes]
    changes, module = CASES[case]
    tables = changes | {"algorithm": {"name": "gossip_exact", "rounds": 3, "batch": 10, **changes.get("algorithm", {})}}
    given = {"model": module, "clients": data, "test": data[0]}
    assert torch.equal(run(tables | {"graph": {"name": "path"}}, **given).weights, run(tables, **given).weights)
