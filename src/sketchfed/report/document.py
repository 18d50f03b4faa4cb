"""A page: one HTML file that needs nothing else."""

import base64
import hashlib
import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sketchfed.version import __version__

_CSS = Path(__file__).with_name("page.css")


def document(
    title: str, body: Sequence[str], *, footer: str, styles: str = "", scripts: Sequence[str] = (), data: str = ""
) -> str:
    """A whole page of these parts, which are HTML but for the title; empty parts are left out.

    `styles` are added to the look that all pages share, `data` are elements for the scripts.
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="sketchfed {__version__}">
<title>{escape(title)}</title>
<style>
{_CSS.read_text(encoding="utf-8")}{styles}</style>
</head>
<body>
<main>
{chr(10).join(filter(None, body))}
</main>
<footer>{footer}</footer>
{data}
{chr(10).join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _policy(scripts: Sequence[str]) -> str:
    """Only these scripts run, and nothing is fetched. Vega compiles its expressions, which counts as eval."""
    if not scripts:
        return "default-src 'none'; script-src 'none'; style-src 'unsafe-inline'; img-src data:"
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src 'unsafe-eval' {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def written_by() -> str:
    """The software that wrote the page, which need not be the software that ran."""
    names = {"Python": platform.python_version()} | {name: _installed(name) for name in ("torch", "numpy")}
    return f"Written by {escape(listed({'sketchfed': __version__} | names))}. This file needs no network."


def listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
