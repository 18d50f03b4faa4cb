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


def ring_order(clients: Sequence[int], digest: bytes) -> tuple[int, ...]:
    """The clients in their random order on the ring: sorted by SHA-256 of the terms' digest and their number.

    The order is public, and as random as the terms. If a server could try many sessions, it could search for one in which its
    accomplices surround somebody. So clients must not let it choose the session alone.
    """
    return tuple(sorted(clients, key=lambda client: sha256(b"ring" + digest + client.to_bytes(8, "little")).digest()))


def ring_neighbours(ring: Sequence[int], place: int, neighbours: int) -> tuple[int, ...]:
    """The nearest clients on both sides, ascending: a Harary graph over the random order (Bell et al. 2020, Sec. 3)."""
    half = neighbours // 2
    return tuple(sorted(ring[(place + step) % len(ring)] for step in range(-half, half + 1) if step))
