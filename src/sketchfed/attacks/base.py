"""What every attack says of itself."""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Literal

Goal = Literal["examples", "steps", "property", "members"]
"""What an attack is after: a client's examples, the server's steps, a property of examples, or who was in the training data."""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Works on a `View`, and says in words where a view lacks what it needs (`InputError`)."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    goal: ClassVar[Goal]
