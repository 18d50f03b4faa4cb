"""The opening of a sum: secrets of clients that left, from the shares of those that stayed, and the removal of masks."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sketchfed.errors import SecureSumError
from sketchfed.secure.client import COMMITTED, SEALED, pair_key, self_key
from sketchfed.secure.keys import KeyAgreement, commitment, public_key
from sketchfed.secure.masks import Words, add_masks
from sketchfed.secure.shamir import combine
from sketchfed.secure.terms import Terms

Secret = Literal["mask share", "seed share"]


class Dealt(NamedTuple):
    """What one client dealt: a commitment to its seed; for each neighbour a sealed box, and commitments to the shares in it."""

    seed: bytes
    boxes: Mapping[int, bytes]
    mask_shares: Mapping[int, bytes]
    seed_shares: Mapping[int, bytes]

    @classmethod
    def of(cls, seed: bytes, parts: Mapping[int, bytes]) -> "Dealt":
        return cls(
            seed,
            {peer: part[:SEALED] for peer, part in parts.items()},
            {peer: part[SEALED:-COMMITTED] for peer, part in parts.items()},
            {peer: part[-COMMITTED:] for peer, part in parts.items()},
        )


class Recovery:
    """Opens secrets from shares. A share that does not fit its commitment is left out, and `reasons` names who sent it."""

    def __init__(self, terms: Terms, dealt: Mapping[int, Dealt], shares: Mapping[int, Mapping[int, bytes]]) -> None:
        self.reasons: dict[int, str] = {}
        self._terms, self._dealt, self._shares = terms, dealt, shares

    def seed(self, client: int) -> bytes:
        """The seed of the own mask of a client that sent its values and left."""
        seed = combine(self._valid(client, "seed share", self._dealt[client].seed_shares))
        if commitment("self seed", self._terms, (client,), seed) != self._dealt[client].seed:
            raise self._dealt_wrongly(client)
        return seed

    def mask_key(self, client: int, public: bytes) -> bytes:
        """The private key of a client that left without sending its values, which must belong to its public one."""
        private = combine(self._valid(client, "mask share", self._dealt[client].mask_shares))
        if public_key(private) != public:
            raise self._dealt_wrongly(client)
        return private

    def _valid(self, dealer: int, secret: Secret, commitments: Mapping[int, bytes]) -> dict[int, bytes]:
        """As many shares as the threshold asks for, by point, each as its dealer committed to it."""
        valid: dict[int, bytes] = {}
        for point, holder in enumerate(self._terms.neighbours_of(dealer), 1):
            share = self._shares.get(holder, {}).get(dealer)
            if share is None or holder not in commitments or len(valid) == self._terms.threshold:
                continue
            if commitment(secret, self._terms, (dealer, holder), share)[:COMMITTED] == commitments[holder]:
                valid[point] = share
            else:
                self.reasons[holder] = (
                    f"its share of a secret of client {dealer} is not the one that client {dealer} committed to."
                )
        if len(valid) < self._terms.threshold:
            raise SecureSumError(
                f"a secret of client {dealer}, which left, cannot be opened: {len(valid)} neighbours of it sent a valid share, "
                f"{self._terms.threshold} are needed. The sum is abandoned; ask again, or plan for more dropouts."
            )
        return valid

    def unmask(self, words: Words, seeds: Mapping[int, bytes], left: Mapping[int, bytes], public: Mapping[int, bytes]) -> None:
        """Take from a sum the own masks of survivors, by their seeds, and the masks that they share with those who left.

        `left` are the private keys of the latter, `public` the public keys of the survivors. What two survivors share has
        cancelled already.
        """
        added: list[bytes] = []
        subtracted = [self_key(seed, self._terms, client) for client, seed in seeds.items()]
        for gone, private in left.items():
            agreement = KeyAgreement(private)
            for client in self._terms.neighbours_of(gone):
                if client in public:
                    key = pair_key(agreement, public[client], self._terms, client, gone)
                    (subtracted if client < gone else added).append(key)
        add_masks(words, added=added, subtracted=subtracted)

    def _dealt_wrongly(self, client: int) -> SecureSumError:
        self.reasons[client] = "it dealt shares that do not give the secret that it committed to."
        return SecureSumError(
            f"the shares that client {client} dealt do not give the secret that it committed to: it dealt them wrongly, then "
            f"left. The sum is abandoned; ask again without client {client}."
        )
