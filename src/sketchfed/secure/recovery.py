"""Opens a sum: recovers secrets of clients that left from the shares of those that stayed, and removes masks."""

from collections.abc import Iterable, Mapping

from sketchfed.secure.client import pair_key, self_key
from sketchfed.secure.dealing import Accusation, Dealing, Secret, committed, fits
from sketchfed.secure.keys import Advertised, KeyAgreement
from sketchfed.secure.masks import MaskWords, add_masks
from sketchfed.secure.transcript import Transcript


class Recovery:
    """Opens secrets from shares. `reasons` says who told or dealt a wrong share; `wrong` are the dealers to do without.

    For each of the latter there is an accusation, or None if too few shares of it are left to prove anything.
    """

    def __init__(
        self,
        transcript: Transcript,
        keys: Mapping[int, Advertised],
        dealt: Mapping[int, Dealing],
        shares: Mapping[int, Mapping[int, bytes]],
    ) -> None:
        self.reasons: dict[int, str] = {}
        self.wrong: dict[int, Accusation | None] = {}
        self._transcript, self._keys, self._dealt, self._shares = transcript, keys, dealt, shares

    def opened(self, secret: Secret, clients: Iterable[int]) -> dict[int, bytes]:
        """Open this secret of each client. Clients whose shares do not give it are in `wrong`."""
        found = {client: self._opened(secret, client) for client in clients}
        return {client: own for client, own in found.items() if own is not None}

    def _opened(self, secret: Secret, client: int) -> bytes | None:
        terms, keys = self._transcript.terms, self._keys[client]
        valid = self._valid(secret, client)
        points = {holder: point for point, holder in enumerate(terms.neighbours_of(client), 1)}
        if len(valid) < terms.threshold:
            self.wrong[client] = None
            self.reasons[client] = (
                f"{len(valid)} valid shares of a secret of it are left, and {terms.threshold} are needed: it dealt too few "
                "that open, or their holders keep them back."
            )
            return None
        by_point = {points[holder]: share for holder, share in valid.items()}
        found = fits(secret, by_point, terms, client, mask=keys.mask, seed=keys.seed)
        if found is None:
            self.wrong[client] = self._dealt[client].accusation(secret, valid)
            self.reasons[client] = "it dealt shares that do not give the secret that it committed to."
        return found

    def _valid(self, secret: Secret, dealer: int) -> dict[int, bytes]:
        """As many valid shares as the threshold requires, by holder. A share is valid if its dealer committed to it."""
        terms, dealing = self._transcript.terms, self._dealt[dealer]
        valid: dict[int, bytes] = {}
        for holder in terms.neighbours_of(dealer):
            share = self._shares.get(holder, {}).get(dealer)
            if share is None or holder not in dealing.parts or len(valid) == terms.threshold:
                continue
            if committed(secret, self._transcript, dealer, holder, share) == dealing.promise(secret, holder):
                valid[holder] = share
            else:
                self.reasons[holder] = (
                    f"its share of a secret of client {dealer} is not the one that client {dealer} committed to."
                )
        return valid

    def unmask(
        self,
        words: MaskWords,
        *,
        seeds: Mapping[int, bytes],
        left: Mapping[int, bytes],
        pairs: Mapping[int, Mapping[int, bytes]],
        premise: bytes,
    ) -> None:
        """Remove from a sum the survivors' own masks, by their seeds, and the masks that they share with clients that left.

        `left` are the private keys of the latter. `pairs` are the keys of single masks, by survivor, with clients that dealt
        wrongly. Masks between two survivors have cancelled already, because all survivors have the same `premise`.
        """
        added: list[bytes] = []
        subtracted = [self_key(seed, self._transcript, client) for client, seed in seeds.items()]

        def remove(client: int, gone: int, key: bytes) -> None:
            (subtracted if client < gone else added).append(key)

        for gone, private in left.items():
            agreement = KeyAgreement(private)
            for client in self._transcript.terms.neighbours_of(gone):
                if client in seeds:
                    key = pair_key(agreement, self._keys[client].mask, self._transcript, client, gone, premise)
                    remove(client, gone, key)
        for client, keys in pairs.items():
            for gone, key in keys.items():
                remove(client, gone, key)
        add_masks(words, added=added, subtracted=subtracted)
