"""Finds the attacks that have power: those that succeed without a defence."""

from collections.abc import Sequence
from dataclasses import replace

from sketchfed.audits.findings import DefenceRecord, Finding


def with_power(defences: Sequence[DefenceRecord]) -> list[DefenceRecord]:
    """Return the records, with 'no power' for attacks that fail on the first, undefended one.

    If an attack cannot be tried there, it must succeed elsewhere to have power. Success is what makes a finding a leak: a
    recovered example, a median cosine surely above a half, or an area surely above a half.
    """
    if not defences:
        return []
    baseline = defences[0]
    able = {finding.attack for finding in baseline.findings if finding.verdict == "leaks"}
    tried = {finding.attack for finding in baseline.findings if finding.verdict != "not applicable"}
    return [
        replace(each, findings=[_judged(finding, able, tried, baseline.name) for finding in each.findings]) for each in defences
    ]


def _judged(finding: Finding, able: set[str], tried: set[str], baseline: str) -> Finding:
    if finding.verdict != "nothing found" or finding.attack in able:
        return finding
    why = (
        f"it fails on '{baseline}' as well, so its failure says nothing of this defence."
        if finding.attack in tried
        else f"it cannot be tried on '{baseline}', so nobody knows whether it would succeed where nothing defends."
    )
    return replace(finding, verdict="no power", reason=f"{finding.reason} {why}".strip())
