"""Runs with a privacy budget: the ledger on the disk, resuming, stopping in time, and what is said of ε."""

import json
import logging

import pytest
import tiny

import sketchfed
from sketchfed.config import load_config
from sketchfed.errors import InputError, StorageError
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.runs.folder import PRIVACY
from sketchfed.runs.starting import prepare, reopen

CLIENT = {"epsilon": 5.0, "delta": 0.01, "clip": 1.0}
EXAMPLE = {"unit": "example", "epsilon": 5.0, "delta": 0.001, "observer": "public"}


def tables(*, rounds=4, privacy=CLIENT, algorithm=None, **others):
    made = tiny.tables("fedavg", rounds=rounds, checkpoint_seconds=0, workers=1)
    if privacy.get("unit") == "example":
        made["algorithm"] = made["algorithm"] | {"local_steps": 1}
    made["algorithm"] = made["algorithm"] | (algorithm or {})
    return made | {"privacy": privacy} | others


class UnpluggedError(Exception):
    """What ends a run in a test."""


def interrupt_after(rounds):
    def on_round(line):
        if line["round"] == rounds:
            raise UnpluggedError

    return on_round


@pytest.mark.parametrize("privacy", [CLIENT, EXAMPLE], ids=["client", "example"])
def test_epsilon_grows_to_the_budget_and_not_beyond(privacy):
    run = sketchfed.run(tables(privacy=privacy))
    spent = [line["epsilon"] for line in run.metrics]
    assert len(spent) == 4
    assert spent == sorted(spent)
    assert 4.9 < spent[-1] <= 5.0


def test_a_run_with_given_noise_says_what_it_spent():
    run = sketchfed.run(tables(privacy={"noise_multiplier": 2.0, "delta": 0.01}))
    assert run.metrics[-1]["epsilon"] > 0


def test_a_run_without_noise_never_says_epsilon():
    run = sketchfed.run(tiny.tables("fedavg", rounds=2) | {"secure": {"clip": 10.0}})
    assert [line["epsilon"] for line in run.metrics] == [None, None]


def test_the_ledger_is_kept_beside_the_run(tmp_path):
    run = sketchfed.run(tables(), folder=tmp_path / "run")
    ledger = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    assert ledger.epsilon() == run.metrics[-1]["epsilon"]
    assert [entry.round for entry in ledger.entries] == [0, 1, 2, 3]
    assert "client level, zero-out, against the server" in json.loads((tmp_path / "run/summary.json").read_text())["privacy"]


def test_a_round_that_is_run_again_with_new_noise_is_charged_again(tmp_path):
    """The second round was not saved when the run died, but what it sent was seen: so four rounds cost five."""
    config = load_config(tables(privacy={"noise_multiplier": 2.0, "delta": 0.01}, engine={"checkpoint_seconds": 3600.0}))
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(2))
    resumed = reopen(tmp_path / "run").finish()
    whole = sketchfed.run(config)
    ledger = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    assert [entry.round for entry in ledger.entries] == [0, 1, 0, 1, 2, 3]
    assert resumed.metrics[-1]["epsilon"] > whole.metrics[-1]["epsilon"]


def test_a_round_of_which_nobody_knows_the_end_is_charged_at_its_worst(tmp_path, monkeypatch):
    config = load_config(tables(privacy={"noise_multiplier": 2.0, "delta": 0.01}))
    loop = prepare(config, folder=tmp_path / "run")

    def die(*_):
        raise UnpluggedError

    monkeypatch.setattr(loop._engine, "ask", die)
    with pytest.raises(UnpluggedError):
        loop.finish()
    ledger = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    assert [entry.settled for entry in ledger.entries] == [False]
    assert ledger.epsilon() > 0


def test_a_budget_that_redrawn_noise_used_up_ends_the_run_early(tmp_path, caplog):
    config = load_config(tables(engine={"checkpoint_seconds": 3600.0, "evaluate_every": 3}))
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(2))
    with caplog.at_level(logging.WARNING, "sketchfed"):
        resumed = reopen(tmp_path / "run").finish()
    assert len(resumed.metrics) == 2
    assert resumed.metrics[-1]["epsilon"] <= 5.0
    assert resumed.metrics[-1]["accuracy"] is not None  # the last model is scored, whenever that is
    assert "another round would exceed privacy.epsilon = 5" in caplog.text


def test_fixed_noise_resumes_bit_for_bit_and_is_charged_once(tmp_path):
    privacy = CLIENT | {"insecure_noise_seed": 7}
    config = load_config(tables(privacy=privacy, engine={"checkpoint_seconds": 3600.0, "workers": 1}))
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(2))
    resumed, whole = reopen(tmp_path / "run").finish(), sketchfed.run(config)
    assert resumed.weights.equal(whole.weights)
    assert resumed.metrics[-1]["epsilon"] == whole.metrics[-1]["epsilon"]
    assert "INSECURE" in json.loads((tmp_path / "run/summary.json").read_text())["privacy"]


PASSES = EXAMPLE | {"batches": "passes"}


def test_rounds_of_a_pass_that_are_run_again_cost_one_sum_more(tmp_path):
    """Two rounds are lost; each example was in one sum of them at most, and is in one more when they are run again."""
    privacy = PASSES | {"epsilon": None, "noise_multiplier": 2.0}
    config = load_config(tables(privacy=privacy, algorithm={"batch": 2}, engine={"checkpoint_seconds": 3600.0}))
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(2))
    before = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    everybody = before.entries[0].clients
    assert [(entry.clients, entry.covered) for entry in before.entries] == [(everybody, ()), ((), everybody)]
    reopen(tmp_path / "run").finish()
    ledger = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    assert [entry.round for entry in ledger.entries] == [0, 1, 0, 1, 2, 3]
    assert [entry.clients for entry in ledger.entries] == [everybody, (), everybody, (), (), ()]
    assert ledger.epsilon() == epsilon_of({ledger.entries[0].charge: 2}, ledger.claim)


def test_a_pass_of_which_a_round_died_unsettled_is_charged_again(tmp_path, monkeypatch):
    """Nobody knows whether the second batch was seen: it counts as seen, and when it is sent again that is another sum."""
    privacy = PASSES | {"epsilon": None, "noise_multiplier": 2.0}
    loop = prepare(load_config(tables(privacy=privacy, algorithm={"batch": 2})), folder=tmp_path / "run")
    ask, calls = loop._engine.ask, []

    def die_the_second_time(*asked):
        calls.append(asked)
        if len(calls) == 2:
            raise UnpluggedError
        return ask(*asked)

    monkeypatch.setattr(loop._engine, "ask", die_the_second_time)
    with pytest.raises(UnpluggedError):
        loop.finish()
    reopen(tmp_path / "run").finish()
    ledger = PrivacyLedger.load(tmp_path / "run" / PRIVACY)
    assert [(entry.round, entry.settled, bool(entry.clients)) for entry in ledger.entries] == [
        (0, True, True),
        (1, False, False),
        (1, True, True),
        (2, True, False),
        (3, True, False),
    ]


@pytest.mark.parametrize("how", [{}, {"observer": "server"}, {"observer": "server", "name": "discrete_gaussian"}])
def test_passes_with_fixed_noise_resume_bit_for_bit_to_the_last_round(tmp_path, how):
    """All rounds were paid for when the run died; noise that is the same again costs nothing, so all are run again."""
    privacy = PASSES | {"insecure_noise_seed": 7} | how
    secure = {"secure": {}} if "name" in how else {}
    config = load_config(tables(privacy=privacy, algorithm={"batch": 4}, engine={"checkpoint_seconds": 3600.0}, **secure))
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(3))
    resumed, whole = reopen(tmp_path / "run").finish(), sketchfed.run(config)
    assert len(resumed.metrics) == 4
    assert resumed.weights.equal(whole.weights)
    assert resumed.metrics[-1]["epsilon"] == whole.metrics[-1]["epsilon"]


def test_secure_sums_with_fixed_noise_resume_bit_for_bit(tmp_path):
    privacy = {"name": "discrete_gaussian", "epsilon": 5.0, "delta": 0.01, "insecure_noise_seed": 7}
    config = load_config(tables(privacy=privacy, secure={}, engine={"checkpoint_seconds": 3600.0}))
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(2))
    resumed, whole = reopen(tmp_path / "run").finish(), sketchfed.run(config)
    assert resumed.weights.equal(whole.weights)
    assert resumed.metrics[-1]["uplink_bytes"] == whole.metrics[-1]["uplink_bytes"]


def test_a_run_whose_ledger_is_gone_does_not_go_on(tmp_path):
    config = load_config(tables())
    with pytest.raises(UnpluggedError):
        prepare(config, folder=tmp_path / "run").finish(interrupt_after(2))
    (tmp_path / "run" / PRIVACY).unlink()
    with pytest.raises(StorageError, match="privacy ledger"):
        reopen(tmp_path / "run")


def test_a_clip_norm_that_nothing_reaches_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "sketchfed"):
        sketchfed.run(tables(privacy=CLIENT | {"clip": 1e6}, rounds=1))
    assert "never reached (quantile 1)" in caplog.text


@pytest.mark.parametrize("privacy", [CLIENT, EXAMPLE], ids=["client", "example"])
def test_a_clip_norm_that_everything_exceeds_is_warned_of(caplog, privacy):
    with caplog.at_level(logging.WARNING, "sketchfed"):
        sketchfed.run(tables(privacy=privacy | {"clip": 1e-6}, rounds=1))
    assert "clips everything (quantile 0)" in caplog.text


def test_bad_budgets_are_refused_before_round_one():
    with pytest.raises(InputError, match=r"1/4 = 0\.25"):
        sketchfed.run(tables(privacy=CLIENT | {"delta": 0.25}))
