"""The ServerApp of the package, over a grid whose nodes answer in this process; `flwr run` starts it in test_federation.py."""

import json

import pytest
import tomli_w
from fake_grid import NODES, FakeGrid, tables
from flwr.app import Context, RecordDict

import sketchfed
from sketchfed.errors import InputError
from sketchfed.flower.federation import FILE
from sketchfed.flower.server_app import configured, main
from sketchfed.runs.folder import METRICS

pytestmark = pytest.mark.usefixtures("in_a_run")


def started(config: str, folder: object) -> None:
    own = {node: {"partition-id": index, "data": "own_data:load"} for index, node in enumerate(NODES)}
    given = {"config": config, "folder": str(folder), "resume": False}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=given)
    main(FakeGrid(settings=own), context)


def written(folder):
    return [{**json.loads(line), "seconds": 0} for line in (folder / METRICS).read_text().splitlines()]


@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_run_on_nodes_with_data_of_their_own_is_that_of_the_local_engine(in_a_file, tmp_path):
    text = tomli_w.dumps(tables(rounds=2))
    (tmp_path / "run.toml").write_text(text)
    started(str(tmp_path / "run.toml") if in_a_file else text, tmp_path / "run")
    sketchfed.run(tables(rounds=2), folder=tmp_path / "local")
    assert written(tmp_path / "run") == written(tmp_path / "local")
    members = json.loads((tmp_path / "run" / FILE).read_text())["members"]
    assert [(member["own"], member["examples"]) for member in members] == [(True, 10), (True, 11), (True, 12)]


@pytest.mark.parametrize(("text", "said"), [("", "has no configuration"), ("[data", "not valid TOML")])
def test_what_is_no_configuration_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        configured(text)
