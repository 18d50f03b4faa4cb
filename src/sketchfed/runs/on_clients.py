"""Columns of metrics.jsonl that say how the model does on each client's own data."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sketchfed.errors import InputError, SketchfedError, reason
from sketchfed.rounds.server import Server
from sketchfed.rounds.survey import Statistics, read_metrics, statistics
from sketchfed.runs.problem import FederatedProblem
from sketchfed.seeds import PublicSeed
from sketchfed.training import Turn
from sketchfed.vectors import flatten

log = logging.getLogger("sketchfed")

PREFIX, SCORED, BYTES = "clients_", "clients_scored", "clients_bytes"
SUFFIXES = ("", "_worst", "_spread")
"""The columns of a metric, in the order of `Statistics`."""
_TRIED = 5  # number of clients that are tried before the evaluation is refused
_SHOWN = 5


class OnClients:
    """Evaluates all clients between rounds, and makes statistics of what they measured.

    Metrics are those of the first client that can be evaluated with the first weights. Clients that fail, and values that are
    not finite, are left out and named in the log.
    """

    def __init__(self, problem: FederatedProblem, seed: PublicSeed) -> None:
        self.names = _names(problem, seed)
        self.keys = (SCORED, BYTES, *(f"{PREFIX}{name}{suffix}" for name in self.names for suffix in SUFFIXES))
        taken = {*problem.keys}
        for key in self.keys:
            if key in taken:
                raise InputError(f"metrics.jsonl already has a column '{key}'. Give the metric of that name another one.")
            taken.add(key)
        self._said: dict[str, list[int]] = {}

    def line(self, server: Server, *, scored: bool) -> dict[str, Any]:
        """The columns after a round. All but the bytes are None if the round is not `scored`."""
        found = self._measured(server) if scored else None
        line: dict[str, Any] = {SCORED: None if found is None else len(found), BYTES: server.tally.evaluation_bytes}
        for name in self.names:
            values = [] if found is None else [value for own in found.values() if (value := own.get(name)) is not None]
            made = statistics(name, values) or (None,) * len(Statistics._fields)
            line |= {f"{PREFIX}{name}{suffix}": value for suffix, value in zip(SUFFIXES, made, strict=True)}
        return line

    def _measured(self, server: Server) -> dict[int, Mapping[str, float | None]]:
        """The metrics of the clients that answered, in the order of their numbers."""
        everyone, index = range(server.engine.clients), server.round
        answers = server.survey(everyone)
        found: dict[int, Mapping[str, float | None]] = {}
        reasons: dict[str, list[int]] = {}
        for client in everyone:
            try:
                if client not in answers.replies:
                    raise SketchfedError(answers.complaints.get(client, "no reply came"))
                found[client] = read_metrics(answers.replies[client], index)
            except SketchfedError as error:
                reasons.setdefault(f"metrics leave out {{}}: {error}", []).append(client)
        for name in self.names:
            without = [client for client, own in found.items() if own.get(name) is None]
            reasons[f"'{name}' leaves out {{}}, where it has no finite value."] = without
        self._warn(index, reasons)
        return found

    def _warn(self, index: int, reasons: Mapping[str, list[int]]) -> None:
        """Log who is left out, unless the last evaluation said the same."""
        for text, clients in reasons.items():
            if clients and self._said.get(text) != clients:
                log.warning("evaluation after round %d: %s", index, text.replace("{}", _named(clients), 1))
        self._said = dict(reasons)


def _names(problem: FederatedProblem, seed: PublicSeed) -> tuple[str, ...]:
    """The names of the metrics, from a trial on the first clients."""
    judge, weights = problem.judge(), flatten(problem.module)
    failures: list[Exception] = []
    for client in range(min(_TRIED, len(problem.sizes))):
        turn = Turn(seed=seed.child("evaluation").child("client", client), client=client)
        try:
            return tuple(judge(weights, problem.judged(client), turn))
        except Exception as error:  # of the client's model, data or evaluation
            failures.append(error)
    raise InputError(
        f"training.evaluate_clients = true, and none of the first {len(failures)} clients can be evaluated: for client 0, "
        f"{reason(failures[0]).rstrip('.')}. Correct the evaluation, or the clients' data."
    ) from failures[0]


def _named(clients: Sequence[int] | Collection[int]) -> str:
    listed = sorted(clients)
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return f"client {', '.join(map(str, listed[:_SHOWN]))}{more}"
