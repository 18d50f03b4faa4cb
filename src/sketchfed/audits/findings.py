"""The findings of an audit as plain data: the contents of `audit.json`, which the page shows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from sketchfed.attacks.base import Goal
from sketchfed.errors import InputError

AUDIT = "audit.json"
FORMAT = 1

AuditVerdict = Literal["leaks", "nothing found", "no power", "not applicable"]
"""'no power' means that the attack failed even without a defence, so its failure here proves nothing."""


@dataclass(frozen=True, kw_only=True)
class PicturePair:
    """An original and the attack's reconstruction, as PNG files in base64."""

    truth: str
    guess: str
    decibels: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one attack from one view.

    `score` is the attack's main score, with its interval of 95 %. `chance` is the score of guessing without any observation:
    the mean image of public data for examples (PSNR in dB), 0 for the cosine of steps, 1/2 for areas under ROC curves.
    """

    role: str
    attack: str
    goal: Goal
    verdict: AuditVerdict
    reason: str = ""
    """Why the attack could not be applied or has no power, and what to use instead. Otherwise a remark."""
    victims: int = 0
    """The number of updates, steps or examples in the scores."""
    examples: int = 1
    """The number of examples behind one update, if the attack reconstructs examples."""
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
    """One defence: how it trained, what it cost, and what attacks found."""

    name: str
    label: str
    """The algorithm and what it sends, in a few words."""
    config: str
    """TOML with every setting, with which it can be run again."""
    accuracy: float | None
    loss: float | None
    rounds: int
    uplink_bytes: int
    downlink_bytes: int
    numbers: int
    """The number of values in a reply."""
    dim: int
    epsilon: float | None
    """The ε that calibrated noise has spent. None without such noise."""
    claim: str
    """What ε refers to, or that nothing is claimed."""
    findings: list[Finding]
    asked: str = ""
    """TOML as the user gave it."""


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """All defences on the same model and data. The first one is undefended, and attacks must succeed there to have power."""

    setting: str
    """One line about the data, the model and the clients."""
    seed: int
    version: str
    defences: list[DefenceRecord]
    effort: dict[str, int] = field(default_factory=dict)
    """How hard attacks tried."""
    attacks: list[str] = field(default_factory=list)
    """The attacks that were chosen. Empty if all were tried."""
    finished: bool = True
    format: int = FORMAT


def write_record(record: AuditRecord, path: Path) -> Path:
    """Write `audit.json`. Equal records give equal files."""
    from sketchfed.storage import replace_file

    replace_file(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    return path


def read_record(path: Path) -> AuditRecord:
    """Read and check the record in `audit.json`."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=AuditRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} is not an audit that can be read: {error}. Write it anew with: sketchfed audit.") from error
    if record.format != FORMAT:
        raise InputError(f"{path} has format {record.format}, this version reads {FORMAT}. Audit again.")
    return record
