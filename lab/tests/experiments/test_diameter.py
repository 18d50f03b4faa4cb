"""Graphs have the diameters they are built for, and sums along a tree keep what the paper promises."""

from dataclasses import replace

import pytest

from sketchfed.errors import UnknownNameError
from sketchfed_lab.experiments import diameter as experiment
from sketchfed_lab.experiments import diameter_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.diameter import KINDS, SERVER

SETTINGS = make_settings(experiment, recorded_settings("diameter"))
SMALL = replace(SETTINGS, hidden=4, inverse_ratio=5, diameters={"path": [4], "ring": [4], "tree": [4]}, rounds=2, seeds=[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_has_the_diameter_for_which_it_is_built(kind):
    for diameter in SETTINGS.diameters[kind]:
        assert KINDS[kind](diameter).diameter == diameter


def test_an_unknown_kind_is_refused():
    with pytest.raises(UnknownNameError, match="no kind of graph named 'x'"):
        replace(SETTINGS, diameters={"x": [2]})


def test_every_graph_is_compared_with_a_server_of_as_many_clients():
    made = experiment.cases(SMALL)
    nodes = {each.key["nodes"] for each in made if each.key["kind"] != SERVER}
    assert nodes == {each.key["nodes"] for each in made if each.key["kind"] == SERVER} == {5, 7, 8}


def test_steps_messages_and_bits_are_what_the_paper_promises(tmp_path):
    experiment.run(SMALL, tmp_path)
    lines = [line.strip("| ").split(" | ") for line in (tmp_path / "table.md").read_text().splitlines()[2:]]
    found = {line[0]: dict(zip(report.HEADINGS, line, strict=True)) for line in lines}
    assert {kind: line["steps of a round"] for kind, line in found.items()} == {"path": "4", "ring": "8", "tree": "4"}
    for line in found.values():
        assert int(line["steps of a round"]) <= int(line["2 · diameter"])
        assert line["messages of a link, each way"] == "1"
        assert line["numbers of a message"] == str(round((64 * 4 + 4 + 4 * 10 + 10) / 5))
        assert line["all nodes equal"] == line["the server's bits"] == "yes"
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_other_bits_are_noticed():
    row = {"key": {"nodes": 3, "seed": 0}, "weights": "a", "consensus": 0.0}
    assert report.as_with_a_server([row], {(3, 0): {"weights": "a"}})
    assert not report.as_with_a_server([row], {(3, 0): {"weights": "b"}})
    assert not report.equal_everywhere([row, {**row, "consensus": 1e-9}])
