"""The interface of an attack."""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Literal

Goal = Literal["examples", "steps", "property", "members"]
"""What an attack looks for: a client's examples, the server's steps, a property of examples, or members of the training
data."""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """An attack on a `View`. If the view lacks what the attack needs, it raises `InputError` with the reason."""

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    goal: ClassVar[Goal]
