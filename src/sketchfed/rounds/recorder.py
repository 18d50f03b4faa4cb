"""Records every request and every reply of a run's training, byte for byte."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sketchfed.rounds.engine import Engine, Relay


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request to a client in a round, and the client's reply."""

    round: int
    stage: str
    """'train', or a stage of a secure sum."""
    client: int
    request: bytes
    reply: bytes | None
    """None if the client did not answer."""
    identity: bytes = b""
    """The client's public identity key, in stages in which it may show keys for a secure sum. Every party knows it."""


_WITH_KEYS = ("keys", "masked")
"""The stages in which clients show keys: those of this round's sum, or those of the next one."""

OnExchange = Callable[[Sequence[Exchange]], None]
"""A function that is called with all exchanges of one engine call, in the order of the requests."""


class Recorder(Relay):
    """Wraps any engine and reports all requests and replies, without changing them. Evaluation is not reported, because no
    attack looks at it.
    """

    def __init__(self, engine: Engine, *, round: Callable[[], int], tell: OnExchange) -> None:
        """`round` returns the current round, counted from 0."""
        super().__init__(engine)
        self._round, self._tell = round, tell

    def ask(self, requests: Mapping[int, bytes], stage: str = "train") -> Mapping[int, bytes]:
        if stage == "evaluate":
            return self.inner.ask(requests, stage)
        sent = dict(requests)  # the engine may empty its own
        replies, known = self.inner.ask(requests, stage), self.inner.directory if stage in _WITH_KEYS else {}
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
                for client, request in sent.items()
            ]
        )
        return replies
