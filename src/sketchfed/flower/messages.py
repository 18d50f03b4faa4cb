"""What sketchfed puts into Flower's messages: one record of plain values, which is checked on arrival."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args

from flwr.app import ConfigRecord, Message, RecordDict

from sketchfed.errors import WireError

RECORD = "sketchfed"
SESSION = 16
"""The bytes that name a run. A client that serves several runs never mixes them up."""
NEVER = -1
"""Stands for a round before the first one."""

Status = Literal["done", "refused", "unset"]
"""An answer, a refusal with its reason, or a client that has no agreement of the run, or another version of it."""


class Record:
    """A record of plain values of fixed types."""

    _name: ClassVar[str]

    def to_records(self) -> RecordDict:
        return RecordDict({RECORD: ConfigRecord({part.name: getattr(self, part.name) for part in fields(self)})})  # type: ignore[arg-type]

    @classmethod
    def of(cls, message: Message) -> Self:
        """The record in a message, or `WireError`."""
        records: Mapping[str, Any] = message.content.config_records if message.has_content() else {}
        if RECORD not in records:
            raise WireError(
                f"a {cls._name} of sketchfed holds a record '{RECORD}', this one holds {sorted(records) or 'none'}."
            )
        given = records[RECORD]
        wanted: dict[str, type] = {part.name: part.type for part in fields(cls)}  # type: ignore[arg-type, misc]
        if given.keys() != wanted.keys():
            raise WireError(f"a {cls._name} has the fields {', '.join(wanted)}, this one has {', '.join(given) or 'none'}.")
        for name, kind in wanted.items():
            if type(given[name]) is not kind:
                raise WireError(f"field '{name}' of a {cls._name} is {kind.__name__}, got {type(given[name]).__name__}.")
        return cls(**given)

    def _check_session(self, session: bytes) -> None:
        if len(session) != SESSION:
            raise WireError(f"a run is named by {SESSION} bytes, this {self._name} names one by {len(session)}.")


@dataclass(frozen=True, kw_only=True)
class Request(Record):
    """What the server asks of a client."""

    session: bytes
    agreement: bytes
    """The digest of the run's agreement, or the agreement itself, for a client that does not have it."""
    client: int
    stage: str
    """'hello', 'train', 'evaluate', or a stage of a secure sum."""
    acknowledged: int
    """The last round whose reply of this client was used."""
    payload: bytes

    _name = "request"

    def __post_init__(self) -> None:
        self._check_session(self.session)


@dataclass(frozen=True, kw_only=True)
class Reply(Record):
    """What a client answers."""

    session: bytes
    client: int
    stage: str
    status: str
    payload: bytes
    metrics: str = ""
    """What an app reports about its own work, as JSON. Empty if the run hides anything."""

    _name = "reply"

    def __post_init__(self) -> None:
        self._check_session(self.session)
        if self.status not in get_args(Status):
            raise WireError(f"the status of a reply is one of {', '.join(get_args(Status))}, got {self.status[:40]!r}.")

    @classmethod
    def to(cls, request: Request, payload: bytes = b"", status: Status = "done") -> "Reply":
        return cls(session=request.session, client=request.client, stage=request.stage, status=status, payload=payload)

    def check(self, request: Request) -> "Reply":
        """Return the reply itself if it answers that request."""
        for name in ("session", "client", "stage"):
            own, asked = getattr(self, name), getattr(request, name)
            if own != asked:
                raise WireError(f"it answers for {name} {_shown(own)}, not {_shown(asked)}: it is replayed or lost.")
        return self

    @property
    def reason(self) -> str:
        """Why the client refused, in its own words."""
        return self.payload.decode(errors="replace")[:1000]


def _shown(value: object) -> str:
    return value.hex()[:8] if isinstance(value, bytes) else repr(value)[:60]
