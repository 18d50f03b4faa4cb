"""The rule that a configuration names, its options, and what becomes of both in files, labels, runs and audits."""

import tomllib

import pytest
import torch

from sketchfed import run
from sketchfed.algorithms import FedAvg, Iterative
from sketchfed.attacks.knowledge import OnlyHeard, knowledge_of
from sketchfed.combining import Krum, TrimmedMean
from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.runs import resume

KRUM = {"algorithm": {"combine": "krum"}, "combine": {"byzantine": 0.3, "best": 0.5}}
WORK = {"rounds": 4, "local_steps": 2, "local_rate": 0.5}
RULE = """
from dataclasses import dataclass
import numpy as np
from sketchfed.combining import CombineRule


@dataclass(frozen=True, kw_only=True)
class First(CombineRule):
    place: int = 0

    name, summary, source, breakdown, cost = "first", "the first vector", "here", "0", "s"

    def _combined(self, rows, weights):
        return rows[self.place].astype(np.float64)
"""


def test_a_rule_is_named_in_algorithm_and_its_options_in_a_table_of_their_own():
    config = load_config(KRUM)
    assert config.algorithm.combine.rule() == Krum(byzantine=0.3, best=0.5)
    assert config.label == "fedavg krum"
    assert (
        load_config({"algorithm": {"name": "iterative", "combine": "trimmed_mean"}}).label == "iterative srht 1/10 trimmed mean"
    )
    assert load_config({"algorithm": {"combine": "trimmed_mean"}}).algorithm.combine.rule() == TrimmedMean()


@pytest.mark.parametrize("tables", [KRUM, {"algorithm": {"combine": "median"}}, {"algorithm": {"combine": "mean"}}, {}])
def test_settings_survive_as_tables_and_as_a_file(tables):
    config = load_config(tables)
    full = config.completed(dim=100, sizes=[10] * 20)
    for each in (config, full):
        assert load_config(each.to_tables()) == load_config(tomllib.loads(each.to_toml())) == each


def test_options_that_are_not_given_are_filled_in():
    named = load_config({"algorithm": {"combine": "krum"}}).completed(dim=100, sizes=[10] * 20)
    assert named.to_tables()["combine"] == {"byzantine": 0.2, "best": 0.0}


def test_the_mean_leaves_no_trace_in_a_file():
    """Folders and agreements with the mean have the digests that they had before there were rules."""
    for tables in ({}, {"algorithm": {"combine": "mean"}}):
        written = load_config(tables).completed(dim=100, sizes=[10] * 20).to_tables()
        assert "combine" not in written
        assert "combine" not in written["algorithm"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"algorithm": {"combine": "medium"}}, "Did you mean 'median'"),
        ({"algorithm": {"combine": 3}}, "must be the name of a combine rule in quotes, got 3"),
        ({"algorithm": {"combine": {"name": "krum"}}}, r"Its options go to \[combine\]"),
        ({"combine": {"name": "krum"}}, r"Name the combine rule in \[algorithm\]: combine = 'krum'"),
        ({"combine": {"byzantine": 0.1}}, "algorithm.combine = 'mean' has no options"),
        ({"algorithm": {"combine": "krum"}, "combine": {"bizantine": 0.1}}, "Did you mean 'byzantine'"),
        ({"algorithm": {"combine": "krum"}, "combine": {"byzantine": "few"}}, "combine.byzantine must be a number, got 'few'"),
        ({"algorithm": {"combine": "krum"}, "combine": {"byzantine": 0.6}}, "No rule works against a majority"),
        ({"algorithm": {"combine": "krum"}, "combine": 3}, r"\[combine\] must be a table"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(tables, said):
    with pytest.raises(InputError, match=said):
        load_config(tables)


def test_unknown_rules_name_those_that_exist():
    with pytest.raises(UnknownNameError, match="centered_clipping"):
        load_config({"algorithm": {"combine": "zeno"}})


@pytest.mark.parametrize("named", ["first", "rules_of_mine:First"])
def test_a_rule_of_somebody_else_is_found_by_its_entry_point_and_by_its_place(named, installed):
    installed("rules_of_mine", {"first": "rules_of_mine:First"}, RULE, group="sketchfed.combine_rules")
    tables = {"algorithm": {**WORK, "combine": named}, "combine": {"place": 1}, "data": {"clients": 3}}
    config = load_config(tables)
    assert config.algorithm.combine.rule().place == 1
    assert config.to_tables()["algorithm"]["combine"] == named
    assert len(run(tables).metrics) == WORK["rounds"]


def test_an_interrupted_run_with_a_rule_ends_as_if_it_had_never_stopped(tmp_path):
    class StoppedError(Exception):
        pass

    def stop(line):
        if line["round"] == 2:
            raise StoppedError

    tables = {"algorithm": {**WORK, "name": "iterative", "combine": "centered_clipping"}, "engine": {"checkpoint_seconds": 0.0}}
    with pytest.raises(StoppedError):
        run(tables, folder=tmp_path / "run", on_round=stop)
    assert torch.equal(resume(tmp_path / "run").weights, run(tables).weights)


def test_an_audit_does_not_take_a_robust_broadcast_for_a_mean():
    assert not isinstance(knowledge_of(FedAvg()), OnlyHeard)
    robust = load_config({"algorithm": {"name": "iterative", "combine": "median"}}).algorithm.resolved(100)
    known, plain = knowledge_of(robust), knowledge_of(Iterative().resolved(100))
    assert isinstance(known, OnlyHeard)
    assert type(known.known) is type(plain)
    assert known.told(None, None, None) is None
    assert known.between(None, None, None) is None
