"""A node's own files: its identity, and what it has spent of its privacy. No server writes them, and no restart loses them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from flwr.supercore.utils import get_flwr_home

from sketchfed.errors import InputError, SecureSumError, StorageError
from sketchfed.privacy.ledger import PrivacyLedger
from sketchfed.protection import Protection, SecureSums
from sketchfed.secure import Identity
from sketchfed.secure.keys import KEY
from sketchfed.seeds import SecretSeed
from sketchfed.storage import replace_file, storing, sync_folder


class Desk:
    """The folder of one node, below Flower's home."""

    def __init__(self, node: int, settings: Mapping[str, object]) -> None:
        """`settings` are the node's own, given with --node-config."""
        self._folder = get_flwr_home() / "sketchfed" / f"node-{node}"
        self._settings = settings

    @property
    def identity(self) -> Identity:
        """The node's long-term key, from the file that `identity` names, or made when it is first needed."""
        named = self._settings.get("identity")
        path = Path(str(named)) if named else self._folder / "identity.key"
        if not named and not path.exists():
            with suppress(StorageError):  # another message may have come first; if not, reading it says what is wrong
                write_identity(path)
        return read_identity(path)

    def check_directory(self, directory: Mapping[int, bytes]) -> None:
        """Refuse identities that differ from those in the file that `directory` names; without one, the server vouches."""
        named = self._settings.get("directory")
        if not named:
            return
        known = read_directory(Path(str(named)))
        wrong = [client for client, key in directory.items() if known.get(client) != key]
        if wrong:
            raise SecureSumError(
                f"the server says that client {wrong[0]} has another identity than {named} does, or that file does not know "
                "it. This node takes no part: bring the file up to date, or find out who forged the key."
            )

    def check_terms(self, protection: Protection) -> None:
        """Refuse a run that protects less than this node demands."""
        most, privacy = self._settings.get("epsilon"), None if protection.budget is None else protection.budget.settings
        if most is not None and (privacy is None or privacy.epsilon is None or privacy.epsilon > float(str(most))):
            spent = "has none" if privacy is None or privacy.epsilon is None else f"has {privacy.epsilon:g}"
            raise InputError(f"this node takes part up to ε = {most}, and the run's budget {spent}. Lower privacy.epsilon.")
        if most is not None and privacy is not None and privacy.insecure_noise_seed is not None:
            raise InputError("this node wants privacy, and privacy.insecure_noise_seed draws noise that all can rebuild.")
        if self._settings.get("secure") and not isinstance(protection, SecureSums):
            raise InputError("this node takes part in secure sums only, and the run has none. Add [secure].")

    def pin(self, session: bytes, settings: bytes, *, hides: bool) -> None:
        """Hold on to the settings that a run began with, also over restarts: a server that changes them is refused.

        Runs that hide nothing are not held on to; but one that began to hide something cannot become one of them.
        """
        path, digest = self._folder / f"run-{session.hex()}.sha256", sha256(settings).hexdigest()
        if path.exists():
            if path.read_text() != digest:
                raise InputError(
                    "the server changed the run's settings after this node had agreed to others. It takes no part any more: "
                    "settings that differ are another run."
                )
            return
        if hides:
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, digest.encode())

    def charge(self, protection: Protection, session: bytes, index: int, client: int, *, release: bool) -> None:
        """Refuse a round that this client's budget does not last for; with `release`, write it down before noise leaves.

        The server keeps a ledger for all. This one is the client's own, so that no server can ask more often than was agreed.
        """
        budget = protection.budget
        if budget is None or budget.claim.insecure or protection.central or budget.passes is not None:
            return
        privacy, claim = budget.settings, budget.claim
        path, charge = self._folder / f"privacy-{session.hex()}.jsonl", protection.charge()
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        ledger = PrivacyLedger.load(path, claim) if path.exists() else PrivacyLedger(claim, path)
        if privacy.epsilon is not None and ledger.epsilon(also=([client], charge)) > privacy.epsilon * (1 + 1e-9):
            raise InputError(
                f"round {index + 1} would cost this client more than privacy.epsilon = {privacy.epsilon:g}: it has answered "
                f"{len(ledger.entries)} times already, by its own books. It takes no part any more."
            )
        if release:
            ledger.intend(round=index, draw=token_hex(8), clients=[client], charge=charge)


def write_identity(path: Path) -> Identity:
    """A new identity in a file that only its owner can read."""
    identity = Identity.of(SecretSeed())
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{token_hex(4)}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(identity.private.hex().encode())
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)  # fails where one is there already: an identity is never replaced
        finally:
            fresh.unlink()
        sync_folder(path.parent)
    return identity


def read_identity(path: Path) -> Identity:
    try:
        private = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise StorageError(
            f"cannot read the identity {path}: {error}. Make one with: sketchfed flower identity {path}."
        ) from None
    if len(private) != KEY:
        raise StorageError(f"{path} holds {len(private)} bytes, and an identity has {KEY}. Make another one.")
    return Identity(private)


def read_directory(path: Path) -> dict[int, bytes]:
    """Client numbers and public identities, a pair a line."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
        return {int(client): bytes.fromhex(key) for client, key in pairs}
    except (OSError, ValueError) as error:
        raise StorageError(
            f"cannot read the directory {path}: {error}. It has a client's number and its public identity in hexadecimal on "
            "each line."
        ) from None
