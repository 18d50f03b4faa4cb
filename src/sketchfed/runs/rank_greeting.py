"""What ranks tell each other before round 1, so that none takes part with other data, settings or versions."""

import hmac
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec

from sketchfed.config import Config, EngineSettings
from sketchfed.errors import RankError
from sketchfed.rounds.launch import Place
from sketchfed.runs.identity import identity
from sketchfed.runs.problem import FederatedProblem
from sketchfed.runs.versions import installed
from sketchfed.secure import Identity
from sketchfed.tables import Table
from sketchfed.version import __version__


class Greeting(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a rank has."""

    versions: dict[str, str]
    completed: str
    """A digest of the completed configuration."""
    identity: dict[str, Any]
    """Digests of the loss, the data and the model."""
    wants_result: bool = False
    """Whether the rank's program waits for the result of the run."""

    @property
    def packed(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, said: bytes, place: Place) -> "Greeting":
        try:
            return msgspec.json.decode(said, type=cls)
        except (ValueError, RecursionError):
            raise RankError(f"{place} does not say what it has. Start all ranks with sketchfed {__version__}.") from None


def greeting(completed: Config, problem: FederatedProblem, *, wants_result: bool = False) -> Greeting:
    """What this rank has, with its completed configuration."""
    digest = sha256(_without_own(completed).to_toml().encode()).hexdigest()
    return Greeting(versions=installed(), completed=digest, identity=identity(problem), wants_result=wants_result)


def _without_own(config: Config) -> Config:
    """The configuration without what each rank may choose: the name of the run's folder, and how the rank computes."""
    return replace(config, name="", engine=EngineSettings())


def check_same(given: Config, plan: Config, place: Place) -> None:
    """Raise `RankError` if this rank was given another configuration than rank 0."""
    own, other = _flat(_without_own(given).to_tables()), _flat(_without_own(plan).to_tables())
    different = sorted(key for key in own.keys() | other.keys() if own.get(key) != other.get(key))
    if different:
        key = different[0]
        more = f" In all, {len(different)} keys differ." if len(different) > 1 else ""
        raise RankError(
            f"{place} was given another configuration than rank 0: {key} is {own.get(key)!r}, and {other.get(key)!r} at rank 0."
            f"{more} Give all ranks the same file and the same --set."
        )


def _flat(tables: Table, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def identities(secret: bytes) -> Callable[[int], Identity]:
    """The long-term keys of simulated clients, which all ranks derive from the same secret."""
    return lambda client: Identity(hmac.digest(secret, f"client {client}".encode(), "sha256"))
