"""The most memory that this process held, where Linux tells it."""

from contextlib import suppress
from pathlib import Path


def peak_bytes() -> int | None:
    """The peak since the process began, or since `forget_peak`. (What getrusage says includes the parent's.)"""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)


def forget_peak() -> None:
    """Count from what is held now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
