"""The ledger forgets nothing that it acknowledged, and charges every draw of noise once."""

import errno
import itertools
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sketchfed.errors import InputError, StorageError
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.privacy.ledger import LedgerEntry, PrivacyLedger
from sketchfed.privacy.ledger_file import LedgerFile, head_of

CLAIM = Claim(unit="client", adjacency="zero-out", observer="server", delta=1e-5)
ONE = Charge(multiplier=10.0)
FEW_FILES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

charges = st.builds(Charge, multiplier=st.sampled_from([5.0, 8.0, 20.0]), steps=st.integers(1, 3))
clients = st.none() | st.lists(st.integers(0, 5), max_size=4, unique=True)
draws = st.lists(st.tuples(st.integers(0, 4), clients, charges, st.booleans()), max_size=10)


def spend(ledger, entries):
    """Intend, and perhaps settle, each as a draw of its own."""
    for draw, (round_, who, charge, settled) in enumerate(entries):
        ledger.intend(round=round_, draw=str(draw), clients=who, charge=charge)
        if settled:
            ledger.settle(round=round_, draw=str(draw), clients=who, charge=charge)
    return ledger


def by_hand(entries):
    """ε of the client with the most, one client after the other."""
    worst = 0.0
    for client in range(7):  # 6 is never named
        mine = {}
        for _, who, charge, _ in entries:
            if who is None or client in who:
                mine[charge] = mine.get(charge, 0) + 1
        worst = max(worst, epsilon_of(mine, CLAIM))
    return worst


# What is charged.


@settings(max_examples=60, deadline=None)
@given(draws)
def test_epsilon_is_that_of_the_client_with_the_most(entries):
    assert spend(PrivacyLedger(CLAIM), entries).epsilon() == pytest.approx(by_hand(entries), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(draws, st.randoms())
def test_the_order_of_charges_does_not_matter(entries, shuffler):
    mixed = list(entries)
    shuffler.shuffle(mixed)
    assert spend(PrivacyLedger(CLAIM), mixed).epsilon() == pytest.approx(
        spend(PrivacyLedger(CLAIM), entries).epsilon(), rel=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(draws, clients, charges)
def test_epsilon_never_falls_and_also_looks_ahead(entries, who, charge):
    ledger = spend(PrivacyLedger(CLAIM), entries)
    before, ahead = ledger.epsilon(), ledger.epsilon(also=(who, charge))
    assert ahead >= before
    assert ledger.epsilon() == before
    ledger.intend(round=9, draw="next", clients=who, charge=charge)
    assert ledger.epsilon() == ahead


def test_without_noise_there_is_nothing_to_pay():
    assert PrivacyLedger(CLAIM).epsilon() == 0
    assert PrivacyLedger(CLAIM).entries == ()


def test_an_intent_is_charged_until_it_is_settled_with_what_happened():
    ledger = PrivacyLedger(CLAIM)
    ledger.intend(round=0, draw="a", clients=[1, 2, 3], charge=Charge(multiplier=5.0))
    assert ledger.epsilon() == epsilon_of({Charge(multiplier=5.0): 1}, CLAIM)
    ledger.settle(round=0, draw="a", clients=[3, 1], charge=ONE)
    assert ledger.epsilon() == epsilon_of({ONE: 1}, CLAIM)
    assert ledger.entries == (LedgerEntry(round=0, draw="a", clients=(1, 3), charge=ONE, settled=True),)


def test_a_round_whose_noise_was_redrawn_is_charged_again():
    ledger = PrivacyLedger(CLAIM)
    for draw in ("first", "again"):
        ledger.intend(round=4, draw=draw, clients=None, charge=ONE)
    ledger.settle(round=4, draw="again", clients=None, charge=ONE)
    assert ledger.epsilon() == epsilon_of({ONE: 2}, CLAIM)


def test_the_same_draw_again_is_the_same_noise():
    ledger = PrivacyLedger(CLAIM)
    for _ in range(3):
        ledger.intend(round=4, draw="a", clients=[1], charge=ONE)
        ledger.settle(round=4, draw="a", clients=[1], charge=ONE)
    assert ledger.epsilon() == epsilon_of({ONE: 1}, CLAIM)


def test_the_same_noise_on_another_sum_is_refused():
    ledger = PrivacyLedger(CLAIM)
    ledger.intend(round=4, draw="a", clients=[1, 2], charge=ONE)
    ledger.settle(round=4, draw="a", clients=[1, 2], charge=ONE)
    with pytest.raises(InputError, match=r"draw 'a' of round 4 is settled.*cancels in their difference"):
        ledger.intend(round=4, draw="a", clients=[1], charge=ONE)
    assert len(ledger.entries) == 1


def test_a_round_that_came_to_nothing_costs_nothing():
    ledger = PrivacyLedger(CLAIM)
    ledger.intend(round=0, draw="a", clients=[1], charge=ONE)
    ledger.settle(round=0, draw="a", clients=[], charge=ONE)
    assert ledger.epsilon() == 0


def test_what_was_not_intended_cannot_be_settled():
    with pytest.raises(InputError, match="draw 'a' of round 1 was never intended"):
        PrivacyLedger(CLAIM).settle(round=1, draw="a", clients=None, charge=ONE)


def test_its_text_names_the_accountant_that_found_its_epsilon():
    ledger, coarse = PrivacyLedger(CLAIM), Charge(multiplier=3.0, discrete=True)
    assert ledger.text == CLAIM.text
    ledger.intend(round=0, draw="a", clients=None, charge=replace(coarse, deviation=40.0, size=9))
    assert ledger.text == CLAIM.text
    ledger.intend(round=1, draw="a", clients=None, charge=coarse)
    assert ledger.text == CLAIM.text.replace("PLD", "RDP")


def test_a_draw_that_an_earlier_version_settled_may_come_again():
    """It said less about the same discrete noise."""
    ledger, old = PrivacyLedger(CLAIM), Charge(multiplier=3.0, discrete=True)
    for charge in (old, replace(old, deviation=40.0, size=9)):
        ledger.intend(round=0, draw="fixed", clients=[1], charge=charge)
        ledger.settle(round=0, draw="fixed", clients=[1], charge=charge)
    with pytest.raises(InputError, match="settled"):
        ledger.intend(round=0, draw="fixed", clients=[1], charge=replace(old, multiplier=4.0))


def test_a_thousand_clients_and_rounds_are_kept_as_a_count_for_each_noise():
    """Different survivors in every round, so that noise and clients differ: what is kept grows with neither product."""
    ledger, luck = PrivacyLedger(CLAIM), random.Random(1)
    for round_ in range(1_000):
        who = luck.sample(range(1_000), luck.randint(900, 1_000))
        ledger.intend(round=round_, draw="a", clients=who, charge=Charge(multiplier=2 * len(who) ** 0.5, discrete=True))
    assert len(ledger._spent.charges) <= 101
    assert ledger._spent.profiles().shape[0] <= 1_001  # one for those whom nothing touched
    assert ledger.epsilon() > 0


# What is on the disk.


@FEW_FILES
@given(draws)
def test_a_ledger_is_loaded_as_it_was(tmp_path, entries):
    path = tmp_path / f"{next(COUNT)}.jsonl"
    ledger = spend(PrivacyLedger(CLAIM, path), entries)
    loaded = PrivacyLedger.load(path, CLAIM)
    assert (loaded.claim, loaded.entries, loaded.epsilon()) == (CLAIM, ledger.entries, ledger.epsilon())


COUNT = itertools.count()


@FEW_FILES
@given(draws.filter(bool), st.data())
def test_a_crash_at_any_byte_of_a_line_keeps_all_that_was_acknowledged(tmp_path, entries, data):
    path = tmp_path / f"{next(COUNT)}.jsonl"
    ledger = PrivacyLedger(CLAIM, path)
    states = []
    for draw, (round_, who, charge, _) in enumerate(entries):
        states.append((path.read_bytes(), head_of(path).read_bytes(), ledger.entries))
        ledger.intend(round=round_, draw=str(draw), clients=who, charge=charge)
    states.append((path.read_bytes(), b"", ledger.entries))
    at = data.draw(st.integers(0, len(entries) - 1))
    (before, head, kept), (after, _, more) = states[at], states[at + 1]
    cut = data.draw(st.integers(len(before), len(after)))
    path.write_bytes(after[:cut])
    head_of(path).write_bytes(head)
    loaded = PrivacyLedger.load(path)
    assert loaded.entries == (more if cut == len(after) else kept)
    loaded.intend(round=99, draw="after", clients=None, charge=ONE)
    assert PrivacyLedger.load(path).entries == loaded.entries


def test_numbers_of_numpy_are_kept_as_plain_ones(tmp_path):
    ledger = PrivacyLedger(CLAIM, tmp_path / "ledger.jsonl")
    charge = Charge(multiplier=np.float64(3.3), steps=np.int64(2), discrete=True, slack=np.float32(1e-3))
    ledger.intend(round=np.int64(3), draw="a", clients=np.arange(3), charge=charge)
    assert PrivacyLedger.load(tmp_path / "ledger.jsonl").entries == ledger.entries


def test_an_entry_is_on_the_disk_before_intend_returns(tmp_path, monkeypatch):
    path, synced = tmp_path / "ledger.jsonl", []
    ledger = PrivacyLedger(CLAIM, path)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(path.read_bytes().count(b"\n")))
    ledger.intend(round=0, draw="a", clients=None, charge=ONE)
    assert synced[0] == 2


def test_a_disk_that_fills_up_leaves_the_ledger_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = spend(PrivacyLedger(CLAIM, path), [(0, None, ONE, False)])
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"cannot write .*: No space left on device.*--resume"):
            ledger.intend(round=1, draw="b", clients=None, charge=ONE)
    assert path.read_bytes() == before
    assert len(ledger.entries) == 1
    ledger.intend(round=1, draw="b", clients=None, charge=ONE)
    assert PrivacyLedger.load(path).entries == ledger.entries


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        PrivacyLedger(CLAIM, tmp_path / "nowhere" / "ledger.jsonl")
    with pytest.raises(StorageError, match="cannot read the privacy ledger"):
        PrivacyLedger.load(tmp_path / "ledger.jsonl")


def test_a_ledger_is_never_begun_anew(tmp_path):
    path = tmp_path / "ledger.jsonl"
    PrivacyLedger(CLAIM, path)
    with pytest.raises(InputError, match=r"exists already.*PrivacyLedger\.load"):
        PrivacyLedger(CLAIM, path)


def test_two_processes_do_not_write_over_each_other(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = PrivacyLedger(CLAIM, path)
    second = PrivacyLedger.load(path)
    second.intend(round=0, draw="a", clients=None, charge=ONE)
    with pytest.raises(StorageError, match="is not as this process left it: another one works"):
        first.intend(round=0, draw="b", clients=None, charge=ONE)
    assert len(PrivacyLedger.load(path).entries) == 1


def test_a_ledger_that_was_shortened_under_way_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = spend(PrivacyLedger(CLAIM, path), [(0, None, ONE, True)])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StorageError, match="is not as this process left it"):
        ledger.intend(round=1, draw="b", clients=None, charge=ONE)


def test_another_claim_is_refused_with_both(tmp_path):
    path = tmp_path / "ledger.jsonl"
    PrivacyLedger(CLAIM, path)
    other = Claim(unit="example", adjacency="zero-out", observer="server", delta=1e-5)
    with pytest.raises(StorageError, match=r"client level.*not at δ = 1e-05, example level"):
        PrivacyLedger.load(path, other)


def lines_of(path: Path) -> list[bytes]:
    spend(PrivacyLedger(CLAIM, path), [(0, [1, 2], ONE, True), (1, None, ONE, False)])
    return LedgerFile.open(path).contents


def forge(path: Path, contents: list[bytes]) -> None:
    """Write lines with hashes that hold, so that only what they say can be wrong."""
    head_of(path).unlink()
    path.unlink()
    file = LedgerFile.create(path, contents[0])
    for content in contents[1:]:
        file.append(content)


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        (0, b'"version":2', b'"version":"two"'),
        (0, b"client", b"household"),
        (1, b'"round":0', b'"round":-1'),
        (1, b'"round":0', b'"round":0.5'),
        (1, b'"multiplier":10.0', b'"multiplier":-10.0'),
        (1, b'"multiplier":10.0', b'"multiplier":"much"'),
        (2, b"[1,2]", b"[-1,2]"),
        (2, b"[1,2]", b"[1,2"),
        (2, b'"draw":"0"', b'"draw":0'),
        (3, b"{", b"\x00\xff"),
    ],
)
def test_a_damaged_line_is_refused_with_its_number(tmp_path, number, old, new):
    path = tmp_path / "ledger.jsonl"
    lines = lines_of(path)
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new, 1)
    forge(path, lines)
    with pytest.raises(StorageError, match=rf"line {number + 1} of the privacy ledger .* start a new run"):
        PrivacyLedger.load(path)


def test_a_line_that_changes_what_was_settled_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    lines = lines_of(path)
    forge(path, [*lines, lines[2].replace(b"[1,2]", b"[1]")])
    with pytest.raises(StorageError, match=r"line 5 .* is settled"):
        PrivacyLedger.load(path)


@pytest.mark.parametrize("data", [b"", b"{}\n", b"[" * 100_000 + b"\n", b'{"format":"sketchfed privacy led'])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, data):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(data)
    with pytest.raises(StorageError, match="line 1 of the privacy ledger"):
        PrivacyLedger.load(path)


def test_a_later_version_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    PrivacyLedger(CLAIM, path)
    forge(path, [LedgerFile.open(path).contents[0].replace(b'"version":2', b'"version":3')])
    with pytest.raises(StorageError, match=r"of version 3; this sketchfed reads .* version 2"):
        PrivacyLedger.load(path)


def test_covered_clients_were_touched_and_pay_nothing(tmp_path):
    ledger = PrivacyLedger(CLAIM, tmp_path / "ledger.jsonl")
    ledger.intend(round=0, draw="a", clients=[1, 2], charge=ONE)
    ledger.settle(round=0, draw="a", clients=[1, 2], charge=ONE)
    once = ledger.epsilon()
    ledger.intend(round=1, draw="b", clients=[3], covered=[2, 1], charge=ONE)
    ledger.settle(round=1, draw="b", clients=[3, 2], charge=ONE)
    assert ledger.epsilon() == once
    assert ledger.of_round(1) == (LedgerEntry(round=1, draw="b", clients=(3,), charge=ONE, settled=True, covered=(2,)),)
    assert ledger.of_round(2) == ()
    loaded = PrivacyLedger.load(tmp_path / "ledger.jsonl")
    assert loaded.entries == ledger.entries
    assert loaded.of_round(0) == ledger.of_round(0)


def test_charges_are_counted_for_clients_and_rounds_as_they_come_and_go():
    ledger = PrivacyLedger(CLAIM)
    ledger.intend(round=2, draw="a", clients=[1], charge=ONE)
    assert ledger.charged(1, since=0, until=5) == 1
    ledger.intend(round=2, draw="b", clients=[1, 2], charge=ONE)
    ledger.intend(round=4, draw="c", clients=None, charge=ONE)
    assert ledger.charged(1, since=2, until=2) == 2
    ledger.settle(round=2, draw="b", clients=[2], charge=ONE)
    assert [ledger.charged(client, since=0, until=5) for client in (1, 2, 3)] == [1, 1, 0]
    assert ledger.charged(1, since=3, until=5) == ledger.charged(1, since=0, until=1) == 0


def test_a_ledger_of_before_covering_is_read(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = PrivacyLedger(CLAIM, path)
    ledger.intend(round=0, draw="a", clients=[1], charge=ONE)
    forge(path, [line.replace(b',"covered":[]', b"") for line in LedgerFile.open(path).contents])
    assert PrivacyLedger.load(path).entries == ledger.entries


def test_covering_that_makes_no_sense_is_refused():
    ledger = PrivacyLedger(CLAIM)
    for clients in (None, [1]):
        with pytest.raises(InputError, match="not both"):
            ledger.intend(round=0, draw="a", clients=clients, covered=[1], charge=ONE)
    with pytest.raises(InputError, match="numbered from 0"):
        ledger.intend(round=0, draw="a", clients=[1], covered=[-1], charge=ONE)
    ledger.intend(round=0, draw="a", clients=[1], covered=[2], charge=ONE)
    with pytest.raises(InputError, match="say by name"):
        ledger.settle(round=0, draw="a", clients=None, charge=ONE)
