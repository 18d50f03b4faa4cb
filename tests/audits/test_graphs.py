"""Audits of runs without a server, from the seat of one neighbour."""

from dataclasses import replace

import pytest

from sketchfed.audits import Effort, audit
from sketchfed.audits.defences import UNDEFENDED, is_undefended, undefended
from sketchfed.config import load_config

EFFORT = Effort(victims=1, iterations=1, judged=8, member_rounds=2, canaries=12, shadows=20)
WORK = {"rounds": 6, "local_steps": 1, "batch": 1, "screening": 0.0}


def tables(**own):
    common = {"data": {"name": "digits", "clients": 3}, "model": {"hidden": [16]}, "graph": {"name": "ring"}}
    return common | {"engine": {"workers": 1}} | own | {"algorithm": WORK | own["algorithm"]}


BLIND = tables(algorithm={"name": "dbcl"}, sketch={"ratio": 0.5})


@pytest.fixture(scope="module")
def found():
    record = audit(defences={"blind": BLIND}, effort=EFFORT)
    return {(each.name, one.attack): one for each in record.defences for one in each.findings}, record


def test_a_neighbour_is_the_only_one_who_looks_and_takes_dense_messages_apart(found):
    findings, record = found
    assert {finding.role for finding in findings.values()} == {"neighbour"}
    first = findings[UNDEFENDED, "first layer"]
    assert (first.verdict, first.score > 60) == ("leaks", True)
    assert {each.name for each in record.defences} == {UNDEFENDED, "blind"}
    assert all(each.numbers > 0 for each in record.defences)


def test_changes_of_blind_neighbours_are_compared_with_the_true_ones(found):
    findings, _ = found
    assert findings["blind", "all messages"].score > 0.9
    assert ("blind", "option I") not in findings


def test_noise_against_neighbours_shows_its_epsilon_and_hides_changes():
    private = {"unit": "example", "placement": "steps", "batches": "passes", "epsilon": 4.0, "delta": 1e-4, "clip": 1.0}
    record = audit(
        defences={"noisy": tables(algorithm={"name": "dbcl"}, privacy=private)}, effort=EFFORT, attacks=["all messages"]
    )
    noisy = record.defences[1]
    assert noisy.epsilon <= 4.0
    assert "against the neighbours" in noisy.claim
    assert noisy.findings[0].verdict == "nothing found"


def test_what_an_audit_cannot_look_into_is_said():
    exact = tables(algorithm={"name": "gossip_exact"}, graph={"name": "path"})
    lossy = tables(algorithm={"name": "dbcl"}, graph={"name": "ring", "losses": 0.2})
    record = audit(defences={"exact": exact, "lossy": lossy}, effort=EFFORT, attacks=["all messages"])
    reasons = {each.name: each.findings[0].reason for each in record.defences}
    assert "other rounds tell nothing more" in reasons["exact"]
    assert "remove redraw" in reasons["lossy"]


def test_the_undefended_way_on_a_graph_is_to_exchange_whole_models():
    blind = load_config(BLIND)
    plain = undefended(blind)
    assert plain.graph == blind.graph
    assert plain.algorithm.name == "gossip"
    assert is_undefended(plain)
    assert not is_undefended(replace(blind))
