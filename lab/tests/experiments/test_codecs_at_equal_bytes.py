"""Budgets that hold, configurations that can be run, one rule of tuning, and a table and pictures of what came of it."""

from dataclasses import replace

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.algorithms import Change, RoundContext
from sketchfed.codecs import CODECS
from sketchfed.config import load_config
from sketchfed.errors import UnknownNameError
from sketchfed.wire import pack
from sketchfed_lab.experiments import codecs_at_equal_bytes as experiment
from sketchfed_lab.experiments import codecs_at_equal_bytes_report as report
from sketchfed_lab.experiments import make_settings, recorded_settings

SETTINGS = make_settings(experiment, recorded_settings("codecs-at-equal-bytes"))
SMALL = replace(SETTINGS, hidden=8, inverse_budgets=[40, 64], rates=[1.0, 2.0], largest_rate=8.0)


def test_every_codec_takes_part():
    assert {how.get("codec") for how in experiment.METHODS.values()} >= CODECS.keys() - {"dense"}
    assert set(SETTINGS.methods) == experiment.METHODS.keys()
    with pytest.raises(UnknownNameError, match=r"no method named 'topk'"):
        experiment.run(replace(SMALL, methods=["topk"]), None)


@pytest.mark.parametrize("inverse", SMALL.inverse_budgets)
@pytest.mark.parametrize("method", experiment.METHODS)
def test_a_reply_has_at_most_the_bytes_of_its_budget_and_not_many_less(method, inverse):
    """Of a normal change, on which the number that `wangni` sends is random, with room for updates that take more."""
    sent = experiment.choice(SMALL, method, inverse)
    arm = experiment.arm(SMALL, "dirichlet", method, inverse, sent, rate=0.5, seed=3, rounds=7, validation=0.0)
    config = load_config(arm.tables).completed(dim=SMALL.dim, sizes=[5] * SMALL.clients)
    assert (config.algorithm.rounds, config.algorithm.global_rate, config.data.options["concentration"]) == (7, 0.5, 0.3)
    change = torch.randn(SMALL.dim, generator=torch.Generator().manual_seed(1))
    packet, _ = config.algorithm.client(Change(change), None, RoundContext(round=2, seed=PublicSeed(1), client=77))
    budget, used = 4 * SMALL.dim // inverse, len(pack(packet.stamped(round=2)))
    slack = {"wangni": 0.25 * budget, "fetchsgd": 24}.get(method, 12)
    assert budget - slack <= used <= budget


LOSSES = ([0.9, 0.8, 0.3], [0.5, 0.45, 0.4])


def row(arm, loss: float) -> dict:
    """A result, without having run."""
    curve = [[number, loss, 1 - loss / 3, 400 * number, 900 * number, 90] for number in (5, 10)]
    return {"key": dict(arm.key), "diverged": loss > 2, "curve": curve if loss < 2 else [], "seconds": 1.0}


def test_rates_are_those_of_the_least_loss_and_the_grid_grows_while_its_end_is_best(tmp_path, monkeypatch):
    best = {("iid", "dense", 1): 1.0, ("iid", "rand_k", 40): 4.0, ("iid", "top_k, feedback", 40): 64.0}
    best |= {("dirichlet", *where[1:]): 1.0 for where in best}
    asked = []

    def fake(arms, path, **how):
        asked.append(len(arms))
        return [row(arm, abs(arm.key["rate"] / best[tuple(arm.key[part] for part in experiment.WHERE)] - 1)) for arm in arms]

    monkeypatch.setattr(experiment, "run_arms", fake)
    sent = {where[1:]: {"size": 5, "bits": 4} for where in best}
    found = experiment.tuned(SMALL, sent, tmp_path / "tuning.jsonl")
    assert found == best | {("iid", "top_k, feedback", 40): 8.0}
    assert asked == [12, 2, 2]


def test_a_lucky_last_score_is_not_enough():
    jumping, steady = ({"diverged": False, "curve": [[5 * i, loss] for i, loss in enumerate(losses)]} for losses in LOSSES)
    assert experiment.quality(steady) > experiment.quality(jumping)
    assert experiment.quality({"diverged": True, "curve": [[5, 0.1]]}) == -float("inf")


def test_what_was_measured_becomes_a_table_and_pictures(tmp_path, monkeypatch):
    few = replace(SMALL, methods=["sketched", "iterative", "sign, feedback", "fetchsgd"], seeds=[0, 1], rates=[0.5, 1.0])
    monkeypatch.setattr(
        experiment,
        "run_arms",
        lambda arms, path, **how: [row(arm, 0.4 if arm.key["method"] != "fetchsgd" else 3.0) for arm in arms],
    )
    experiment.run(few, tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert len(table.splitlines()) == 2 + 2 * (1 + 4 * 2)
    assert "| iid | 1/64 | sign, feedback |" in table
    assert "| dirichlet | 1/40 | fetchsgd |" in table
    assert "diverged" in table
    for picture in ("figure.svg", "curves.svg"):
        assert (tmp_path / picture).read_text().startswith("<svg")
    assert report.HEADINGS[5] == "accuracy"
