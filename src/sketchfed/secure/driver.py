"""Runs secure sums over a transport, one or several at a time. The first stages of the next sums travel along."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from sketchfed.errors import SecureSumError, WireError
from sketchfed.secure.messages import STAGES, Stage
from sketchfed.secure.server import SecureServer, SecureSum
from sketchfed.wire import split

Ask = Callable[[Stage, dict[int, bytes]], Mapping[int, bytes]]
"""Sends requests, by client, and returns the replies that arrived."""

_NOTHING: Mapping[int, bytes] = MappingProxyType({})
_ORDER: tuple[Stage, ...] = (*STAGES, "recover")
_CARRIED: Mapping[Stage, Stage] = {"masked": "keys", "unmask": "shares"}
"""Which stage of the next sum travels with which stage of this one. A usual round takes three messages instead of five."""
_MOST = 1 << 20


def run_stages(
    server: SecureServer,
    ask: Ask,
    *,
    tasks: Mapping[int, bytes] = _NOTHING,
    complaints: Callable[[], Mapping[int, str]] = dict,
) -> SecureSum:
    """Run all stages of one sum. `tasks` and `complaints` have the same meaning as in `run_sums`."""
    (summed,) = run_sums([server], ask, tasks=tasks, complaints=complaints).values()
    return summed


def run_sums(
    servers: Sequence[SecureServer],
    ask: Ask,
    *,
    following: Sequence[SecureServer] = (),
    tasks: Mapping[int, bytes] = _NOTHING,
    complaints: Callable[[], Mapping[int, str]] = dict,
) -> dict[int, SecureSum]:
    """Run sums over different clients side by side, stage by stage. Return those that were opened, by their position.

    A sum that fails is abandoned, and the others go on. If none is opened, `SecureSumError` is raised. `following` are the sums
    of the next round, over clients of this one: their keys and shares travel with the messages of this round. `tasks` are
    appended to the requests of stage "masked". They are packets that say what to compute, and `wire.split` takes them apart.
    `complaints` is called after each stage and returns why clients did not answer, as far as the transport knows.
    """
    errors: dict[int, SecureSumError] = {}
    active = dict(enumerate(servers))
    while stages := [server.stage for server in active.values() if server.stage is not None]:
        stage = min(stages, key=_ORDER.index)
        asked = {place: server for place, server in active.items() if server.stage == stage}
        requests = {client: request for server in asked.values() for client, request in server.requests.items()}
        carried = [server for server in following if server.stage is not None and server.stage == _CARRIED.get(stage)]
        extra = {client: own for server in carried for client, own in server.requests.items() if client in requests}
        packed = {client: own + extra.get(client, b"") for client, own in requests.items()}
        if stage == "masked":
            packed = {client: own + tasks.get(client, b"") for client, own in packed.items()}
        replies = ask(stage, packed)
        own, others = _apart(replies, extra)
        why = complaints()
        for place, server in asked.items():
            try:
                server.receive({client: own[client] for client in server.requests if client in own}, why)
            except SecureSumError as error:
                errors[place] = error
                del active[place]
        _move_on(carried, others, why)
    opened = {place: server.result for place, server in enumerate(servers) if server.result is not None}
    if not opened:
        raise errors[min(errors)] if errors else SecureSumError("this sum was abandoned; start another.")
    return opened


def _move_on(servers: Iterable[SecureServer], replies: Mapping[int, bytes], why: Mapping[int, str]) -> None:
    """Hand carried replies to the sums of the next round. A sum that fails is not prepared, and begins again when it is due."""
    for server in servers:
        try:
            server.receive({client: replies[client] for client in server.requests if client in replies}, why)
        except SecureSumError:
            continue


def _apart(replies: Mapping[int, bytes], extra: Mapping[int, bytes]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Split each reply into the part for this sum and the part for the next one."""
    own, others = {}, {}
    for client, reply in replies.items():
        own[client] = reply
        if client in extra:
            try:
                first, *rest = split(reply, most=_MOST)
            except (WireError, ValueError):
                continue  # the sum itself says what is wrong with it
            own[client], others[client] = bytes(first), b"".join(rest)
    return own, others
