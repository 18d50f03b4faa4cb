"""The benchmark of secure sums runs, records and draws. How fast anything is, is not for a test to say."""

import io
import json
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from xml.etree import ElementTree

import numpy as np
import pytest

from sketchfed.shipped import shipped


@pytest.fixture(scope="module")
def benchmark():
    """Loaded by its path, as the command line does, with next to nothing to do."""
    spec = spec_from_file_location("sketchfed_benchmark_secure", shipped("benchmarks") / "secure.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.QUICK = module.Plan(
        clients=(6, 12), size=200, dropouts=(0.0, 0.17), sampled=2, masks=((1_000, 16),), rounds=1, turn=1e-5
    )
    return module


@pytest.fixture(scope="module")
def run(benchmark, tmp_path_factory):
    folder, printed = tmp_path_factory.mktemp("bench"), io.StringIO()
    with redirect_stdout(printed):
        benchmark.main(folder=folder, quick=True)
    rows = [json.loads(line) for line in (folder / "secure.jsonl").read_text().splitlines()]
    return folder, rows, " ".join(printed.getvalue().split())


def test_masks_are_raced_against_flowers(run):
    ours, flower = (row for row in run[1] if row["topic"] == "masks")
    assert ours["what"] == "secure"
    assert flower["what"].startswith("Flower")
    assert flower["over"] == "secure"
    assert "met" in flower


def test_sums_are_compared_with_sums_in_the_clear_with_and_without_dropouts(run):
    sums = [row for row in run[1] if row["topic"] == "sum"]
    assert {(row["clients"], row["dropouts"]) for row in sums} == {(6, 0.0), (6, 0.17), (12, 0.0), (12, 0.17)}
    client = next(row for row in sums if row["what"] == "client")
    clear = next(row for row in sums if row["what"] == "client, in the clear")
    assert client["up_bytes"] > clear["up_bytes"] > 400
    assert client["down_bytes"] > clear["down_bytes"] == 0
    assert "targets met" in run[2]


def test_a_picture_is_drawn(run):
    assert ElementTree.parse(run[0] / "secure.svg").getroot().tag.endswith("svg")


def test_the_copy_of_flowers_call_draws_what_flower_draws(benchmark):
    """The first numbers of flwr 1.41.0's pseudo_rand_gen for this seed; compared with Flower itself where it is installed."""
    seed, shapes = bytes(range(32)), [(4,), (2, 3)]
    copied = benchmark._flowers_masks(seed, 1 << 24, shapes)
    assert [part.shape for part in copied] == shapes
    label, generate = benchmark.flower()
    assert label.startswith("Flower")
    assert all(np.array_equal(a, b) for a, b in zip(copied, generate(seed, 1 << 24, shapes), strict=True))
