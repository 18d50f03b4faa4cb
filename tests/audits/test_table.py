import pytest
from records import MEMBERS, STEPS, audit, defence, everything, held, leak, powerless, private
from rich.console import Console

from sketchfed.audits.table import terminal_table


def printed(record, width=100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_table(record, width))
    return capture.get()


def row(text: str, name: str) -> list[str]:
    """The words of the first line of a defence."""
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name} "))
    return line.split()


def test_a_row_has_accuracy_bytes_and_the_strongest_finding_of_each_goal():
    text = printed(audit(defence("sketch", leak(22.5), leak(31.25, role="network"), held(), STEPS, MEMBERS)))
    assert row(text, "sketch") == ["sketch", "0.958", "1.09", "MB", "none", "leaks", "leaks", "no", "power"]
    assert "31.2 dB" in text
    assert "network" in text
    assert "0.831" in text
    assert "22.5" not in text


def test_epsilon_is_shown_with_its_claim_and_is_none_without_noise():
    text = printed(audit(defence("bare", leak()), private("noisy", held())))
    assert row(text, "noisy")[4] == "3.00"
    assert row(text, "bare")[4] == "none"
    assert "noisy: ε at δ = 1e-05, client level" in " ".join(text.split())
    assert "bare: ε" not in text


def test_an_attack_without_power_is_shown_as_such_and_explained():
    text = printed(audit(defence("sketch", powerless())))
    assert row(text, "sketch")[-2:] == ["no", "power"]
    assert "found" not in row(text, "sketch")
    assert "“No power” says nothing" in " ".join(text.split())


def test_goals_that_nobody_was_after_have_no_column():
    text = printed(audit(defence("sketch", leak())))
    assert "examples" in text
    assert "members" not in text


@pytest.mark.parametrize("width", [200, 100, 80, 60])
def test_the_table_fits_and_nothing_is_cut(width):
    long = private("a-name-that-is-longer-than-any-column-could-be", leak(), STEPS, MEMBERS, epsilon=123.456)
    text = printed(audit(*everything(), long), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert "123.46" in text


@pytest.mark.parametrize(("width", "whole"), [(100, True), (80, False)])
def test_verdicts_are_stacked_where_there_is_little_room(width, whole):
    assert any("not applicable" in line for line in printed(audit(), width).splitlines()) == whole


def test_an_interrupted_audit_says_so():
    assert "interrupted" in printed(audit(finished=False))
    assert "interrupted" not in printed(audit())


def test_an_audit_without_defences_is_an_empty_table():
    assert "defence" in printed(audit(defences=[]))


def test_texts_are_neither_markup_nor_commands_for_the_terminal():
    text = printed(audit(defence("[red]x\x1b[2J", leak(role="[b]\x07")), setting="[i]\x1b]0;"))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x" in text
    assert "[i]" in text


def test_equal_records_print_equal_tables():
    assert printed(audit()) == printed(audit())
