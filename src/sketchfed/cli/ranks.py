"""`sketchfed run` on the ranks of a launch."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sketchfed.errors import InputError

if TYPE_CHECKING:
    from sketchfed.config import Config
    from sketchfed.rounds.launch import Launch


def serve_clients(launch: "Launch", given: "Sequence[Config] | None", *, device: str | None) -> None:
    """Serve clients in all runs of rank 0. `given` are their configurations. If absent, rank 0 sends them."""
    from sketchfed.runs.following import serve_all
    from sketchfed.runs.objects import problem_of

    if given is not None:
        _check(launch, given)
        if device is not None:
            given = [replace(config, engine=replace(config.engine, device=device)) for config in given]
    serve_all(given, problem_of)


def lead_ranks(launch: "Launch", configs: "Sequence[Config]") -> None:
    """Get ready to run the server for all ranks."""
    _check(launch, configs)
    signal.signal(signal.SIGTERM, _ended)


def _check(launch: "Launch", configs: "Sequence[Config]") -> None:
    """Refuse a launch of several ranks for runs of one process: each rank would do the same."""
    for config in configs:
        if config.engine.name != "ranks":
            raise InputError(
                f"this is rank {launch.rank} of a launch of {launch.size}, but engine.name = '{config.engine.name}' of run "
                f"'{config.name}' needs one process. Add --set engine.name=ranks, or start it without torchrun."
            )


def _ended(number: int, frame: object) -> None:
    """End rank 0 when the launcher says so. The run's folder is always fit to be resumed."""
    from sketchfed.rounds.rank_hub import has_joined
    from sketchfed.rounds.ranks import RESUME

    if has_joined():  # otherwise this rank has noticed by itself, and is about to say so
        said = f"the launch was ended (signal {number}), as torchrun does after a rank failed."
        print(f"sketchfed: {said} {RESUME}", file=sys.stderr, flush=True)
        os._exit(128 + number)


def between_ranks(folder: Path) -> str:
    """What the ranks of a run exchanged, in a line. Empty for a run in one process."""
    from sketchfed.report.units import shown_bytes
    from sketchfed.runs.versions import SUMMARY

    try:
        found = json.loads((folder / SUMMARY).read_bytes())["ranks"]
        sent, received, down, up = (shown_bytes(found[key]) for key in ("sent", "received", "payload_down", "payload_up"))
        where = f"{found['count']} ranks on {found['hosts']} machine{'s' if found['hosts'] > 1 else ''}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"{folder.name}: {where} · rank 0 sent {sent} and received {received} · requests {down}, replies {up}"
