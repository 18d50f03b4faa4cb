"""The neighbours of each client: all other clients, or the nearest ones on a ring."""

from collections.abc import Sequence
from hashlib import sha256

from sketchfed.errors import InputError


def check_degree(neighbours: int, clients: int) -> None:
    """Check the number of neighbours: even on a ring, half on either side, or all others in the complete graph."""
    if type(neighbours) is not int or not 1 <= neighbours < clients or (neighbours % 2 and neighbours != clients - 1):
        raise InputError(
            f"{clients:,} clients have {clients - 1:,} neighbours each in the complete graph, or an even number from 2 "
            f"in a sparse one, got neighbours={neighbours!r}."
        )


def ring_order(clients: Sequence[int], session: bytes, round: int) -> tuple[int, ...]:
    """The clients in the random order in which they sit on the ring: by SHA-256 of session, round and their number.

    The order is public and as random as the session: a server that could try many sessions could look for one in which its
    accomplices surround somebody, so clients must not let it choose the session alone. Nothing else that a server may choose
    decides the order, neither the size of a sum nor its bits.
    """
    drawn = b"ring" + session + round.to_bytes(8, "little")
    return tuple(sorted(clients, key=lambda client: sha256(drawn + client.to_bytes(8, "little")).digest()))


def ring_neighbours(ring: Sequence[int], place: int, neighbours: int) -> tuple[int, ...]:
    """The nearest clients on both sides, ascending: a Harary graph over the random order (Bell et al. 2020, Sec. 3)."""
    half = neighbours // 2
    return tuple(sorted(ring[(place + step) % len(ring)] for step in range(-half, half + 1) if step))
