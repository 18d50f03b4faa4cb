"""The server's secure sums of a round, one for each group, and those of the next round while they are prepared."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from sketchfed.protection import SecureSums
from sketchfed.secure import SecureServer, Terms
from sketchfed.seeds import PublicSeed

_NOBODY: Mapping[int, str] = MappingProxyType({})


class SecureRounds:
    """Begins the sums of each round, and keeps those whose keys and shares came with the messages of the round before.

    Nothing of this is saved. After a restart, or if somebody was missing, a round begins with fresh keys.
    """

    def __init__(self, seed: PublicSeed) -> None:
        self._seed = seed
        self._prepared: Sequence[SecureServer] = ()
        self._last = -1
        """The last round that was prepared. Clients join its sums once, so no other attempt prepares them again."""

    def begun(
        self,
        protection: SecureSums,
        index: int,
        attempt: int,
        directory: Mapping[int, bytes],
        *,
        premise: bytes,
        without: Mapping[int, str] = _NOBODY,
    ) -> Sequence[SecureServer]:
        """The sums of a round: those that were prepared, if everybody is in them, or fresh ones.

        `premise` is that of the clients that compute from what they are sent. Clients in `without` made an earlier attempt at
        the round fail. They are asked again in the next round.
        """
        prepared, self._prepared = self._prepared, ()
        ready = attempt == 0 and prepared and all(_is_ready(server, index) for server in prepared)
        servers = prepared if ready else self._fresh(protection, index, attempt + 1, directory, without)
        for server in servers:
            server.premise = premise  # when a sum is prepared, the model of its round does not exist yet
        return servers

    def following(self, protection: SecureSums, index: int, directory: Mapping[int, bytes]) -> Sequence[SecureServer]:
        """The sums of the next round, to be prepared in this one, if this one asks all of their clients."""
        self._prepared = ()
        if self._last <= index < protection.algorithm.rounds - 1:
            now, then = ({c for group in protection.groups(self._seed, at) for c in group} for at in (index, index + 1))
            if then <= now:
                self._last = index + 1
                self._prepared = self._fresh(protection, index + 1, 0, directory)
        return self._prepared

    def _fresh(
        self,
        protection: SecureSums,
        index: int,
        attempt: int,
        directory: Mapping[int, bytes],
        without: Mapping[int, str] = _NOBODY,
    ) -> list[SecureServer]:
        return [
            SecureServer(terms, directory, without=without if _is_enough(terms, without) else _NOBODY)
            for terms in protection.terms(self._seed, index, attempt)
        ]


def in_sums(servers: Iterable[SecureServer]) -> list[int]:
    """The clients whose values are in a sum that was opened, or may have been."""
    return sorted(client for server in servers if server.asked_to_open for client in server.survivors)


def _is_enough(terms: Terms, without: Mapping[int, str]) -> bool:
    """Whether a sum can be opened without these clients."""
    return sum(client not in without for client in terms.clients) >= terms.least


def _is_ready(server: SecureServer, index: int) -> bool:
    """Whether a sum is that of this round, and waits for the masked values of all of its clients."""
    return server.terms.round == index and server.stage == "masked" and server.present == server.terms.clients
