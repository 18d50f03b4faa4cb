"""The plug-in of the tutorial on a real federation: nodes find its parts by name, as the server does."""

import json
import sys

import pytest
from fake_grid import same
from own_data import CLIENTS

import plugin
import sketchfed
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.flower.source import NodeSource
from sketchfed.parts import _entry_points

PRIVATE = {"epsilon": 8.0, "delta": 1e-3, "clip": 0.3, "insecure_noise_seed": 1}


@pytest.fixture(scope="module")
def site(plugin_site):
    """This process finds the plug-in, as the nodes do."""
    sys.path.insert(0, str(plugin_site))
    yield
    sys.path.remove(str(plugin_site))
    for name in [name for name in sys.modules if name.startswith("sketchfed_example")]:
        del sys.modules[name]
    _entry_points.cache_clear()


def tables(**own):
    changes = ["algorithm.rounds=2", f"data.clients={CLIENTS}", "engine.checkpoint_seconds=0"]
    return load_config(plugin.CONFIG, changes).to_tables() | own


@pytest.mark.usefixtures("site")
def test_a_private_run_of_the_plug_in_that_was_interrupted_comes_to_the_bits_of_the_local_engine(engine, tmp_path):
    def stop(line):
        raise KeyboardInterrupt

    private = tables(privacy=PRIVATE)
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(private | {"engine": engine}, folder=tmp_path / "run", on_round=stop)
    made = sketchfed.resume(tmp_path / "run")
    assert same(made, sketchfed.run(private | {"joint": made.config.joint}))


@pytest.mark.parametrize("settings", [{"partition-id": 0}, {"data": "own_data:load"}], ids=["a part", "own data"])
def test_a_node_that_lacks_a_part_refuses_to_join(settings):
    with pytest.raises(InputError, match="there is no algorithm named 'of_a_package_that_is_not_here'"):
        NodeSource(settings).hello(json.dumps({"algorithm": {"name": "of_a_package_that_is_not_here"}}).encode())


def test_a_node_with_data_of_its_own_needs_no_data_set_of_others():
    offer = json.dumps({"data": {"name": "of_a_package_that_is_not_here"}}).encode()
    assert NodeSource({"data": "own_data:load"}).hello(offer).own
