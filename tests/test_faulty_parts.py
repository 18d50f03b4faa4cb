"""Parts of others that misbehave: the run ends with one sentence that names the part, and does not blame the steps."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from sketchfed import run
from sketchfed.algorithms import FedAvg
from sketchfed.combining import CombineRule
from sketchfed.errors import DivergedError, FaultyPartError, InputError
from sketchfed.parts import Registry, resolve
from sketchfed.runs import advice

SMALL = {"data": {"clients": 4}, "model": {"name": "logistic"}}


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    """FedAvg whose step has one fault."""

    fault: str = ""

    name = "broken"

    def server(self, state, packets, seed, *, noise=0.0):
        after, update = super().server(state, packets, seed, noise=noise)
        replica = after.replica
        faults = {
            "same round": lambda: (replace(after, replica=replace(replica, round=replica.round - 1)), update),
            "no pair": lambda: after,
            "no state": lambda: (replica, update),
            "raises": lambda: {}["mean"],
            "shape": lambda: (replace(after, replica=replace(replica, weights=replica.weights[:-1])), update),
            "NaN": lambda: (replace(after, replica=replace(replica, weights=replica.weights * torch.nan)), update),
            "update": lambda: (after, b"update"),
        }
        return faults[self.fault]()


@dataclass(frozen=True, kw_only=True)
class Unresolved(FedAvg):
    """FedAvg that forgets to choose its rate."""

    name = "unresolved"

    def resolved(self, *arguments, **options):
        return replace(super().resolved(*arguments, **options), global_rate=None)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("same round", "replica of round 0 where 1 should follow"),
        ("no pair", "returned State"),
        ("no state", "returned a pair of Replica and"),
        ("raises", "raised KeyError: 'mean'"),
        ("shape", r"shape \(649,\)"),
        ("NaN", "not finite"),
        ("update", "returned a pair of State and bytes"),
    ],
)
def test_a_step_of_a_foreign_algorithm_is_checked(fault, said):
    tables = SMALL | {"algorithm": {"name": "test_faulty_parts:Broken", "rounds": 2, "fault": fault}}
    with pytest.raises(FaultyPartError, match=said) as caught:
        run(tables)
    assert "test_faulty_parts.Broken" in str(caught.value)
    assert "Mend" in str(caught.value)
    assert "Steps" not in str(caught.value)


def test_an_algorithm_that_leaves_its_rate_open_is_refused_before_round_1():
    with pytest.raises(InputError, match="leaves global_rate open"):
        run(SMALL | {"algorithm": {"name": "test_faulty_parts:Unresolved", "rounds": 1}})


# Combine rules


@dataclass(frozen=True, kw_only=True)
class Odd(CombineRule):
    """A rule with one fault."""

    fault: str = ""

    name = "odd"
    summary = "wrong"
    source = "nobody"
    breakdown = "0"
    cost = "n·s"

    def _combined(self, rows, weights):
        if self.fault == "in place":
            rows *= 0
        faults = {"NaN": rows[0] * np.nan, "shape": rows[0, :-1], "nothing": None, "tensor": torch.zeros(5)}
        return {}["weights"] if self.fault == "raises" else faults.get(self.fault, rows.mean(0))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("NaN", "NaN or infinity for finite vectors"),
        ("shape", r"shape \(4,\)"),
        ("nothing", "returned NoneType"),
        ("tensor", "returned Tensor"),
        ("raises", "raised KeyError: 'weights'"),
        ("in place", "read-only"),
    ],
)
def test_what_a_rule_returns_is_checked(fault, said):
    rows = torch.ones(3, 5)
    with pytest.raises(FaultyPartError, match=said) as caught:
        Odd(fault=fault).combine(rows)
    assert "combine rule 'odd' (test_faulty_parts.Odd)" in str(caught.value)
    assert rows.equal(torch.ones(3, 5))


def test_a_run_with_such_a_rule_names_it():
    tables = SMALL | {
        "algorithm": {"name": "fedavg", "rounds": 1, "combine": "test_faulty_parts:Odd"},
        "combine": {"fault": "NaN"},
    }
    with pytest.raises(FaultyPartError, match="combine rule 'odd'"):
        run(tables)


# Names


def test_a_module_that_ends_the_program_is_refused_like_any_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text("raise SystemExit('go away')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="SystemExit: go away"):
        resolve("leaving:Thing", "codec")


def test_a_forgotten_dataclass_is_named():
    class Forgotten(FedAvg):
        gamma: float = 0.5

    registry = Registry("algorithm", {}, group="sketchfed.none", base=FedAvg)
    with pytest.raises(InputError, match=r"gamma.*@dataclass\(frozen=True, kw_only=True\)"):
        registry._checked(Forgotten, "algorithm 'forgotten'")


def test_a_reference_with_a_dot_for_the_colon_is_corrected():
    registry = Registry("codec", {"dense": int}, group="sketchfed.none")
    with pytest.raises(InputError, match=r"Did you mean 'my_package\.codecs:Halves'"):
        registry["my_package.codecs.Halves"]


# Advice


def test_advice_on_logistic_regression_does_not_start_where_the_loss_is_flat():
    """To add the same number to all logits changes nothing, so all ones is a direction without curvature."""
    with pytest.raises(DivergedError) as caught:
        run(SMALL | {"algorithm": {"name": "fedavg", "rounds": 3, "local_rate": 1e30}})
    allowed = float(str(caught.value).partition("Theory allows local_rate = ")[2].split()[0])
    assert 1e-5 < allowed < 10


def test_advice_never_hides_the_error(monkeypatch):
    monkeypatch.setattr(advice, "_alpha", lambda *_: {}["alpha"])
    with pytest.raises(DivergedError, match="Try a tenth"):
        run(SMALL | {"algorithm": {"name": "fedavg", "rounds": 3, "local_rate": 1e30}})
