"""The configurations in examples/ are what they say."""

import sys
from pathlib import Path

import pytest

import sketchfed
from sketchfed.config import load_config

FOLDER = Path(__file__).parents[2] / "examples"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.fixture(autouse=True)
def _in_the_folder(monkeypatch):
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_model", None)


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_an_example_can_be_read_and_completed(file):
    config = load_config(file)
    assert config.completed(dim=100_000, sizes=[60] * (config.data.clients or 20)).label == config.label
    assert file.read_text().startswith("# ")


def test_there_are_examples_of_every_algorithm():
    assert {load_config(file).algorithm.name for file in FILES} >= {"iterative", "fetchsgd", "dbcl", "dome", "gossip"}
    assert len(FILES) >= 5


REPEATABLE = {
    "dbcl": ["algorithm.public_start=true"],
    "dome": ["privacy.insecure_noise_seed=1"],
    "private-secure": ["privacy.insecure_noise_seed=1"],
}


@pytest.mark.parametrize(
    ("name", "rounds", "accuracy"),
    [
        ("dbcl", 10, 0.4),
        ("digits-iterative", 12, 0.5),
        ("dome", 10, 0.25),
        ("gossip", 10, 0.5),
        ("own-model", 8, 0.9),
        ("private-secure", 10, 0.25),
    ],
)
def test_an_example_that_needs_no_file_trains(name, rounds, accuracy):
    changes = [f"algorithm.rounds={rounds}", "engine.evaluate_every=5", *REPEATABLE.get(name, [])]
    assert sketchfed.run(load_config(f"{name}.toml", changes)).accuracy > accuracy


def test_the_example_of_ones_own_model_uses_its_options():
    run = sketchfed.run(load_config("own-model.toml", ["algorithm.rounds=1"]))
    assert run.config.model.options == {"width": 24, "dropout": 0.1}
    assert run.config.data.options == {"test_every": 4}
    assert (run.dim, run.clients) == (30 * 24 + 24 + 2 * 24 + 24 * 2 + 2, 8)
