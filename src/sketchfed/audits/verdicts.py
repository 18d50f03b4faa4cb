"""The conclusions from findings, in words that the page and the terminal share.

An attack that failed proves nothing. An attack without power does not even count as having failed.
"""

from collections.abc import Sequence
from typing import get_args

from sketchfed.attacks.base import Goal
from sketchfed.audits.findings import AuditRecord, AuditVerdict, DefenceRecord, Finding
from sketchfed.report.tables import NOTHING

GOALS: tuple[Goal, ...] = get_args(Goal)
MEASURES = {"psnr": "PSNR", "cosine": "cosine", "auc": "AUC"}
NO_PROOF = "“Nothing found” is no proof. “No power” says nothing: the attack also fails where nothing defends."
INTERRUPTED = "This audit was interrupted. It shows what is there; findings and defences may be missing."

_RANKS: tuple[AuditVerdict, ...] = ("not applicable", "no power", "nothing found", "leaks")
_JUDGED: tuple[AuditVerdict, ...] = ("nothing found", "leaks")


def strongest(defence: DefenceRecord, goal: Goal) -> Finding | None:
    """The most important finding about a defence: a leak first, then attacks with power, and among these the highest score."""

    def strength(finding: Finding) -> tuple[int, float]:
        return _RANKS.index(finding.verdict), float("-inf") if finding.score is None else finding.score

    return max((finding for finding in defence.findings if finding.goal == goal), key=strength, default=None)


def shown_score(finding: Finding, value: float | None) -> str:
    """A score of this finding, or an end of its interval, with its unit."""
    if value is None:
        return NOTHING
    return f"{value:.1f} dB" if finding.measure == "psnr" else f"{value:.3f}"


def headline(record: AuditRecord) -> list[str]:
    """The conclusions of the audit in sentences of plain text."""
    if not record.defences:
        return ["No defence has been audited yet."]
    return [_recovered(record.defences), _by_noise(record.defences), _sketching(record.defences)]


def _recovered(defences: Sequence[DefenceRecord]) -> str:
    """How many defences let an attack recover examples, and about how many nothing can be said."""
    found = [strongest(defence, "examples") for defence in defences]
    verdicts = [finding.verdict if finding else None for finding in found]
    leaking = [defence.name for defence, verdict in zip(defences, verdicts, strict=True) if verdict == "leaks"]
    unknown = [defence.name for defence, verdict in zip(defences, verdicts, strict=True) if verdict not in _JUDGED]
    said = (
        f"An attack recovered training examples in {len(leaking)} of {len(defences)} ways to train: {', '.join(leaking)}."
        if leaking
        else f"No attack recovered training examples in any of {len(defences)} ways to train, which is no proof."
    )
    if not unknown:
        return said
    return f"{said} Nothing can be said of {', '.join(unknown)}: no attack on examples had power or could be applied."


def _by_noise(defences: Sequence[DefenceRecord]) -> str:
    """Leaks of any kind, without and with calibrated noise. Defences that no attack with power was tried on do not count."""
    judged = [defence for defence in defences if any(finding.verdict in _JUDGED for finding in defence.findings)]
    bare = [_leaks(defence) for defence in judged if defence.epsilon is None]
    noisy = [_leaks(defence) for defence in judged if defence.epsilon is not None]
    counts = [
        f"{sum(leaks)} of {len(leaks)} {which} calibrated noise"
        for leaks, which in ((bare, "without"), (noisy, "with"))
        if leaks
    ]
    if not counts:
        return "No attack had power, so none of them can be judged."
    missing = len(defences) - len(judged)
    return f"Attacks found leaks in {' and in '.join(counts)}{f'; {missing} more cannot be judged' if missing else ''}."


def _sketching(defences: Sequence[DefenceRecord]) -> str:
    """Name the smallest reply that leaks as an example."""
    small = [each for each in defences if each.epsilon is None and each.numbers < each.dim and _leaks(each)]
    if not small:
        return "Sketching alone is not privacy, whatever was found here: only calibrated noise bounds all attacks."
    least = min(small, key=lambda defence: defence.numbers / defence.dim)
    sent = f"{least.numbers:,} numbers for {least.dim:,} parameters"
    return f"Sketching alone is not privacy: a reply of {least.name} is {sent}, and it leaks."


def _leaks(defence: DefenceRecord) -> bool:
    return any(finding.verdict == "leaks" for finding in defence.findings)
