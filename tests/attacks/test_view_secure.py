"""Secure sums opened again from the recorded bytes: over survivors, whoever dropped out, and nothing of a single client."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from recorded_runs import compared, distance, recorded, recorded_anew

import sketchfed.runs.hosts
from sketchfed.attacks.opened import members_in, opened_sums
from sketchfed.audits.evidence import Evidence
from sketchfed.rounds import LocalEngine
from sketchfed.secure import STAGES

ROUNDING = 1e-4
SECURE = {"secure": {"clip": 50.0, "survivors": 0.6}}
CASES = {
    "fedavg": SECURE,
    "several steps": SECURE | {"algorithm": {"local_steps": 3}},
    "whole data": SECURE | {"algorithm": {"local_steps": None, "batch": None}},
    "sketched": SECURE | {"codec": {"name": "sketched"}},
    "iterative": SECURE | {"algorithm": {"name": "iterative"}},
    "iterative, few take part": SECURE | {"algorithm": {"name": "iterative", "participation": 0.6, "rounds": 6}},
    "fetchsgd": SECURE | {"algorithm": {"name": "fetchsgd"}},
    "dbcl": SECURE | {"algorithm": {"name": "dbcl", "vary": 0.4}},
    "dome": SECURE | {"algorithm": {"name": "dome"}, "subspace": {"name": "incremental_svd", "size": 60}},
}
Gone = Mapping[str, Sequence[int]]
"""Who is away from a stage on."""


@pytest.fixture
def away(monkeypatch):
    """Lets clients vanish: `away(sums)` says for each sum of a run, in order, who is gone from which stage on."""

    def vanish(sums: Sequence[Gone]) -> None:
        class Dropping(LocalEngine):
            begun, before = -1, ""

            def ask(self, requests, stage="train"):
                prepared = stage == "masked" and self.before != "shares"
                self.begun, self.before = self.begun + (stage == "keys" or prepared), stage
                gone = sums[self.begun] if self.begun < len(sums) else {}
                missing = {c for at, who in gone.items() if STAGES.index(at) <= STAGES.index(stage) for c in who}
                return super().ask({client: r for client, r in requests.items() if client not in missing}, stage)

        monkeypatch.setattr(sketchfed.runs.hosts, "LocalEngine", Dropping)

    return vanish


def check(run: Evidence, role: str) -> list[tuple[int, tuple[int, ...]]]:
    """Round and clients of each update, each of which is what the clients' examples would look like."""
    found = list(compared(run, role))
    assert all(distance(seen, values) < ROUNDING for _, seen, values in found)
    return [(update.round, update.clients) for update, _, _ in found]


@pytest.mark.parametrize("case", CASES)
def test_the_server_sees_one_sum_a_round(case):
    run = recorded(CASES[case])
    rounds = run.config.algorithm.rounds
    assert check(run, "secure server") == [(index, run.replied(index)) for index in range(rounds)]
    assert check(run, "network") == check(run, "secure server")


@pytest.mark.parametrize("role", ["client", "colluders"])
@pytest.mark.parametrize("case", [case for case in CASES if case != "fetchsgd"])
def test_clients_take_their_own_part_off(case, role):
    run = recorded(CASES[case])
    members, told = set(run.view(role).members), check(run, role)
    assert told
    assert all(set(clients) == set(run.replied(index)) - members for index, clients in told)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", ["fedavg", "iterative", "dbcl"])
def test_who_drops_out_is_in_the_sum_if_it_had_sent_its_part(away, case, stage):
    """Of five clients two vanish in the second round: before their masked reply, or after it. Members know who stayed."""
    away([{}, {stage: [1, 3]}])
    run = recorded_anew(CASES[case])
    stayed = (0, 1, 2, 3, 4) if STAGES.index(stage) > STAGES.index("masked") else (0, 2, 4)
    assert check(run, "secure server") == [(0, (0, 1, 2, 3, 4)), (1, stayed), (2, (0, 1, 2, 3, 4))]
    assert run.replied(1) == stayed
    if stage != "consent" or stayed != (0, 1, 2, 3, 4):
        assert check(run, "client") == [(0, (1, 2, 3, 4)), (1, stayed[1:])]


@pytest.mark.parametrize("stage", STAGES)
def test_sums_that_were_abandoned_are_passed_over(away, stage):
    """The first attempt at the second round fails at a stage, because too few are left; the second attempt does not."""
    away([{}, {stage: [0, 1, 2, 3]}, {"masked": [2]}])
    run = recorded_anew(SECURE)
    assert [each.clients for each in opened_sums(run.exchanges) if each.round == 1] == [(0, 1, 3, 4)]
    assert members_in(run.exchanges)[1].survivors == {0, 1, 3, 4}
    assert check(run, "secure server") == [(0, (0, 1, 2, 3, 4)), (1, (0, 1, 3, 4)), (2, (0, 1, 2, 3, 4))]
    assert check(run, "client") == [(0, (1, 2, 3, 4)), (1, (1, 3, 4))]


def test_a_member_that_dropped_out_takes_nothing_off(away):
    """Client 0 is gone before it sent anything of the first round, and sees what the others did."""
    away([{"masked": [0]}])
    run = recorded_anew(SECURE)
    view = replace(run.view("client"), members=(0,))
    told = next(iter(view.updates()))
    assert told.round == 0
    assert set(told.clients) >= {1, 2, 3, 4}


def test_parts_that_were_clipped_are_taken_off_as_they_were():
    """So little is allowed that everybody is shortened: the others' mean is one of vectors of that length."""
    run = recorded({"secure": {"clip": 0.01}})
    sums = {update.round: update.observation.values for update in run.view("secure server").updates()}
    view = run.view("client")
    for update in view.updates():
        own = 5 * sums[update.round] - 4 * update.observation.values
        assert float(own.norm()) == pytest.approx(0.01, rel=1e-3)


def test_replies_that_were_changed_are_left_out_of_the_sum():
    """Opened from bytes in which one client's masked reply is garbage: nobody could open that, and it is said by silence."""
    run = recorded(SECURE)
    torn = [replace(each, reply=b"garbage") if each.client == 2 and each.stage == "masked" else each for each in run.exchanges]
    for update in replace(run, exchanges=torn).view("secure server").updates():
        assert 2 not in update.clients


def test_requests_that_were_changed_give_no_sum():
    run = recorded(SECURE)
    torn = [replace(each, request=b"garbage") if each.stage in ("keys", "masked") else each for each in run.exchanges]
    assert list(replace(run, exchanges=torn).view("secure server").updates()) == []
    assert members_in(torn) == {}


def test_a_sum_is_the_sum_of_what_clients_would_have_sent_in_plain():
    plain, secure = recorded(rounds=1), recorded(SECURE, rounds=1)
    (summed,) = secure.view("secure server").updates()
    mean = torch.stack([update.observation.values for update in plain.view("server").updates()]).mean(0)
    assert distance(mean, summed.observation.values) < ROUNDING


def test_who_took_part_is_read_from_the_record_once(monkeypatch):
    """It was read for every round anew, which took minutes for 300 rounds."""
    run = recorded(SECURE, rounds=4)
    anew, calls = replace(run), []
    monkeypatch.setattr("sketchfed.audits.evidence.members_in", lambda seen: calls.append(1) or members_in(seen))
    monkeypatch.setattr("sketchfed.attacks.view.members_in", lambda seen: calls.append(1) or members_in(seen))
    assert [anew.replied(index) for index in range(4)] == [run.replied(index) for index in range(4)]
    assert len(calls) <= 2  # `run` may have been read before
    calls.clear()
    assert anew.view("client").updates()
    assert len(calls) <= 1
