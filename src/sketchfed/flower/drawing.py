"""The server's side of a joint draw: it asks the nodes to commit and to reveal."""

from collections.abc import Sequence
from secrets import token_bytes

from flwr.serverapp import Grid

from sketchfed.config import Config
from sketchfed.errors import InputError
from sketchfed.flower.enrolment import Member, offered
from sketchfed.flower.messages import NEVER, Request
from sketchfed.flower.post import exchanged
from sketchfed.nodes.drawing import NONCE, SERVER, Drawn, Opening, commitment, read_roll, settled

_SECONDS = 60.0


def must_draw(config: Config) -> bool:
    """Whether clients have something to hide, so that the server must not choose cohorts and groups alone."""
    return config.privacy is not None or config.secure is not None


def drawn(grid: Grid, members: Sequence[Member], config: Config, *, session: bytes) -> Drawn:
    """Draw randomness for a run with these settings, together with all clients.

    If one of them does not answer, there is none, and the run cannot begin.
    """
    nonce = token_bytes(NONCE)
    opening = Opening(commitment(session, SERVER, nonce), settled(config.to_tables()))
    said = _asked(grid, members, session, "commit", opening.commitment + offered(config))
    roll = b"".join(said)
    committed = read_roll(roll, session, opening)
    for client, (member, own) in enumerate(zip(members, committed, strict=True)):
        if own.identity != member.identity:
            raise InputError(f"client {client} commits under another identity than it joined with. Start the run again.")
    revealed = _asked(grid, members, session, "reveal", roll)
    for client, (own, part) in enumerate(zip(committed, revealed, strict=True)):
        if commitment(session, own.identity, part) != own.commitment:
            raise InputError(f"client {client} revealed something else than it committed to. Start the run again without it.")
    return Drawn((nonce, *revealed))


def _asked(grid: Grid, members: Sequence[Member], session: bytes, stage: str, payload: bytes) -> list[bytes]:
    """What all members answer to one request, in the order of their numbers."""
    asked = Request(session=session, agreement=b"", client=NEVER, stage=stage, acknowledged=NEVER, payload=payload)
    mail = exchanged(grid, {member.node: asked for member in members}, seconds=_SECONDS)
    answers = []
    for client, member in enumerate(members):
        reply = mail.replies.get(member.node)
        why = mail.failures.get(member.node, "no reply came") if reply is None else reply.reason
        if reply is None or reply.status != "done":
            raise InputError(
                f"client {client} takes no part in drawing the run's randomness: {why.rstrip('.')}. All clients must, before "
                "round 1. Start the run again."
            )
        answers.append(reply.payload)
    return answers
