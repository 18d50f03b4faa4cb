"""Arms that differ in the sketch only, with as many numbers in each packet, and one rule of tuning for all."""

from dataclasses import replace

import pytest

import sketchfed
from sketchfed_lab.experiments import layers_at_equal_bytes as experiment
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments.layers_at_equal_bytes import ARMS, arm, best

SETTINGS = make_settings(experiment, recorded_settings("layers-at-equal-bytes"))


@pytest.mark.parametrize("inverse", SETTINGS.inverse_ratios)
def test_all_arms_send_the_same_bytes_and_differ_in_the_sketch_only(inverse):
    short = replace(SETTINGS, rounds=1)
    cases = [arm(short, name, inverse, local=0.1, step=1.0, seed=3, validation=0.0) for name in ARMS]
    sent = [sketchfed.run(dict(case.tables)).metrics[-1]["uplink_bytes"] for case in cases]
    assert len(set(sent)) == 1
    others = [{key: value for key, value in case.tables.items() if key != "sketch"} for case in cases]
    assert all(each == others[0] for each in others)


def row(name, local, seed, loss):
    key = {"arm": name, "inverse_ratio": 20, "local_rate": local, "global_rate": 1.0, "seed": seed}
    return {"key": key, "diverged": loss is None, "curve": [] if loss is None else [[10, loss, 0.9, 1, 1, 1]]}


def test_rates_are_chosen_by_the_mean_loss_and_diverged_runs_never():
    rows = [row("both", 0.1, 1, 0.2), row("both", 0.3, 1, 0.1), row("both", 0.1, 2, 0.2), row("both", 0.3, 2, 0.4)]
    rows += [row("one sketch", 0.1, 1, 0.2), row("one sketch", 0.3, 1, 0.1), row("one sketch", 0.3, 2, None)]
    assert best(rows) == {(20, "both"): (0.1, 1.0), (20, "one sketch"): (0.1, 1.0)}
