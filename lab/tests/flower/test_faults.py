"""Failures of every kind on a real federation: the run goes on, says why, and comes to what those who stayed come to alone.

They are slow. Most are also tried in `test_flower_dropouts.py`, on a grid whose nodes answer in this process, or (replies that
arrive by halves) in `test_arrivals.py`.
"""

import re

import pytest

pytest.importorskip("flwr")

from rehearsal import left_out, rehearsed, same, survivors, written

from sketchfed import run
from sketchfed.nodes import NodeStore
from sketchfed.privacy import PrivacyLedger
from sketchfed.runs.folder import PRIVACY

CLIENTS = 5
TABLES = {
    "data": {"clients": CLIENTS},
    "algorithm": {"name": "iterative", "form": "projection", "rounds": 5, "local_steps": 2, "local_rate": 0.5},
}
"""What clients keep from round to round makes a difference here: what a lost reply led to must not count."""


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    with rehearsed(tmp_path_factory.mktemp("faults"), CLIENTS) as rehearsal:
        yield rehearsal


def faulty(fault, *, client, stage=None, round, **more):
    return {"fault": fault, "client": client, "stage": stage, "round": round, **more}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_cannot_be_used_is_refused_with_its_reason_and_the_others_go_on(rehearsal, monkeypatch, caplog, tmp_path):
    faults = {
        (1, 0): ("raise", r"its ClientApp raised: .*as it was told to"),
        (1, 1): ("truncate", r"the packet is truncated"),
        (1, 2): ("round", r"it is for round 8, not 1"),
        (2, 0): ("shape", r"should carry an array 'values' of float32\[\d+\], it is float32\[\d+\]"),
        (2, 1): ("nan", r"NaN or infinity"),
        (2, 2): ("replay", r"it is for round 1, not 2"),
        (3, 0): ("stranger", r"its reply cannot be used: it answers for client 1, not 0"),
        (3, 1): ("garbage", r"its reply cannot be used: .* holds a record 'sketchfed', this one holds \['weather'\]"),
    }
    rehearsal.script(
        faulty("forget", client=3, round=3, times=1),
        *(faulty(fault, client=client, round=index) for (index, client), (fault, _) in faults.items()),
    )
    got = rehearsal.run(TABLES, tmp_path / "run")

    said = left_out(caplog)
    assert {(index, client) for index, clients in said.items() for client in clients} == faults.keys()
    for (index, client), (_, reason) in faults.items():
        assert re.search(reason, said[index][client], re.DOTALL), said[index][client]
    assert "round 4: client 3 lost what it held" in caplog.text
    missing = {(index, "train"): clients for index, clients in said.items()}
    assert same(got, survivors(monkeypatch, TABLES, missing, forgot={(3, "train"): [3]}))
    assert [(line["round"], line["participants"]) for line in written(tmp_path / "run")] == list(enumerate([5, 2, 2, 3, 5], 1))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_who_leaves_a_secure_sum_at_any_stage_is_missed_by_it_and_by_nothing_else(rehearsal, monkeypatch, caplog, tmp_path):
    faults = {
        (0, "keys"): (0, "raise"),
        (0, "shares"): (1, "truncate"),
        (1, "masked"): (2, "raise"),
        (1, "consent"): (3, "replay"),
        (2, "masked"): (0, "garbage"),
        (2, "unmask"): (4, "raise"),
    }
    tables = {
        "data": {"clients": CLIENTS},
        "algorithm": {"name": "private_iterative", "rounds": 3, "batch": 16, "local_steps": 1, "local_rate": 0.5},
        "privacy": {"name": "discrete_gaussian", "noise_multiplier": 1.0, "clip": 2.0, "delta": 1e-4, "insecure_noise_seed": 7},
        "secure": {"survivors": 0.6},
    }
    rehearsal.script(*(faulty(fault, client=who, stage=stage, round=index) for (index, stage), (who, fault) in faults.items()))
    got = rehearsal.run(tables, tmp_path / "run")

    said = left_out(caplog)
    assert {(index, client) for index, clients in said.items() for client in clients} == {
        (index, client) for (index, _), (client, _) in faults.items()
    }
    assert re.search(r"truncated", said[0][1])
    assert re.search(r"another session, round or terms", said[1][3])
    assert same(got, survivors(monkeypatch, tables, {at: [client] for at, (client, _) in faults.items()}))
    assert [line["participants"] for line in got.metrics] == [3, 4, 4]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_the_superlink_and_the_server_die_and_come_back(rehearsal, monkeypatch, caplog, tmp_path):
    """The node has lost what it kept and is caught up; the SuperLink has its database, and the server its folder."""
    tables = {**TABLES, "algorithm": TABLES["algorithm"] | {"rounds": 6}}
    federation, folder = rehearsal.federation, tmp_path / "run"
    rehearsal.script(
        faulty("sleep", client=0, round=2, times=1, seconds=10), faulty("sleep", client=1, round=4, times=1, seconds=3)
    )
    ends = [
        rehearsal.when(0, 2, lambda: rehearsal.restart(0)),
        rehearsal.when(1, 4, federation.kill_link, federation.start_link),
    ]

    def die(line):
        if line["round"] == 5:
            raise ZeroDivisionError("the server's last words")

    with pytest.raises(ZeroDivisionError):
        rehearsal.run(tables, folder, on_round=die, deadline=25.0)
    for end in ends:
        end.result()
    got = rehearsal.resume(folder)

    said = left_out(caplog)
    assert 0 in said[2], "its message went down with its node"
    back = next(index for index in range(3, 6) if 0 not in said.get(index, ()))
    assert f"round {back + 1}: client 0 lost what it held, and is sent what it needs" in caplog.text
    assert re.search(r"the SuperLink at \S+ is back after", caplog.text)
    assert 5 not in said, "everybody is there in the last round"
    missing = {(index, "train"): clients for index, clients in said.items()}
    assert same(got, survivors(monkeypatch, tables, missing, forgot={(back, "train"): [0]}))
    assert [line["round"] for line in written(folder)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_privacy_is_charged_for_whatever_may_have_left_a_client(rehearsal, caplog, tmp_path):
    """Nothing left the client that raised; of all others the server, or somebody on the way, may have something."""
    tables = {
        "data": {"clients": CLIENTS},
        "algorithm": {"name": "fedavg", "rounds": 2, "local_steps": 1, "local_rate": 0.5},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-4},
    }
    rehearsal.script(
        faulty("raise", client=0, round=0),
        faulty("sleep", client=1, round=0, seconds=25),
        faulty("die", client=2, round=0),
        faulty("truncate", client=3, round=0),
    )
    got = rehearsal.run(tables, tmp_path / "run", deadline=20.0)
    rehearsal.restart(2)  # Flower would believe for a minute that the dead client is busy

    said = left_out(caplog)
    assert {0, 1, 2, 3} <= said[0].keys()
    assert "within 20 s" in said[0][1]
    ledger = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    charged = [entry.clients for entry in ledger.entries]
    assert charged == [(1, 2, 3, 4), (0, 1, 2, 3, 4)]
    assert got.metrics[-1]["epsilon"] == ledger.epsilon() == run(tables).metrics[-1]["epsilon"]
    for client in range(CLIENTS):
        home = rehearsal.federation.folder / "home" / f"node-{client}" / "sketchfed"
        with NodeStore(home / "store.sqlite") as store, store.transaction() as rows:
            (own,) = rows.execute("SELECT COUNT(*) FROM spending").fetchone()
        assert own <= sum(client in clients for clients in charged), "clients' own books never show more"
    assert got.metrics[0]["participants"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_that_dies_while_it_sends_its_reply_holds_up_nobody(rehearsal, monkeypatch, caplog, tmp_path):
    """Flower by itself waits three minutes for the rest of that reply, and the replies of all others expire meanwhile."""
    tables = {**TABLES, "algorithm": TABLES["algorithm"] | {"rounds": 2}}
    rehearsal.script(faulty("half", client=0, round=1))
    got = rehearsal.run(tables, tmp_path / "run", deadline=20.0)
    rehearsal.restart(0)

    assert left_out(caplog) == {1: {0: "no reply came within 20 s."}}
    assert same(got, survivors(monkeypatch, tables, {(1, "train"): [0]}))
    assert got.metrics[1]["seconds"] - got.metrics[0]["seconds"] < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_client_whose_process_was_killed_is_back_when_flower_has_given_it_up(rehearsal, monkeypatch, caplog, tmp_path):
    """That takes a minute, for which its SuperNode takes no other message. Replies that come late count for nothing."""
    tables = {**TABLES, "algorithm": TABLES["algorithm"] | {"rounds": 9}}
    rehearsal.script(
        faulty("sleep", client=0, round=1, seconds=20),
        faulty("elsewhere", client=1, round=1),
        faulty("die", client=2, round=1),
    )
    got = rehearsal.run(tables, tmp_path / "run", deadline=15.0)

    said = left_out(caplog)
    assert {client: "within 15 s" in reason for client, reason in said[1].items()} == {0: True, 1: True, 2: True}
    assert 2 in said[2]
    assert 8 not in said, "everybody is back"
    assert same(got, survivors(monkeypatch, tables, {(index, "train"): clients for index, clients in said.items()}))
    assert [line["round"] for line in written(tmp_path / "run")] == list(range(1, 10))
