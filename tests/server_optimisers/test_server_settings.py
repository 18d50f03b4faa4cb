"""The optimiser that a configuration names, its options, and what becomes of both in files, labels, runs and audits."""

import tomllib
from dataclasses import dataclass

import pytest
import torch

from sketchfed import run
from sketchfed.algorithms import Dbcl, Dome, FedAvg, FetchSgd, Iterative, ServerSettings
from sketchfed.attacks.knowledge import mean_change
from sketchfed.config import load_config
from sketchfed.errors import FaultyPartError, InputError
from sketchfed.runs import resume
from sketchfed.server_optimisers import FedAdam, FedYogi, ServerOptimiser

ADAM = {"algorithm": {"server": "adam"}, "server": {"beta1": 0.5, "adaptivity": 0.01}}
WORK = {"rounds": 4, "local_steps": 2, "local_rate": 0.5}
SIGNS = """
from dataclasses import dataclass
import torch
from sketchfed.server_optimisers import ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class Signs(ServerOptimiser):
    scale: float = 1.0

    name, summary, source, default_rate = "signs", "signs of changes", "here", 0.02

    def begin(self, dim):
        return {}

    def _step(self, change, moments):
        return torch.sign(change) * self.scale, {}
"""


def test_an_optimiser_is_named_in_algorithm_and_its_options_in_a_table_of_their_own():
    config = load_config(ADAM)
    assert config.algorithm.server_optimiser.optimiser() == FedAdam(beta1=0.5, adaptivity=0.01)
    assert config.label == "fedavg server adam"
    changed = load_config({"algorithm": {"name": "iterative"}}, ["algorithm.server=yogi", "server.beta2=0.9"])
    assert changed.label == "iterative srht 1/10 server yogi"
    assert changed.algorithm.server_optimiser.optimiser() == FedYogi(beta2=0.9)


@pytest.mark.parametrize("tables", [ADAM, {"algorithm": {"server": "adagrad"}}, {"algorithm": {"server": "sgd"}}, {}])
def test_settings_survive_as_tables_and_as_a_file(tables):
    config = load_config(tables)
    full = config.completed(dim=100, sizes=[10] * 20)
    for each in (config, full):
        assert load_config(each.to_tables()) == load_config(tomllib.loads(each.to_toml())) == each


def test_options_that_are_not_given_are_filled_in():
    named = load_config({"algorithm": {"server": "yogi"}}).completed(dim=100, sizes=[10] * 20)
    assert named.to_tables()["server"] == {"beta1": 0.9, "adaptivity": 0.001, "beta2": 0.99}
    assert named.to_tables()["algorithm"]["server"] == "yogi"


def test_the_default_leaves_no_trace_in_a_file():
    """Folders and agreements without an optimiser have the digests that they had before there were any."""
    for tables in ({}, {"algorithm": {"server": "sgd"}}):
        written = load_config(tables).completed(dim=100, sizes=[10] * 20).to_tables()
        assert "server" not in written
        assert not {"server", "server_optimiser"} & written["algorithm"].keys()


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"algorithm": {"server": 3}}, "must be the name of a server optimiser in quotes, got 3"),
        ({"algorithm": {"server": {"name": "adam"}}}, r"Its options go to \[server\]"),
        ({"server": {"name": "adam"}}, r"Name the server optimiser in \[algorithm\]: server = 'adam'"),
        ({"algorithm": {"server_optimiser": "adam"}}, "no key in .algorithm. named 'server_optimiser'.*server"),
        ({"algorithm": {"server": "adam"}, "server": {"beta1": "much"}}, "server.beta1 must be a number, got 'much'"),
        ({"algorithm": {"server": "adam"}, "server": 3}, r"\[server\] must be a table"),
    ],
)
def test_tables_that_cannot_work_are_refused_with_the_remedy(tables, said):
    with pytest.raises(InputError, match=said):
        load_config(tables)


@pytest.mark.parametrize(
    ("kind", "reason"), [(FetchSgd, "errors of many rounds in a few coordinates"), (Dome, "takes Adam steps already")]
)
def test_algorithms_with_steps_of_their_own_refuse_with_the_reason(kind, reason):
    with pytest.raises(InputError, match=f"does not go with algorithm '{kind.name}': .*{reason}.* Remove server, or choose"):
        kind(server_optimiser=ServerSettings(name="adam"))


@pytest.mark.parametrize("named", ["signs", "steps_of_mine:Signs"])
def test_an_optimiser_of_somebody_else_is_found_by_its_entry_point_and_by_its_place(named, installed):
    installed("steps_of_mine", {"signs": "steps_of_mine:Signs"}, SIGNS, group="sketchfed.server_optimisers")
    tables = {"algorithm": {**WORK, "server": named}, "server": {"scale": 0.5}, "data": {"clients": 3}}
    made = run(tables)
    assert made.config.algorithm.global_rate == 0.02
    assert made.config.to_tables()["algorithm"]["server"] == named
    assert len(made.metrics) == WORK["rounds"]


def test_an_interrupted_run_ends_as_if_it_had_never_stopped(tmp_path):
    """Few clients take part, so some come back with moments of an earlier round."""

    class StoppedError(Exception):
        pass

    def stop(line):
        if line["round"] == 2:
            raise StoppedError

    few = {**WORK, "name": "iterative", "server": "yogi", "participation": 0.2}
    tables = {"algorithm": few, "sketch": {"ratio": 0.5}, "engine": {"checkpoint_seconds": 0.0}}
    with pytest.raises(StoppedError):
        run(tables, folder=tmp_path / "run", on_round=stop)
    assert torch.equal(resume(tmp_path / "run").weights, run(tables).weights)


def test_an_audit_does_not_take_an_adaptive_step_for_a_mean_change():
    for algorithm in (FedAvg(), Iterative()):
        resolved = algorithm.resolved(10)
        before = resolved.begin(torch.zeros(10)).replica
        after = type(before)(round=1, weights=torch.ones(10))
        assert mean_change(resolved, before, after) is not None
        adaptive = type(algorithm)(server_optimiser=ServerSettings(name="adam")).resolved(10)
        assert mean_change(adaptive, before, after) is None
    assert Dbcl().moves_by_mean
    assert not Dbcl(server_optimiser=ServerSettings(name="adam")).moves_by_mean


# Optimisers with a fault


@dataclass(frozen=True, kw_only=True)
class Odd(ServerOptimiser):
    """An optimiser with one fault."""

    fault: str = ""

    name, summary, source, default_rate = "odd", "wrong", "nobody", 0.1

    def begin(self, dim):
        return {"kept": torch.zeros(dim)}

    def _step(self, change, moments):
        after = dict(moments)
        faults = {
            "NaN": lambda: (change * torch.nan, after),
            "shape": lambda: (change[:-1], after),
            "type": lambda: (change.double(), after),
            "no tensor": lambda: (0.0, after),
            "no pair": lambda: change,
            "forgets": lambda: (change, {}),
            "raises": lambda: (change, after["mean"]),
            "random": lambda: (torch.rand(len(change)), after),
        }
        return faults[self.fault]()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("NaN", "returned NaN or infinity for numbers of at most 1"),
        ("shape", r"returned \(4,\) of torch.float32 as 'step', not \(5,\)"),
        ("type", "torch.float64"),
        ("no tensor", "returned float as 'step'"),
        ("no pair", "returned Tensor, not a step and its moments"),
        ("forgets", r"was given the moments \['kept'\] and returned \[\]"),
        ("raises", "raised KeyError: 'mean'"),
    ],
)
def test_what_an_optimiser_returns_is_checked(fault, said):
    odd = Odd(fault=fault)
    with pytest.raises(FaultyPartError, match=said) as caught:
        odd.step(torch.ones(5), odd.begin(5))
    assert "server optimiser 'odd'" in str(caught.value)


@pytest.mark.parametrize(("fault", "said"), [("NaN", "NaN or infinity"), ("random", "gave other weights the second time")])
def test_a_run_with_such_an_optimiser_names_it(fault, said):
    tables = {
        "data": {"clients": 4},
        "model": {"name": "logistic"},
        "algorithm": {"name": "fedavg", "rounds": 1, "server": f"{__name__}:Odd"},
        "server": {"fault": fault},
    }
    with pytest.raises(FaultyPartError, match=f"server optimiser 'odd'.*{said}"):
        run(tables)
