"""A tap on the wire: every request and every reply of a run, as they were."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sketchfed.engines.base import Engine


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What was sent to a client in a round, and what came back."""

    round: int
    stage: str
    """'train', or a stage of a secure sum."""
    client: int
    request: bytes
    reply: bytes | None
    """None if no answer came."""
    identity: bytes = b""
    """The client's public identity key, where a secure sum begins: everybody knows it."""


OnExchange = Callable[[Sequence[Exchange]], None]
"""Told of all exchanges of one call, in the order of requests."""


class Recorder:
    """An engine around another one, any, that tells of all that passes; nothing of what passes is changed."""

    def __init__(self, engine: Engine, *, round: Callable[[], int], tell: OnExchange) -> None:
        """`round` says which one it is, counted from 0."""
        self._engine, self._round, self._tell = engine, round, tell

    @property
    def clients(self) -> int:
        return self._engine.clients

    @property
    def complaints(self) -> Mapping[int, str]:
        return self._engine.complaints

    @property
    def directory(self) -> Mapping[int, bytes]:
        return self._engine.directory

    @property
    def unheard(self) -> Collection[int]:
        return self._engine.unheard

    def acknowledge(self, rounds: Mapping[int, int]) -> None:
        self._engine.acknowledge(rounds)

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        replies, known = self._engine.ask(requests, stage), self._engine.directory if stage == "keys" else {}
        self._tell(
            [
                Exchange(
                    round=self._round(),
                    stage=stage,
                    client=client,
                    request=request,
                    reply=replies.get(client),
                    identity=known.get(client, b""),
                )
                for client, request in requests.items()
            ]
        )
        return replies
