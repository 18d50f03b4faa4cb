"""What an audit found, as plain data: what `audit.json` holds and the page shows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from sketchfed.attacks.base import Goal
from sketchfed.errors import InputError

AUDIT = "audit.json"
FORMAT = 1

AuditVerdict = Literal["leaks", "nothing found", "no power", "not applicable"]
"""'no power': the attack failed without any defence, so its failure here means nothing."""


@dataclass(frozen=True, kw_only=True)
class PicturePair:
    """An original and what the attack made of it, as PNG files in base64."""

    truth: str
    guess: str
    decibels: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack from one view came to.

    `score` is the attack's main one, with its interval of 95 %, `chance` what somebody gets who looks at nothing: the mean
    image of public data for examples (PSNR in dB), 0 for the cosine of steps, 1/2 for areas under ROC curves.
    """

    role: str
    attack: str
    goal: Goal
    verdict: AuditVerdict
    reason: str = ""
    """Why it could not be applied, or has no power, and what to use instead; or a remark on what was seen."""
    victims: int = 0
    """How many updates, steps or examples the scores are over."""
    examples: int = 1
    """How many examples are behind one update, where examples are looked for."""
    measure: Literal["psnr", "cosine", "auc"] = "psnr"
    score: float | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    details: dict[str, float] = field(default_factory=dict)
    """Other scores: mse, ssim, labels, recognised, recognised_originals, failures, epsilon_lower, true_positive_rate."""
    pictures: list[PicturePair] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DefenceRecord:
    """One way to train, what it cost, and what attacks came to."""

    name: str
    label: str
    """The algorithm and what it sends, in a few words."""
    config: str
    """TOML with every setting, to run it again."""
    accuracy: float | None
    loss: float | None
    rounds: int
    uplink_bytes: int
    downlink_bytes: int
    numbers: int
    """Numbers that a reply carries."""
    dim: int
    epsilon: float | None
    """What was spent by calibrated noise; None without."""
    claim: str
    """What ε is about, or that nothing is claimed."""
    findings: list[Finding]
    asked: str = ""
    """TOML as it was asked for."""


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """All defences on the same model and data; the first is the undefended one on which attacks show their power."""

    setting: str
    """Data, model and clients, in a line."""
    seed: int
    version: str
    defences: list[DefenceRecord]
    effort: dict[str, int] = field(default_factory=dict)
    """How hard attacks tried."""
    attacks: list[str] = field(default_factory=list)
    """Which were chosen; empty if none was, and all were tried."""
    finished: bool = True
    format: int = FORMAT


def write_record(record: AuditRecord, path: Path) -> Path:
    """Write `audit.json`; equal records give equal files."""
    from sketchfed.storage import replace_file

    replace_file(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    return path


def read_record(path: Path) -> AuditRecord:
    """The record in `audit.json`, checked."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=AuditRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} is not an audit that can be read: {error}. Write it anew with: sketchfed audit.") from error
    if record.format != FORMAT:
        raise InputError(f"{path} has format {record.format}, this version reads {FORMAT}. Audit again.")
    return record
