"""The trials behind the page of what works with what."""

from dataclasses import replace

import pytest
import torch

from sketchfed.algorithms import ALGORITHMS
from sketchfed.codecs import CODECS
from sketchfed.combining import COMBINE_RULES
from sketchfed.errors import InputError
from sketchfed.testing import combinations
from sketchfed.testing.combinations import FEATURES, Part, algorithm_parts, grids, outcome

FEDAVG = Part(tables={"algorithm": {"name": "fedavg"}})


def test_everything_that_is_registered_has_a_row():
    assert algorithm_parts().keys() == ALGORITHMS.built_in.keys()
    assert grids()["codecs"].rows.keys() > CODECS.built_in.keys()
    assert {*grids()["rules"].rows, "mean"} == {*COMBINE_RULES.built_in}


def test_every_pair_of_a_square_table_is_tried_once():
    cells = list(grids()["features"].cells())
    assert len(cells) == len(FEATURES) * (len(FEATURES) - 1) // 2
    assert len({frozenset(cell) for cell in cells}) == len(cells)


def test_what_works_and_what_is_refused_is_told_apart():
    assert outcome(FEDAVG) == ""
    assert "does not go with codec 'correlated'" in str(
        outcome(FEDAVG, FEATURES["SCAFFOLD"], Part(tables={"codec": {"name": "correlated"}}))
    )
    assert outcome(FEDAVG, FEATURES["noise on clients"], FEATURES["noise in steps"]) is None


@pytest.mark.parametrize("name", ["averaged buffers", "own loop", "personal layers", "noise on clients", "hidden cohorts"])
def test_a_feature_is_really_there(name, monkeypatch):
    """The run gets the settings and objects of the feature."""
    seen = []
    run = combinations.run

    def watched(tables, **given):
        seen.append((tables, given))
        return run(tables, **given)

    monkeypatch.setattr(combinations, "run", watched)
    assert outcome(FEDAVG, FEATURES[name]) == ""
    [(tables, given)] = seen
    for table, settings in FEATURES[name].tables.items():
        assert tables[table].items() >= settings.items()
    assert given.items() >= FEATURES[name].objects().items()
    assert ("batch" in tables["algorithm"]) == (name != "own loop")


def test_a_run_that_is_accepted_and_changes_nothing_is_an_error():
    still = Part(tables={"algorithm": {"local_rate": 1e-30}})
    with pytest.raises(AssertionError, match="is accepted, and its weights do not change"):
        outcome(FEDAVG, still)


def test_a_refusal_after_clients_were_asked_is_an_error():
    def late(model, data, context):
        if context.round:
            raise InputError("only now")
        return {"loss": 0.0}

    part = replace(FEATURES["own loop"], objects=lambda: {**FEATURES["own loop"].objects(), "evaluate": late})
    with pytest.raises(AssertionError, match="is refused after clients were asked"):
        outcome(FEDAVG, part)


def test_trials_say_the_same_each_time():
    torch.manual_seed(5)
    first = outcome(algorithm_parts()["dome"], FEATURES["SCAFFOLD"])
    torch.manual_seed(6)
    assert outcome(algorithm_parts()["dome"], FEATURES["SCAFFOLD"]) == first != ""


def test_blind_clients_have_no_personal_layers():
    found = outcome(algorithm_parts()["dbcl"], FEATURES["personal layers"])
    assert str(found).startswith("model.personal does not go with algorithm 'dbcl'")
    withheld = Part(tables={"algorithm": {"output": "withheld"}})
    assert outcome(algorithm_parts()["dbcl"], withheld) == "", "the remedy that the message names"
