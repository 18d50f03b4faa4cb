"""The grid is complete and can be run, one case at a time, and what was measured becomes tables and a picture."""

from dataclasses import replace

import pytest

from sketchfed import run
from sketchfed.combining import COMBINE_RULES
from sketchfed.config import load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.runs import Case
from sketchfed_lab.experiments import make_settings, recorded_settings
from sketchfed_lab.experiments import robust_rules as experiment
from sketchfed_lab.experiments import robust_rules_report as report
from sketchfed_lab.experiments.robust_rules_pairs import pairs, summary
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
        replace(SETTINGS, shares=SETTINGS.shares | {"groups": [0.5]})
    with pytest.raises(InputError, match="transport 'groups' needs shares of attackers and seeds"):
        replace(SETTINGS, seeds={"clear": [0]})
    with pytest.raises(InputError, match="setting 'shares' must be a table of lists of numbers"):
        make_settings(experiment, recorded_settings("robust-rules") | {"shares": [0.1]})


def test_every_case_is_a_run_that_is_not_refused():
    """The rule is told the share of attackers; all seeds are those of the main share and of no attackers."""
    cases = experiment.cases(SETTINGS, RATES)
    clear, groups = ([case for case in cases if case.key["transport"] == name] for name in ("clear", "groups"))
    assert (len(clear), len(groups)) == (3_096, 1_800)
    assert len({case.name for case in cases}) == len(cases)
    for case in clear[:: len(clear) // 60] + groups[:: len(groups) // 60]:
        config = load_config(case.tables).completed(dim=500, sizes=[30] * SETTINGS.clients)
        config.protection(dim=500, sizes=[30] * SETTINGS.clients)
        assert (config.algorithm.name == "iterative") == (case.key["ratio"] < 1)
        assert (config.secure is None) == (case.key["transport"] == "clear")
    assert {case.key["share"] for case in clear if case.key["seed"] == 2} == {0.0, 0.2}
    assert {(case.key["share"], case.key["seed"]) for case in groups} == {(0.0, 0), (0.1, 0), (0.2, 0), (0.4, 0)}


@pytest.mark.parametrize(
    ("transport", "rule", "share", "told"),
    [
        ("clear", "trimmed_mean", 0.4, 0.4),
        ("clear", "krum", 0.4, 0.4),
        ("clear", "krum", 0.0, 0.2),
        ("groups", "trimmed_mean", 0.1, 0.4),
        ("groups", "trimmed_mean", 0.0, 0.4),
        ("groups", "krum", 0.1, 0.33),
        ("groups", "median", 0.1, None),
    ],
)
def test_a_rule_is_told_the_largest_share_of_clients_whose_packets_are_spoiled(transport, rule, share, told):
    """20 clients make groups of 4, 4, 3, 3, 3 and 3. Two attackers spoil those of 8 clients. Krum takes less than 1/3."""
    case = experiment.arm(SETTINGS, (transport, "mnist", "iid", 0.1, rule), rate=1.0, seed=0, share=share)
    assert case.tables.get("combine", {}).get("byzantine") == (None if told is None else pytest.approx(told))


SMALL = replace(SETTINGS, data=["digits"], clients=10, hidden=16, rounds=10)


def small_case(transport: str, attack: str) -> Case:
    """On digits, with the same tables otherwise: two of ten clients attack in the clear, and one of three groups is spoiled."""
    share = 0.0 if attack == "none" else 0.2 if transport == "clear" else 0.1
    return experiment.arm(SMALL, (transport, "digits", "iid", 1.0, "mean"), rate=1.0, seed=0, attack=attack, share=share)


@pytest.mark.parametrize("transport", SETTINGS.transports)
@pytest.mark.parametrize("attack", ["none", "-9 times", "backdoor"])
def test_a_case_trains_with_its_attackers(attack, transport, caplog):
    """-9 times ends a mean. A secure sum is clipped, and the server's warnings are not shown."""
    row = experiment.attacked(small_case(transport, attack))
    assert [number for number, _ in row["curve"]] == [2, 4, 6, 8, 10]
    final = row["curve"][-1][1]
    assert final < 0.4 if attack == "-9 times" else final > 0.5
    assert ("success" in row) == (attack == "backdoor")
    assert not row["diverged"]
    assert not caplog.text


@pytest.mark.parametrize("transport", SETTINGS.transports)
def test_without_attackers_a_case_is_the_run_of_its_tables(transport):
    """Secure sums round at random, so one of 360 test images may differ."""
    case = small_case(transport, "none")
    assert experiment.attacked(case)["curve"][-1][1] == pytest.approx(run(dict(case.tables)).accuracy, abs=1.5 / 360)


def test_rates_of_sketches_are_relative_to_the_usual_ones():
    assert experiment.sketched_rates([0.5, 1.0], 0.01) == pytest.approx([0.2, 0.4])
    assert experiment.sketched_rates([0.5, 1.0], 0.1) == pytest.approx([0.5, 1.0])


def test_what_was_measured_becomes_tables_and_a_picture(tmp_path, monkeypatch):
    few = replace(SETTINGS, data=["mnist"], rules=["mean", "krum"], attacks=["none", "alie", "backdoor"])
    few = replace(few, seeds={"clear": [0, 1], "groups": [0]})

    def fake(arms, path, **how):
        rows = []
        for case in arms:
            value = 0.9 - (0.5 if case.key["attack"] == "alie" and case.key["rule"] == "mean" else 0.0)
            row = {"key": dict(case.key), "curve": [[25, value]], "diverged": False, "seconds": 1.0, "refused": 0}
            rows.append(row | ({"success": 0.25} if case.key["attack"] == "backdoor" else {}))
        return rows

    monkeypatch.setattr(experiment, "run_arms", fake)
    experiment.run(few, tmp_path)
    table, findings = ((tmp_path / name).read_text() for name in ("table.md", "findings.md"))
    assert "| clear | mnist | IID | 1/10 | 20% | alie | 0.400 ± 0.000 | 0.900 ± 0.000 |" in table
    assert "| groups | mnist | IID | 1/10 | 10% | alie | 0.400 | 0.900 |" in table
    assert "| clear | mnist | IID | 1 | 40% | 0.250 | 0.250 |" in (tmp_path / "backdoor.md").read_text()
    assert "| clear | 1/100 | 20% | 25.0 (50) | 0.0 (0) |" in findings
    assert "| groups | 1/100 | 10% | 25.0 (50) | 0.0 (0) |" in findings
    assert "- groups, 10% attackers, 1/100: sketching helps nowhere that shows; it hurts nowhere that shows." in findings
    picture = (tmp_path / "figure.svg").read_text()
    assert picture.startswith("<svg")
    rows = [f"{where}, {share}%" for where in ("in the clear", "secure groups") for share in (10, 20, 40)]
    assert all(f"{row} attack, size 1/10" in picture for row in rows)


def row_of(accuracy: float, *, ratio: float, attack: str, seed: int, rule: str = "mean") -> dict:
    where = {"transport": "groups", "data": "mnist", "spread": "iid", "ratio": ratio, "rule": rule, "seed": seed}
    key = where | {"attack": attack, "share": 0.0 if attack == "none" else 0.1}
    return {"key": key, "curve": [[20, accuracy]], "diverged": False}


def test_pairs_are_net_of_what_sketching_costs_without_attackers_and_clusters_are_counted():
    """Sketching costs 2 points, and attackers cost a dense run 10 points and a sketched one 4, 5 and 6 by seed."""
    rows = []
    for seed in range(3):
        for rule in ("mean", "krum"):
            rows += [row_of(0.9, ratio=1.0, attack="none", seed=seed, rule=rule)]
            rows += [row_of(0.8, ratio=1.0, attack="ipm", seed=seed, rule=rule)]
            rows += [row_of(0.88, ratio=0.1, attack="none", seed=seed, rule=rule)]
            rows += [row_of(0.84 - 0.01 * seed, ratio=0.1, attack="ipm", seed=seed, rule=rule)]
    found = [pair for pair in pairs(rows, report.accuracy) if pair.attack == "ipm"]
    assert [pair.difference for pair in found] == pytest.approx([4, 4, 3, 3, 2, 2])
    assert [pair.net for pair in found] == pytest.approx([6, 6, 5, 5, 4, 4])
    net = summary(found, lambda pair: pair.net)
    assert (len(net.values), net.pairs, net.positive, net.sign) == (3, 6, 6, 1)
    assert net.reach == pytest.approx(4.302653 / 3**0.5, rel=1e-5)  # the deviation is 1, and t(0.975; 2) is 4.30
    assert str(net) == "**+5.0 ± 2.5**"
    assert pairs([row for row in rows if row["key"]["ratio"] < 1], report.accuracy) == []


def test_the_findings_say_where_sketching_helps_and_hurts(tmp_path):
    """One seed alone says nothing; three that agree do. Sketching helps the mean against ipm and hurts krum against noise."""
    lost = {("mean", "ipm"): (0.2, 0.1), ("krum", "noise"): (0.1, 0.3)}
    rows = []
    for seed in range(3):
        for rule in ("mean", "krum"):
            for attack in ("none", "ipm", "noise"):
                dense, sketched = lost.get((rule, attack), (0.0, 0.0))
                rows += [row_of(0.9 - dense, ratio=1.0, attack=attack, seed=seed, rule=rule)]
                rows += [row_of(0.9 - sketched + 0.001 * seed, ratio=0.1, attack=attack, seed=seed, rule=rule)]
    report.write(rows, tmp_path)
    findings = (tmp_path / "findings.md").read_text()
    said = "sketching helps against ipm (+5.0), with mean (+5.0); it hurts against noise (-10.0), with krum (-10.0)."
    assert f"- groups, 10% attackers, 1/10: {said}" in findings


def test_the_findings_say_with_which_rules_a_backdoor_works_better_through_sketches(tmp_path):
    """The accuracy is the same everywhere. Through sketches the backdoor works better with the median, not with krum."""
    rows = []
    for seed in range(3):
        for rule, sketched in (("median", 0.6), ("krum", 0.1)):
            for ratio, success in ((1.0, 0.1), (0.1, sketched + 0.01 * (seed - 1))):
                rows += [row_of(0.9, ratio=ratio, attack="none", seed=seed, rule=rule)]
                rows += [row_of(0.9, ratio=ratio, attack="backdoor", seed=seed, rule=rule) | {"success": success}]
    report.write(rows, tmp_path)
    findings = (tmp_path / "findings.md").read_text()
    said = "through sketches a backdoor works better with median (+50), and worse nowhere that shows."
    assert f"- groups, 10% attackers, 1/10: {said}" in findings
