"""An attack that fails where nothing defends says nothing elsewhere."""

from audits.records import defence, held, inapplicable, leak
from sketchfed.audits.power import with_power


def verdict_of(*defences):
    return [[finding.verdict for finding in each.findings] for each in with_power(defences)]


def test_an_attack_that_succeeds_undefended_has_power_and_its_failure_elsewhere_stands():
    assert verdict_of(defence("plain", leak()), defence("noisy", held())) == [["leaks"], ["nothing found"]]


def test_an_attack_that_fails_undefended_has_no_power_anywhere_and_says_why():
    judged = with_power([defence("plain", held()), defence("noisy", held(reason="seen through a sketch."))])
    assert [each.findings[0].verdict for each in judged] == ["no power", "no power"]
    assert judged[1].findings[0].reason.startswith("seen through a sketch. it fails on 'plain'")


def test_success_from_one_view_is_power_in_all():
    plain = defence("plain", held(role="client"), leak(role="server"))
    assert verdict_of(plain, defence("noisy", held(role="client"))) == [["nothing found", "leaks"], ["nothing found"]]


def test_an_attack_that_cannot_be_tried_undefended_shows_its_power_by_success_or_not_at_all():
    plain = defence("plain", inapplicable(attack="all broadcasts"))
    other = defence("dbcl", leak(attack="all broadcasts"), held(attack="option I"))
    assert verdict_of(plain, other) == [["not applicable"], ["leaks", "no power"]]


def test_a_second_look_changes_nothing():
    once = with_power([defence("plain", held()), defence("noisy", held(), leak(attack="dlg"))])
    assert with_power(once) == once


def test_nothing_is_made_of_nothing():
    assert with_power([]) == []
