"""Files and changes as people write them."""

import pytest

from sketchfed.config import load_config
from sketchfed.errors import InputError


def refusal(source, *changes) -> str:
    with pytest.raises(InputError) as refused:
        load_config(source, changes)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[algorithm\nname = 1", "is not valid TOML: "),
        ("seed = 1\nseed = 2", "is not valid TOML: "),
        (b"\xff\xfe", "is not valid TOML: "),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path, text, why):
    (tmp_path / "bad.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    said = refusal(tmp_path / "bad.toml")
    assert said.startswith(f"{tmp_path / 'bad.toml'} {why}")
    assert "Mend that line." in said


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert refusal(tmp_path / "no.toml").endswith("No such file or directory. Check the path.")
    assert refusal(tmp_path).endswith("Is a directory. Check the path.")


def test_changes_are_toml_values_or_bare_words():
    changes = [
        *("algorithm.name=iterative", "algorithm.rounds=20", "algorithm.local_rate = 0.5", "sketch.bits=4"),
        *("data.name='digits'", 'data.partition="dirichlet"', "data.concentration=1e-1", "model.hidden=[20, 30]", "name=a b"),
        *("engine.workers=0x2", "seed=1_000"),
    ]
    config = load_config({}, changes)
    assert (config.algorithm.name, config.algorithm.rounds, config.algorithm.local_rate) == ("iterative", 20, 0.5)
    assert config.algorithm.sketch.bits == 4
    assert (config.data.name, config.data.partition, config.data.options) == ("digits", "dirichlet", {"concentration": 0.1})
    assert config.model.options == {"hidden": [20, 30]}
    assert (config.name, config.engine.workers, config.seed) == ("a b", 2, 1000)
    assert load_config({}, ["algorithm.error_feedback=true"]).algorithm.error_feedback is True


def test_changes_come_after_the_file_and_after_each_other(tmp_path):
    (tmp_path / "full.toml").write_text("[algorithm]\nrounds = 200\nbatch = 10\n")
    config = load_config(tmp_path / "full.toml", ["algorithm.rounds=5", "algorithm.rounds=6"])
    assert (config.algorithm.rounds, config.algorithm.batch) == (6, 10)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("rounds", "--set takes TABLE.KEY=VALUE, got 'rounds'. Write --set algorithm.rounds=20."),
        ("=5", "--set takes TABLE.KEY=VALUE, got '=5'"),
        ("algorithm..rounds=5", "--set takes TABLE.KEY=VALUE"),
        ("seed.more=5", "'seed' is not a table"),
        ("algorithm=5", "[algorithm] must be a table, got algorithm = 5."),
        ("algorithm.rounds=many", "algorithm.rounds must be an integer, got 'many'."),
        ("algorithm.rounds=", "algorithm.rounds must be an integer, got ''."),
        ("algorithm.rouns=5", "Did you mean 'rounds'?"),
        ("rounds=5", "there is no table or key named 'rounds'"),
        ("model.hidden=[20, wide]", "model.hidden must be a list, got '[20, wide]'."),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change, why):
    assert why in refusal({"seed": 3}, change)
