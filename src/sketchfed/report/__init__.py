"""Pictures and tables of what was measured."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchfed.report.charts import INK, MUTED, PALETTE, save_chart
    from sketchfed.report.loading import ClientFigures, NodeFigures, Round, RunRecord, read
    from sketchfed.report.means import with_error
    from sketchfed.report.networks import Link, NetworkRecord
    from sketchfed.report.page import write_report
    from sketchfed.report.tables import latex_table, terminal_table
    from sketchfed.report.units import shown_accuracy, shown_bytes, shown_epsilon, shown_loss, shown_seconds, shown_share

__all__ = [
    "INK",
    "MUTED",
    "PALETTE",
    "ClientFigures",
    "Link",
    "NetworkRecord",
    "NodeFigures",
    "Round",
    "RunRecord",
    "latex_table",
    "read",
    "save_chart",
    "shown_accuracy",
    "shown_bytes",
    "shown_epsilon",
    "shown_loss",
    "shown_seconds",
    "shown_share",
    "terminal_table",
    "with_error",
    "write_report",
]

_NAMES = {
    "charts": ("INK", "MUTED", "PALETTE", "save_chart"),
    "loading": ("ClientFigures", "NodeFigures", "Round", "RunRecord", "read"),
    "means": ("with_error",),
    "networks": ("Link", "NetworkRecord"),
    "page": ("write_report",),
    "tables": ("latex_table", "terminal_table"),
    "units": ("shown_accuracy", "shown_bytes", "shown_epsilon", "shown_loss", "shown_seconds", "shown_share"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # charts take a second to import, and a table needs none
        return getattr(import_module(f"sketchfed.report.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sketchfed.report' has no attribute {name!r}")
