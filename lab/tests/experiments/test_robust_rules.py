"""The grid is complete and can be run, one case at a time, and what was measured becomes tables and a picture."""

from dataclasses import replace

import pytest

from sketchfed.combining import COMBINE_RULES
from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.runs import Case
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments import robust_rules as experiment
from sketchfed_lab.faults.byzantine import ATTACKS

SETTINGS = make_settings(experiment, recorded_settings("robust-rules"))
RATES = dict.fromkeys(experiment.places(SETTINGS), 1.0)


def test_every_rule_and_every_attack_takes_part():
    assert set(SETTINGS.rules) == set(COMBINE_RULES)
    assert set(SETTINGS.attacks) == set(ATTACKS)
    for setting, kind in (("rules", "rule"), ("attacks", "attack"), ("transports", "transport"), ("spreads", "spread")):
        with pytest.raises(UnknownNameError, match=f"no {kind} named 'x'"):
            replace(SETTINGS, **{setting: ["x"]})
    with pytest.raises(InputError, match=r"below 0\.5"):
        replace(SETTINGS, shares=[0.5])


def test_every_case_is_a_run_that_is_not_refused():
    """The rule is told the share of attackers; all seeds are those of the main share and of no attackers."""
    cases = experiment.cases(SETTINGS, RATES)
    assert len(cases) == 3_096
    assert len({case.name for case in cases}) == len(cases)
    for case in cases[:: len(cases) // 60]:
        config = load_config(case.tables).completed(dim=50_890, sizes=[3_000] * SETTINGS.clients)
        told = config.algorithm.combine.options.get("byzantine")
        assert told in (None, case.key["share"] or 0.2)
        assert (config.algorithm.name == "iterative") == (case.key["ratio"] < 1)
    assert {case.key["share"] for case in cases if case.key["seed"] == 2} == {0.0, 0.2}


@pytest.mark.parametrize("attack", ["none", "-9 times", "backdoor"])
def test_a_case_trains_with_its_attackers(attack):
    """On digits, with the same tables otherwise: -9 times of a fifth ends a mean."""
    small = replace(SETTINGS, data=["digits"], clients=10, hidden=16, rounds=10)
    case = experiment.arm(
        small, ("clear", "digits", "iid", 1.0, "mean"), rate=1.0, seed=0, attack=attack, share=0.2 if attack != "none" else 0.0
    )
    case = Case(key=case.key, tables=case.tables)
    row = experiment.attacked(case)
    assert [number for number, _ in row["curve"]] == [2, 4, 6, 8, 10]
    final = row["curve"][-1][1]
    assert final < 0.4 if attack == "-9 times" else final > 0.5
    assert ("success" in row) == (attack == "backdoor")
    assert not row["diverged"]


def test_rates_of_sketches_are_relative_to_the_usual_ones():
    assert experiment.sketched_rates([0.5, 1.0], 0.01) == pytest.approx([0.2, 0.4])
    assert experiment.sketched_rates([0.5, 1.0], 0.1) == pytest.approx([0.5, 1.0])


def test_what_was_measured_becomes_tables_and_a_picture(tmp_path, monkeypatch):
    few = replace(SETTINGS, data=["mnist"], rules=["mean", "krum"], attacks=["none", "alie", "backdoor"], seeds=[0, 1])

    def fake(arms, path, **how):
        rows = []
        for case in arms:
            value = 0.9 - (0.5 if case.key["attack"] == "alie" and case.key["rule"] == "mean" else 0.0)
            row = {"key": dict(case.key), "curve": [[25, value]], "diverged": False, "seconds": 1.0, "refused": 0}
            rows.append(row | ({"success": 0.25} if case.key["attack"] == "backdoor" else {}))
        return rows

    monkeypatch.setattr(experiment, "run_arms", fake)
    experiment.run(few, tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert "| clear | mnist | IID | 1/10 | 20% | alie | 0.400 ± 0.000 | 0.900 ± 0.000 |" in table
    assert "| clear | mnist | IID | 1 | 40% | 0.250 | 0.250 |" in (tmp_path / "backdoor.md").read_text()
    assert "| 1/100 | 20% | 25.0 (50) | 0.0 (0) |" in (tmp_path / "findings.md").read_text()
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
