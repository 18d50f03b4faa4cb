"""The theory of how fast nodes agree holds in simulation, and the experiment gossips as runs do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sketchfed import run
from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed_lab.experiments import gossip_rate as experiment
from sketchfed_lab.experiments import gossip_rate_report as report
from sketchfed_lab.experiments import gossip_theory as theory
from sketchfed_lab.experiments import make_settings, recorded_settings

SETTINGS = make_settings(experiment, recorded_settings("gossip-rate"))
SMALL = replace(SETTINGS, graphs={"ring": [6], "complete": [4]}, dim=200, inverse_ratios=[10], rounds=40, seeds=[0, 1])


class Vector(nn.Module):
    """A model that is one vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(dim))


def placed(model, data, context):
    """Round 1 moves a node to its start, and other rounds leave it where it is, at a minimum of its loss."""
    (0 * model.values).sum().backward()
    if context.round == 1:
        with torch.no_grad():
            model.values.copy_(data)


@pytest.mark.parametrize("arm", ["dense", "models", "differences, γ = p"])
def test_nodes_gossip_as_they_do_in_a_run_whose_local_work_is_nothing(arm):
    dim, nodes, rounds = 60, 5, 4
    start = torch.randn(nodes, dim, generator=torch.Generator().manual_seed(0))
    weights = experiment.graph_of("ring", nodes)[1]
    made = experiment.made(arm, {"dim": dim, "family": "balanced"}, nodes, np.linalg.eigvalsh(weights), 0.1)
    tables = {
        "algorithm": {"name": made.name, "rounds": rounds, "mixing": made.mixing_rate},
        "graph": {"name": "ring"},
        "sketch": {"name": "balanced", "size": 6},
    }
    tables |= {} if arm == "models" else {"codec": {"name": "dense" if arm == "dense" else "sketched"}}
    if arm == "dense":
        del tables["sketch"]
    ran = run(tables, model=Vector(dim), clients=list(start), train=placed)
    found = experiment.averaged(made, start, weights, load_config(tables).shared_seed, rounds=rounds)
    assert [line["consensus"] for line in ran.metrics] == pytest.approx(found[1:], rel=1e-5)


@pytest.mark.parametrize(("eigenvalue", "step"), [(0.9, 0.1), (0.0, 0.05), (-0.3, 0.08)])
def test_the_second_moments_of_differences_are_those_of_random_projections(eigenvalue, step):
    """The mean over 400 draws of five rounds is within 5 % of the recursion.

    The relative deviation of ‖y‖² in a draw was at most 0.12, so that of the mean is below 0.006.
    """
    dim, share = 50, 0.2
    generator = torch.Generator().manual_seed(0)
    matrix, moments = theory.moments(eigenvalue, share, step), np.array([0.0, 0.0, 1.0])
    total = 0.0
    for _ in range(400):
        told, owed = torch.zeros(dim), torch.ones(dim) / dim**0.5
        for _ in range(5):
            rows = torch.linalg.qr(torch.randn(dim, int(share * dim), generator=generator))[0]
            model, told = told + owed, told + rows @ (rows.T @ owed)
            model = model - step * (1 - eigenvalue) * told
            owed = model - told
        total += float(model.square().sum()) / 400
    h, cross, e = np.linalg.matrix_power(matrix, 5) @ moments
    assert total == pytest.approx(h + 2 * cross + e, rel=0.05)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("lowest", [-0.9, -1 / 3, 0.0])
def test_beyond_the_largest_step_disagreement_grows(share, lowest):
    step = theory.largest_step(lowest, share)
    assert theory.differences_rate(lowest, share, 0.99 * step) < 1 < theory.differences_rate(lowest, share, 1.01 * step)


def test_without_a_loss_all_rates_are_that_of_dense_gossip():
    for eigenvalue in (0.9, 0.2, -0.5):
        assert theory.models_rate(eigenvalue, 1.0, 1.0) == pytest.approx(theory.dense_rate(eigenvalue))
        assert theory.differences_rate(eigenvalue, 1.0, 1.0) == pytest.approx(theory.dense_rate(eigenvalue))


def test_the_best_step_is_better_than_its_neighbours_and_the_papers_keeps_its_bound():
    eigenvalues = np.linalg.eigvalsh(experiment.graph_of("ring", 8)[1])
    best, paper, bound = theory.best_step(eigenvalues, 0.1), theory.paper_step(eigenvalues, 0.1), 1 - eigenvalues[-2]

    def worst(step):
        return max(theory.differences_rate(each, 0.1, step) for each in eigenvalues[:-1])

    assert worst(best) < min(worst(0.8 * best), worst(1.25 * best))
    assert worst(best) < worst(paper) < theory.paper_bound(bound, 0.1)


def test_the_experiment_measures_every_arm_and_compares_it_with_theory(tmp_path):
    experiment.run(SMALL, tmp_path)
    table = (tmp_path / "table.md").read_text().splitlines()[2:]
    assert len(table) == 2 * len(experiment.STEPS)
    assert "one round" in table[0]
    ratios = [float(line.split(" | ")[8].split()[0]) for line in table if "| ring | 6 | " in line and "models" in line]
    assert ratios == pytest.approx([1.0], abs=0.25)
    assert "</svg>" in (tmp_path / "figure.svg").read_text()
    assert "measured/theory" in (tmp_path / "findings.md").read_text()


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UnknownNameError, match="no graph named 'x'"):
        replace(SETTINGS, graphs={"x": [3]})
    with pytest.raises(InputError, match="must be a multiple"):
        replace(SETTINGS, dim=1001)


def test_speed_is_the_logarithm_of_a_rounds_factor():
    assert report.speed(0.5) == pytest.approx(0.693, abs=1e-3)
    assert report.speed(1.1) < 0
    assert report.speed(1e-17) == float("inf")
