"""What a node has of its own: its identity, its policy, and its store. No server writes them, and no restart loses them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from secrets import token_bytes, token_hex

from flwr.supercore.utils import get_flwr_home

from sketchfed.errors import InputError, SecureSumError, SketchfedError, StorageError, WireError
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.messages import Request
from sketchfed.nodes.drawing import NONCE, Committed, Drawn, Opening, read_roll, settled
from sketchfed.nodes.policy import Policy, dataset_name
from sketchfed.nodes.spending import Limit, Release, turn_of
from sketchfed.nodes.store import NodeStore
from sketchfed.protection import Protection
from sketchfed.secure import Identity
from sketchfed.secure.keys import KEY
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.storage import storing, sync_folder

STORE = "store.sqlite"


class Desk:
    """What a node looks at before it answers. Its files are below Flower's home.

    The number of a node comes from the SuperLink, so only its identity is kept by that number. The store is one for all nodes
    that share a home: a SuperLink that renames a node does not make it forget what its data spent.
    """

    def __init__(self, node: int, settings: Mapping[str, object]) -> None:
        """`settings` are the node's own, given with --node-config."""
        self._home = get_flwr_home() / "sketchfed"
        self._folder = self._home / f"node-{node}"
        self._settings = settings
        self.data = dataset_name(settings)
        """The name under which the node's data is charged."""
        self._store: NodeStore | None = None

    @cached_property
    def policy(self) -> Policy:
        return read_policy(self._settings)

    @property
    def store(self) -> NodeStore:
        if self._store is None:
            self._store = NodeStore(self._home / STORE)
        return self._store

    def committed(self, request: Request, opening: Opening) -> bytes:
        """Commit this client in the joint draw of a run. It answers one opening of the server, and no second one."""
        nonce = self.store.commit(self.who, request.session, opening.to_bytes(), token_bytes(NONCE))
        return Committed.by(self.identity, request.session, opening, nonce).to_bytes()

    def revealed(self, request: Request) -> bytes:
        """Reveal what this client committed to, if everybody committed, itself among them."""
        opening = Opening.from_bytes(self.store.opening(self.who, request.session))
        roll = read_roll(request.payload, request.session, opening, most=self.policy["limits.clients"])
        if sum(each.identity == self.who for each in roll) != 1:
            raise WireError("this client is not on the roll of those who draw, so it reveals nothing.")
        return self.store.reveal(self.who, request.session, request.payload)

    def check_draw(self, request: Request, agreement: Agreement) -> None:
        """Refuse a run whose cohorts do not follow from what this client drew together with the others."""
        identities = agreement.identities
        found = self.store.draw(self.who, request.session)
        if found is None:
            raise InputError(
                "this run hides updates, but this client had no part in drawing its randomness: the server could choose who is "
                "in a sum with it."
            )
        opening, own, packed = Opening.from_bytes(found[0]), found[1], found[2]
        if settled(agreement.config.to_tables()) != opening.settled:
            raise InputError(
                "the run's settings are not those for which its randomness was drawn, so the server chose them when it knew "
                "the cohorts. Draw again, under another session."
            )
        roll = read_roll(packed, request.session, opening)
        if identities and identities != tuple(each.identity for each in roll):
            raise InputError("the clients of the run are not those that drew its randomness. They are fixed for a run.")
        drawn = Drawn(agreement.nonces).check(request.session, opening.commitment, roll, own=own, client=request.client)
        if drawn.joint(request.session) != agreement.config.joint:
            raise InputError("the run's seed is not what the server and its clients drew, so the server chose it.")

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    @property
    def who(self) -> bytes:
        """The public half of the identity, under which everything is kept."""
        return self.identity.public

    @cached_property
    def identity(self) -> Identity:
        """The node's long-term key, from the file that `identity` names, or made when it is first needed."""
        named = self._settings.get("identity")
        path = Path(str(named)) if named else self._folder / "identity.key"
        if not named and not path.exists():
            with suppress(StorageError):  # another message may have come first; if not, reading it says what is wrong
                write_identity(path)
        return read_identity(path)

    def check_directory(self, directory: Mapping[int, bytes], session: bytes) -> None:
        """Refuse identities that differ from those in the file that `directory` names.

        Without such a file, the identities of the first run are trusted. Strangers in later runs are warned of, or refused.
        """
        named = self._settings.get("directory")
        if not named:
            rule = self.policy.rules["demand.identities"]
            self.store.meet(self.who, directory, session, strict=(rule.text, rule.told) if rule.value == "known" else None)
            return
        known = read_directory(Path(str(named)))
        wrong = [client for client, key in directory.items() if known.get(client) != key]
        if wrong:
            raise SecureSumError(
                f"the server says that client {wrong[0]} has another identity than {named} does, or that file does not know "
                "it. This node takes no part: bring the file up to date, or find out who forged the key."
            ).telling(
                f"client {wrong[0]} has another identity than this node's directory has, or the directory does not know it. "
                "This node takes no part."
            )

    def release(self, protection: Protection, request: Request, index: int, seed: PublicSeed) -> Release | None:
        """What an answer of a round costs this node's data. None where there is no noise, or noise that protects nobody."""
        budget = protection.budget
        if budget is None or budget.claim.insecure:
            return None
        return Release(
            data=self.data,
            who=self.who,
            session=request.session,
            round=index,
            claim=budget.claim,
            charge=protection.charge(),
            run=self._run_limit(budget.settings.epsilon, budget.settings.delta),
            lifetime=self.policy.lifetime(self.data),
            turn=turn_of(protection, seed, index, request.client),
        )

    def _run_limit(self, promised: float | None, delta: float) -> Limit | None:
        """The most that one run may spend: what it promised itself. The policy has refused a promise that is too large."""
        if promised is None:
            return None
        return Limit(epsilon=promised, delta=delta, rule=f"privacy.epsilon = {promised:g}")


def read_policy(settings: Mapping[str, object]) -> Policy:
    """The policy of a node with these settings. A policy that cannot be read refuses everything, and no server learns why."""
    try:
        return Policy.of(settings)
    except SketchfedError as error:
        raise error.telling(
            "this node's policy cannot be read, so the node takes no part. Its own log says why."
        ) from error.__cause__


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
