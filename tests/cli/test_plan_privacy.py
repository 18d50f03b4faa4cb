import re

import pytest
from typer.testing import CliRunner

from sketchfed.cli.plan import app
from sketchfed.cli.plan_privacy import _most_rounds
from sketchfed.errors import InputError
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim

EXAMPLE = ("--epsilon", "3", "--delta", "1e-5", "--clients", "1000", "--cohort", "100", "--rounds", "200")


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["privacy", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def multipliers(said: str, method: str) -> list[float]:
    """The noise of one method in every table."""
    return [float(found) for found in re.findall(rf"^  {re.escape(method)} +(\d+\.\d+) ", said, re.MULTILINE)]


def test_the_example_prints_every_method_for_seen_and_for_hidden_cohorts():
    said = run(*EXAMPLE)
    assert "a client takes part in 20 of 200 rounds on average, one of them in 33 (seed 0)" in said
    assert "a client is in each of 200 rounds with chance 0.1" in said
    for method in ("Song et al. 2023, Thm 6.2", "DOME, Thm 3.3", "advanced composition", "zCDP", "RDP", "PLD"):
        assert len(multipliers(said, method)) == 2
    assert multipliers(said, "PLD") == pytest.approx([7.988, 2.178], abs=2e-3)
    assert "at δ = 1e-05, client level, zero-out, against the server (PLD)" in said
    assert "at δ = 1e-05, client level, add-remove, against the public (PLD)" in said


def test_a_promise_that_is_not_kept_is_marked():
    said = run("--epsilon", "8", "--clients", "20", "--rounds", "200")
    assert re.search(r"exact steps .* 8\.30 not kept", said)
    assert not re.search(r"PLD .*not kept", said)
    assert re.search(r"Lemma H\.4 .* 69\.49 not kept", said)
    assert "Lemma H.4 is about one round" in said


def test_the_table_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("--epsilon", "8", "--clients", "20", "--rounds", "200")
    assert len(multipliers(said, "Song et al. 2022, Lemma H.4")) == 1
    assert max(map(len, said.splitlines())) <= 80


def test_all_clients_in_every_round_leaves_nothing_to_hide():
    said = run("--clients", "20", "--rounds", "10")
    assert "every client takes part in all 10 rounds" in said
    assert len(multipliers(said, "PLD")) == 1


def test_examples_are_protected_by_secret_batches_against_the_server_too():
    said = run(
        "--unit", "example", "--clients", "100", "--examples", "600", "--batch", "6", "--rounds", "300", "--local-steps", "2"
    )
    assert "each example with probability 0.01" in said
    assert said.count("example level, add-remove, against the server") == 2
    (_, hidden) = multipliers(said, "PLD")
    claim = Claim(unit="example", adjacency="add-remove", observer="server", delta=1e-5)
    assert epsilon_of({Charge(multiplier=hidden, sampling=0.01, steps=2): 300}, claim) == pytest.approx(3, rel=5e-3)


def test_an_example_pays_for_one_sum_a_pass():
    """300 rounds are 3 passes of 100, and their noise is √3 times that of one Gaussian."""
    said = run("--unit", "example", "--clients", "100", "--examples", "600", "--batch", "6", "--rounds", "300")
    assert "Passes over the data, 100 rounds each" in said
    assert "example level, zero-out, against the server" in said
    (seen, passes, hidden) = multipliers(said, "PLD")
    assert passes == pytest.approx(3**0.5 * 1.391, rel=1e-3)
    assert hidden < passes < seen


def test_replacing_takes_about_twice_the_noise():
    both = multipliers(run(*EXAMPLE), "PLD"), multipliers(run(*EXAMPLE, "--adjacency", "replace-one"), "PLD")
    assert both[1][0] == pytest.approx(2 * both[0][0], rel=1e-3)
    assert 1.5 < both[1][1] / both[0][1] < 2


def test_the_noise_on_the_mean_is_shared_by_the_cohort_and_has_a_length():
    said = run(*EXAMPLE, "--clip", "0.5", "--dim", "10000")
    assert re.search(r"^  PLD +7\.98\d +0\.0399 ", said, re.MULTILINE)
    assert "At 10,000 parameters the noise by PLD has length 3.99 on a mean of length 0.5 at most" in said


def test_the_most_rounds_of_a_client_are_given_counted_or_bounded():
    assert _most_rounds(10, 3, 50, 7, 12)[0] == 12
    assert _most_rounds(10, 10, 50, 7, None)[0] == 50
    counted, _ = _most_rounds(10, 3, 50, 7, None)
    assert 15 < counted < 30
    bound, how = _most_rounds(1_000_000, 1_000, 20_000, 7, None)
    assert 20 < bound < 100
    assert "none in more than" in how
    assert "0.999" in how


def test_a_cap_on_rounds_of_a_client_saves_noise():
    assert multipliers(run(*EXAMPLE, "--participations", "20"), "PLD")[0] < multipliers(run(*EXAMPLE), "PLD")[0]


def test_the_bare_command_still_plans_for_sketches():
    result = CliRunner().invoke(app, ["--dim", "1024", "--size", "64"], catch_exceptions=False)
    assert "1,024 → 64" in result.stdout


def test_help_says_when_sampling_counts():
    said = run("--help")
    assert "Sampling makes noise go further only if the observer cannot see who was sampled" in said
    assert "not kept" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--epsilon", "0"], "epsilon must be a positive number, got 0"),
        (["--delta", "0.01"], "delta 0.01 is not between 0 and 1/1,000.*such as 1e-4"),
        (["--delta", "0"], "delta 0 is not between 0 and 1/1,000"),
        (["--cohort", "2000"], "--cohort 2,000 exceeds --clients 1,000"),
        (["--cohort", "0"], "--cohort must be at least 1, got 0"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--clip", "0"], "--clip must be a positive number, got 0"),
        (["--unit", "household"], "no unit named 'household'"),
        (["--adjacency", "swap"], "no adjacency named 'swap'"),
        (["--batch", "10"], "--batch 10 says nothing at client level"),
        (["--local-steps", "5"], "--local-steps 5 says nothing at client level"),
        (["--unit", "example"], "--unit example needs the number of --examples that a client has and the --batch"),
        (["--unit", "example", "--examples", "5", "--batch", "6"], "--batch 6 exceeds --examples 5"),
        (["--participations", "300"], "--participations 300 exceeds --rounds 200"),
    ],
)
def test_wrong_input_is_refused(arguments, why):
    with pytest.raises(InputError, match=why):
        CliRunner().invoke(app, ["privacy", *arguments], catch_exceptions=False)
