"""The plug-in of the tutorial, installed: its parts are listed, run, resumed, kept private and summed securely."""

import os
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import plugin
from sketchfed import resume, run
from sketchfed.algorithms import ALGORITHMS
from sketchfed.cli import app
from sketchfed.codecs import CODECS
from sketchfed.combining import COMBINE_RULES
from sketchfed.config import load_config
from sketchfed.data import DATA_SETS
from sketchfed.errors import InputError
from sketchfed.parts import _entry_points
from sketchfed.sketches import SKETCHES

QUICK = ["algorithm.rounds=6", "engine.checkpoint_seconds=0"]
PRIVATE = {"epsilon": 8.0, "delta": 1e-3, "clip": 0.3, "insecure_noise_seed": 1}


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory):
    """Where the plug-in is installed; this process finds it."""
    site = str(plugin.install(tmp_path_factory.mktemp("plugin")))
    sys.path.insert(0, site)
    yield site
    sys.path.remove(site)
    for name in [name for name in sys.modules if name.startswith("sketchfed_example")]:
        del sys.modules[name]
    _entry_points.cache_clear()


def config(*changes: str, **tables):
    return load_config(load_config(plugin.CONFIG, [*QUICK, *changes]).to_tables() | tables)


def test_every_part_is_found_by_its_name_and_listed_with_its_package():
    for kind, registry, name in (
        ("sketches", SKETCHES, "stripes"),
        ("codecs", CODECS, "fold"),
        ("algorithms", ALGORITHMS, "fed_adagrad"),
        ("combine_rules", COMBINE_RULES, "near_mean"),
        ("data", DATA_SETS, "rings"),
    ):
        assert getattr(registry[name], "name", name) == name
        assert registry.origin(name) == "sketchfed-example 1.0 (entry point)"
        assert registry[registry.name_of(registry[name])] is registry[name]
        shown = CliRunner().invoke(app, ["list", kind], env={"COLUMNS": "200"}).stdout
        assert re.search(rf"^  {name} .*sketchfed-example 1\.0 \(entry point\) *$", shown, re.MULTILINE)


def test_the_run_of_the_tutorial_learns():
    result = run(load_config(plugin.CONFIG))
    assert result.label == "fed_adagrad fold 1/2"
    assert result.accuracy > 0.95


def test_the_sketch_and_the_rule_run_with_a_built_in_algorithm():
    result = run(load_config(plugin.STRIPES))
    assert result.label.startswith("iterative stripes 1/2")
    assert result.accuracy > 0.9


def test_names_and_references_are_the_same_parts():
    by_name = run(config())
    by_reference = run(
        config(
            "data.name=sketchfed_example.data:rings",
            "algorithm.name=sketchfed_example.algorithm:FedAdagrad",
            "codec.name=sketchfed_example.codec:Fold",
        )
    )
    assert torch.equal(by_name.weights, by_reference.weights)
    assert by_name.config.to_tables()["algorithm"]["name"] == "fed_adagrad"
    assert by_reference.config.to_tables()["codec"]["name"] == "sketchfed_example.codec:Fold"
    assert by_reference.label == "fed_adagrad Fold 1/2"


class StopError(Exception):
    pass


def stop(line):
    if line["round"] == 3:
        raise StopError


@pytest.mark.parametrize("tables", [{}, {"privacy": PRIVATE}], ids=["plain", "private"])
def test_an_interrupted_run_ends_as_if_it_had_never_stopped(tmp_path, tables):
    whole = run(config(**tables))
    with pytest.raises(StopError):
        run(config(**tables), folder=tmp_path / "run", on_round=stop)
    resumed = resume(tmp_path / "run")
    assert torch.equal(whole.weights, resumed.weights)
    told = [{key: value for key, value in line.items() if key != "seconds"} for line in whole.metrics]
    assert [{key: value for key, value in line.items() if key != "seconds"} for line in resumed.metrics] == told


@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_private_run_stays_within_its_budget(unit):
    result = run(config(privacy=PRIVATE | {"unit": unit}, algorithm={"name": "fed_adagrad", "rounds": 6, "batch": 16}))
    assert 7 < result.metrics[-1]["epsilon"] <= 8


def test_secure_sums_of_the_codec_are_those_in_the_clear():
    clear = run(config())
    secure = run(config(secure={"clip": 10.0}))
    assert torch.allclose(clear.weights, secure.weights, atol=1e-3)
    noisy = run(config(secure={}, privacy=PRIVATE | {"name": "discrete_gaussian"}))
    assert 5 < noisy.metrics[-1]["epsilon"] <= 8


def test_a_codec_that_cannot_be_added_is_refused_before_round_1():
    with pytest.raises(InputError, match="codec 'top_k'"):
        run(config("codec.name=top_k"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", ["TestFold or rings", "TestStripes or TestNearMean"])
def test_the_parts_pass_their_own_tests(parts, capsys):
    code = plugin.own_tests(plugin.TESTS, "-k", parts)
    said = capsys.readouterr().out
    assert code == pytest.ExitCode.OK, said
    assert re.search(r"^\d+ passed, [\w ,]* in ", said, re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_algorithm_passes_its_own_tests_in_a_process_of_its_own(site):
    found = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, "-k", "TestFedAdagrad")
    command = [sys.executable, "-m", "pytest", *options, str(plugin.TESTS)]
    said = subprocess.run(command, env=os.environ | {"PYTHONPATH": found}, capture_output=True, text=True).stdout
    assert re.search(r"^\d+ passed, [\w ,]* in ", said, re.MULTILINE), said
