"""The benchmark of federations runs, records and draws. How much anything costs is not for a test to say."""

from xml.etree import ElementTree

import pytest
from quick import load, run_quickly

pytest.importorskip("flwr")

PLAN = {"hidden": ((60,),), "ratios": (0.1,), "rounds": 2, "secure": False, "cold": False, "idle": 7.0, "nodes": 2}
COUNTED = ("payload", "content", "link", "net", "socket")
"""By whom bytes are counted, the least first."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_quickly(load("federation", **PLAN), tmp_path_factory.mktemp("bench"))


def rows(run, topic):
    return [row for row in run.rows if row["topic"] == topic]


@pytest.mark.slow
def test_each_count_of_bytes_holds_the_one_before(run):
    dense, sketch = rows(run, "round")
    assert (dense["what"], sketch["what"]) == ("dense", "sketch 1/10")
    for row in (dense, sketch):
        for way in ("up", "down"):
            counts = [row[f"{name}_{way}"] for name in COUNTED]
            assert counts[0] > 0
            assert counts == sorted(counts)


@pytest.mark.slow
def test_a_sketch_saves_less_on_the_socket_than_by_its_payload(run):
    saved = {row["counted"]: row["ratio"] for row in rows(run, "saving") if row["way"] == "both"}
    assert 9 < saved["payload"] < 11
    assert 1 < saved["net"] < saved["payload"]


@pytest.mark.slow
def test_time_is_split_and_those_who_spend_it_are_told_apart(run):
    for row in rows(run, "round"):
        parts = [row[part] for part in ("wait", "download", "app", "upload", "collect")]
        assert min(parts) >= 0
        assert 0 < sum(parts) < 1.5 * row["seconds"]
        assert all(row[f"cpu_{who}"] > 0 for who in ("link", "node", "app", "server"))
    assert {row["what"] for row in rows(run, "memory")} == {"link", "node", "worker"}


@pytest.mark.slow
def test_polling_is_measured_apart_and_a_picture_is_drawn(run):
    (idle,) = rows(run, "idle")
    assert 0.2 < idle["polls_a_second"] < 0.5
    assert 500 < idle["poll_up"] < 1_500
    assert ElementTree.parse(run.folder / "federation.svg").getroot().tag.endswith("svg")


def test_a_law_is_found_where_costs_follow_one():
    module = load("federation", **PLAN)
    facts = {"isolation": "warm", "stages": 1, "cpu_server": 0, "cpu_node": 0, "download": 0, "upload": 0, "net_down": 0}
    measured = [
        module.Measurement(
            topic="round",
            what="dense",
            seconds=4.0,
            facts={**facts, "payload_up": size, "payload_down": 0, "net_up": 10_000 + 1.002 * size, "cpu_link": 0.2},
        )
        for size in (1_000, 100_000, 4_000_000)
    ]
    found = {law.what: law for law in module.laws(measured)}
    assert set(found) == {"bytes up beyond payload", "CPU ms, SuperLink"}
    assert found["bytes up beyond payload"].fixed == pytest.approx(10_000)
    assert found["bytes up beyond payload"].a_megabyte == pytest.approx(2_000)
    assert found["CPU ms, SuperLink"].a_megabyte == pytest.approx(0, abs=1e-9)
