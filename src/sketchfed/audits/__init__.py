"""Audits: they attack what was really sent, and report what an adversary recovers."""

from sketchfed.audits.canaries import Canaries, with_canaries
from sketchfed.audits.defence import Effort
from sketchfed.audits.evidence import Evidence, record, recorded_run, repeatable
from sketchfed.audits.findings import AuditRecord, DefenceRecord, Finding, read_record
from sketchfed.audits.outside import Property
from sketchfed.audits.png import png_base64
from sketchfed.audits.running import AuditTerms, Subject, audit, audited, write_audit

__all__ = [
    "AuditRecord",
    "AuditTerms",
    "Canaries",
    "DefenceRecord",
    "Effort",
    "Evidence",
    "Finding",
    "Property",
    "Subject",
    "audit",
    "audited",
    "png_base64",
    "read_record",
    "record",
    "recorded_run",
    "repeatable",
    "with_canaries",
    "write_audit",
]
