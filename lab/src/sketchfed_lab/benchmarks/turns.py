"""Sides that each work in a process of their own and take turns: one works while the others wait."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from sketchfed.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Order:
    """How a side is started.

    For each line of its input it does one piece of work, and answers with a line of JSON: the cell and the CPU seconds.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


def taken(orders: Mapping[str, Order], refusal: Callable[[str, str], str]) -> Iterator[tuple[str, str, float]]:
    """Let all sides work in turns, until one of them has no cell left: side, cell and CPU seconds of each turn.

    If a side fails, `InputError` says what `refusal` makes of the side and its last words.
    """
    with ExitStack() as stack:
        sides = {side: stack.enter_context(_working(order)) for side, order in orders.items()}
        while True:
            for side, process in sides.items():
                try:
                    process.stdin.write("\n")  # type: ignore[union-attr]
                    process.stdin.flush()  # type: ignore[union-attr]
                    answer = process.stdout.readline()  # type: ignore[union-attr]
                except BrokenPipeError:
                    answer = ""
                if not answer:
                    if process.wait(60):
                        raise InputError(refusal(side, _last_words(process)))
                    return
                cell, seconds = json.loads(answer)
                yield side, cell, seconds


@contextmanager
def _working(order: Order) -> Iterator["subprocess.Popen[str]"]:
    pipe = subprocess.PIPE
    environment = {**order.environment, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(list(order.command), env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            with suppress(BrokenPipeError):  # it may have ended before it read its last line
                process.stdin.close()  # type: ignore[union-attr]


def _last_words(process: "subprocess.Popen[str]") -> str:
    said = (process.stderr.read() if process.stderr else "").strip().splitlines()
    return said[-1] if said else "it said nothing"
