"""Audits as they may come out, with findings of every verdict and goal."""

import torch

from sketchfed.audits.findings import AuditRecord, DefenceRecord, Finding, PicturePair
from sketchfed.audits.png import png_base64


def picture(decibels: float = 31.25, side: int = 8) -> PicturePair:
    """A ring, and the ring with an error of about this size."""
    steps = torch.linspace(-1, 1, side)
    distance = (steps[:, None].square() + steps[None].square()).sqrt()
    truth = (-((distance - 0.6) / 0.25).square()).exp()[None]
    error = torch.randn(truth.shape, generator=torch.Generator().manual_seed(side)) * 10 ** (-decibels / 20)
    return PicturePair(truth=png_base64(truth), guess=png_base64(truth + error), decibels=decibels)


def leak(score: float = 31.25, **changes) -> Finding:
    given = {
        "role": "server", "attack": "matching", "goal": "examples", "verdict": "leaks", "victims": 12, "score": score,
        "low": score - 2, "high": score + 2, "chance": 9.5, "pictures": [picture(score + n) for n in (-2, 0, 2)],
        "details": {"mse": 7.5e-4, "ssim": 0.9312, "labels": 1.0, "recognised": 0.9167, "recognised_originals": 1.0},
    }  # fmt: skip
    return Finding(**given | changes)


def held(score: float = 9.75, **changes) -> Finding:
    return leak(score, **{"verdict": "nothing found", "pictures": [picture(score)]} | changes)


def powerless(score: float = 9.25, **changes) -> Finding:
    reason = "It fails on the undefended model too. Use more iterations."
    return leak(score, **{"verdict": "no power", "reason": reason, "pictures": []} | changes)


def inapplicable(**changes) -> Finding:
    reason = "Replies are masked. Attack the opened sums instead."
    given = {"role": "server", "attack": "matching", "goal": "examples", "verdict": "not applicable", "reason": reason}
    return Finding(**given | changes)


_AREA = {"measure": "auc", "chance": 0.5, "pictures": []}
STEPS = leak(
    0.8312, role="client", attack="adjoint", goal="steps", measure="cosine", low=0.79, high=0.87, chance=0, pictures=[]
)
PROPERTY = held(0.531, role="colluders", attack="property", goal="property", low=0.46, high=0.6, details={}, **_AREA)
MEMBERS = powerless(
    0.5075, role="network", attack="membership", goal="members", low=0.44, high=0.57, **_AREA,
    details={"epsilon_lower": 0.129, "true_positive_rate": 0.02},
)  # fmt: skip


def defence(name: str = "sketch-tenth", *findings: Finding, **changes) -> DefenceRecord:
    given = {
        "name": name, "label": "iterative srht 1/10", "config": '[algorithm]\nname = "iterative"\n', "accuracy": 0.9576,
        "loss": 0.2143, "rounds": 30, "uplink_bytes": 1_094_000, "downlink_bytes": 2_188_000, "numbers": 897, "dim": 8_970,
        "epsilon": None, "claim": "nothing is claimed", "findings": list(findings),
    }  # fmt: skip
    return DefenceRecord(**given | changes)


def private(name: str = "private", *findings: Finding, **changes) -> DefenceRecord:
    claim = "at δ = 1e-05, client level, zero-out, against the server (PLD)"
    return defence(name, *findings, **{"epsilon": 2.991, "claim": claim, "label": "iterative srht 1/10, noise"} | changes)


def audit(*defences: DefenceRecord, **changes) -> AuditRecord:
    """With no defences given: one of each kind."""
    given = {
        "setting": "digits · mlp 64-64-10 (8,970 parameters) · 20 clients", "seed": 7, "version": "0.1.0",
        "defences": list(defences) or everything(),
    }  # fmt: skip
    return AuditRecord(**given | changes)


def everything() -> list[DefenceRecord]:
    analytic = leak(98.5, role="network", attack="analytic", pictures=[picture(98.5 + n / 10) for n in range(12)])
    masked = inapplicable(role="secure server"), leak(18.5, role="secure server", attack="sum matching", pictures=[])
    return [
        defence("undefended", leak(), analytic, STEPS, PROPERTY, MEMBERS, label="fedavg", numbers=8_970),
        defence("sketch-tenth", leak(22.5, pictures=[picture(22.5, 28)]), held(role="network"), STEPS, MEMBERS),
        defence("secure sums", *masked, PROPERTY, label="fedavg, secure sums of 5", numbers=8_970),
        defence("blind", powerless(), STEPS, label="dbcl balanced 1/2", numbers=4_870, accuracy=None, loss=None),
        private("private", held(), inapplicable(role="client", goal="steps"), PROPERTY, MEMBERS),
    ]
