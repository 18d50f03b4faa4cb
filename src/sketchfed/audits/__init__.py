"""Audits: attack what was really sent, and say what an adversary gets back."""

from sketchfed.audits.defence import Effort
from sketchfed.audits.outside import Property
from sketchfed.audits.record import AuditRecord, DefenceRecord, Finding, read_record
from sketchfed.audits.recorded import Recorded, record, recorded_run, repeatable
from sketchfed.audits.running import Subject, Terms, audit, audited, write_audit

__all__ = [
    "AuditRecord",
    "DefenceRecord",
    "Effort",
    "Finding",
    "Property",
    "Recorded",
    "Subject",
    "Terms",
    "audit",
    "audited",
    "read_record",
    "record",
    "recorded_run",
    "repeatable",
    "write_audit",
]
