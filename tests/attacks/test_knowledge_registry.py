"""Whose messages are known to attacks: algorithms of sketchfed, and those whose authors say what they reveal."""

from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from sketchfed.algorithms import ALGORITHMS, FedAvg
from sketchfed.attacks.knowledge import ANNOUNCED, KNOWLEDGE, Knowledge, is_known, knowledge_of
from sketchfed.attacks.knowledge.fedavg import FedAvgKnowledge
from sketchfed.cli import app
from sketchfed.errors import InputError

MEAN = """
from dataclasses import dataclass

from sketchfed.algorithms import FedAvg
from sketchfed.attacks.knowledge import Knowledge


@dataclass(frozen=True, kw_only=True)
class Mean(FedAvg):
    name = "mean"


@dataclass(frozen=True, kw_only=True)
class Median(Mean):
    name = "median"


class MeanKnowledge(Knowledge[Mean]):
    def heard(self, packet, dim, context):
        return None

    def told(self, update, replica, seed):
        return None

    def between(self, before, after, seed):
        return None


class Unfinished(Knowledge[Mean]):
    def heard(self, packet, dim, context):
        return None
"""


@dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    name = "own"


@pytest.fixture
def mean(installed):
    """An algorithm that an installed package announces."""
    installed("means", {"mean": "means:Mean", "median": "means:Median"}, MEAN, group="sketchfed.algorithms")
    return ALGORITHMS["mean"]


def announce(installed, package: str, name: str, value: str) -> None:
    installed(package, {name: value}, "", group="sketchfed.knowledge")


def test_all_algorithms_of_sketchfed_are_known():
    """Those of graphs have no server's replies; what their messages reveal is in `attacks.neighbours`."""
    for kind in ALGORITHMS.built_in.values():
        assert not kind.served or issubclass(KNOWLEDGE[kind], Knowledge)


def test_a_package_announces_what_its_algorithm_reveals(mean, installed):
    assert not is_known(mean())
    announce(installed, "said", "mean", "means:MeanKnowledge")
    assert is_known(mean())
    found = knowledge_of(mean())
    assert (type(found).__qualname__, found.algorithm) == ("MeanKnowledge", mean())


def test_what_is_announced_is_listed_with_its_package(mean, installed):
    assert "knowledge" not in CliRunner().invoke(app, ["list"]).stdout
    announce(installed, "said", "mean", "means:MeanKnowledge")
    shown = CliRunner().invoke(app, ["list", "knowledge"], env={"COLUMNS": "200"}).stdout
    assert "said 1.2 (entry point)" in shown


def test_no_class_inherits_what_is_announced(mean, installed):
    announce(installed, "said", "mean", "means:MeanKnowledge")
    assert not is_known(ALGORITHMS["median"]())
    with pytest.raises(InputError, match="nobody has said what the messages of algorithm 'median' reveal"):
        knowledge_of(ALGORITHMS["median"]())


def test_without_an_entry_nobody_has_said_and_the_remedy_is_named(mean):
    with pytest.raises(InputError, match=r"algorithm 'mean' reveal, .* entry point of sketchfed\.knowledge named 'mean'"):
        knowledge_of(mean())
    with pytest.raises(InputError, match=r"algorithm 'own' reveal, .*knowledge\.KNOWLEDGE\[Own\]"):
        knowledge_of(Own())


def test_a_module_of_ones_own_adds_its_entry_itself(monkeypatch):
    monkeypatch.setitem(KNOWLEDGE, Own, FedAvgKnowledge)
    assert is_known(Own())
    assert type(knowledge_of(Own())) is FedAvgKnowledge


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("means:Unfinished", "is not finished: Unfinished lacks between, told"),
        ("means:Mean", r"is not a subclass of sketchfed\.attacks\.knowledge\.base\.Knowledge"),
        ("means:Nothing", "cannot be loaded: AttributeError"),
    ],
)
def test_an_entry_that_cannot_be_used_says_why(mean, installed, value, reason):
    announce(installed, "said", "mean", value)
    with pytest.raises(InputError, match=f"knowledge 'mean' of said 1.2 .*{reason}"):
        knowledge_of(mean())


def test_what_sketchfed_says_of_its_own_algorithms_is_not_replaced(mean, installed):
    announce(installed, "said", "fedavg", "means:MeanKnowledge")
    assert type(knowledge_of(FedAvg())) is FedAvgKnowledge
    assert "fedavg" in ANNOUNCED.names()
