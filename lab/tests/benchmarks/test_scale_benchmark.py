"""The benchmark of cohorts runs, records and draws. How much anything costs is not for a test to say."""

from xml.etree import ElementTree

import pytest
from quick import load, run_quickly


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    module = load("scale", cohorts={(4,): (4, 12)}, leaving=(12,), rounds=1, sampled=1)
    return run_quickly(module, tmp_path_factory.mktemp("bench"))


def cells(run, side, arm):
    """Parts of a side's round, by cohort and how many leave."""
    found = {}
    for row in run.rows:
        if (row["topic"], row.get("arm")) == (side, arm):
            found.setdefault((row["clients"], row["left"]), {})[row["what"]] = row
    return found


@pytest.mark.slow
def test_both_sides_of_each_arm_are_measured_part_by_part(run):
    dense, secure = cells(run, "client", "dense"), cells(run, "client", "secure")
    assert set(dense) == {(4, 0), (12, 0)}
    assert set(secure) == {(4, 0), (12, 0), (12, 1)}
    assert set(dense[4, 0]) == {"receive", "train", "encode", "round"}
    assert set(secure[12, 1]) == {"receive", "train", "encode", "keys", "shares", "mask", "consent", "unmask", "round"}
    assert {name: cells(run, "client", name)[12, 0]["round"]["messages"] for name in ("sketched", "secure")} == {
        "sketched": 1,
        "secure": 3,
    }
    assert set(cells(run, "server", "sketched")[12, 0]) == {"tasks", "read", "step", "round"}
    server = cells(run, "server", "secure")[12, 0]
    assert server["round"]["seconds"] == pytest.approx(sum(m["seconds"] for part, m in server.items() if part != "round"))


@pytest.mark.slow
def test_a_clients_bytes_add_up_to_the_servers(run):
    for arm in ("dense", "sketched", "secure"):
        client, server = (cells(run, side, arm)[12, 0]["round"] for side in ("client", "server"))
        for own, total in (("up_bytes", "uplink_bytes"), ("down_bytes", "downlink_bytes")):
            assert 12 * client[own] == pytest.approx(server[total], abs=12 * 5)  # each stage's mean is rounded


@pytest.mark.slow
def test_neighbours_are_planned_and_a_picture_is_drawn(run):
    planned = {row["clients"]: row["neighbours"] for row in run.rows if row["topic"] == "neighbours"}
    assert planned[10] == 9
    assert 9 < planned[1_000] < planned[1_000_000] < 1_000
    assert ElementTree.parse(run.folder / "scale.svg").getroot().tag.endswith("svg")


def test_a_law_is_found_where_costs_follow_one():
    module = load("scale", cohorts={}, leaving=(), rounds=1, sampled=1)
    rows = [
        module.Measurement(
            topic="server",
            what="round",
            seconds=0.5 + 0.01 * n + 0.001 * n * k,
            facts={"arm": "secure", "dim": 9, "clients": n, "neighbours": k, "left": 0, "peak_bytes": None},
        )
        for n, k in ((10, 9), (30, 29), (100, 42), (300, 80), (1_000, 114))
    ]
    (law,) = module.laws(rows)
    assert law.what == "server, s"
    assert law.terms == pytest.approx({"once": 0.5, "a client": 0.01, "a pair": 0.001})
    assert law.error < 1e-6
