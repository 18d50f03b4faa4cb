"""Everything sketchfed raises on purpose.

    SketchfedError
    ├── InputError            an argument that cannot work (also a ValueError)
    │   ├── UnknownNameError  a name that no registry holds (also a KeyError); the message lists the ones it does
    │   ├── NotLinearError    packets that cannot be added, where noise or secure sums need sums
    │   └── FaultyPartError   an algorithm, codec or rule that returned what none may return, or raised
    ├── WireError             bytes that are not an acceptable packet (also a ValueError)
    ├── StorageError          a file or folder of a run that cannot be written or read (also an OSError)
    ├── SecureSumError        a secure sum that was abandoned, or a request that a client must not answer
    ├── LinkLostError         a federation out of reach, or a run that is over there (also a ConnectionError)
    ├── RankError             a rank that is gone, or that has other data or settings than the others (also a ConnectionError)
    ├── NoReplyError          a round that nobody answered
    ├── LoopbackError         a rehearsed federation that does not come up
    └── DivergedError         training that left the finite numbers, with the step size that theory allows

A message says what was given, why it fails, and what to change.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Self

__all__ = [
    "DivergedError",
    "FaultyPartError",
    "InputError",
    "LinkLostError",
    "LoopbackError",
    "NoReplyError",
    "NotLinearError",
    "RankError",
    "SecureSumError",
    "SketchfedError",
    "StorageError",
    "UnknownNameError",
    "UnresolvedError",
    "WireError",
]


class SketchfedError(Exception):
    """The root: catch this to catch whatever sketchfed refuses."""

    told: str | None = None
    """What a client's server is told in place of the message, where the message says what is the client's own business."""
    in_training: bool = False
    """Whether a client's model, loss, loop or data is at fault, as opposed to numbers that grew too large."""

    def telling(self, text: str) -> Self:
        """The error itself, with another text for the server."""
        self.told = text
        return self


class InputError(SketchfedError, ValueError):
    """An argument that cannot work."""


class UnknownNameError(InputError, KeyError):
    """A name that a registry does not hold."""

    __str__ = Exception.__str__  # that of KeyError puts the message in quotes

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        names = list(known)
        lowered = [str(each).lower() for each in names]
        close = get_close_matches(str(name).lower(), lowered, n=1)
        hint = f" Did you mean '{names[lowered.index(close[0])]}'?" if close else ""
        super().__init__(f"there is no {kind} named {name!r}.{hint} Known: {', '.join(names)}.")


class NotLinearError(InputError):
    """Packets that cannot be added, and why. `code` is how they depend on vectors all the same, if that is linear."""

    def __init__(self, subject: str, reason: str, code: object = None) -> None:
        super().__init__(f"{subject} cannot be summed: {reason}")
        self.subject, self.reason, self.code = subject, reason, code


class FaultyPartError(InputError):
    """A part of the run, often one that somebody brought, that returned what none may return, or raised an error of its own."""

    def __init__(self, part: object, kind: str, fault: str) -> None:
        owner = part if isinstance(part, type) else type(part)
        place = f"{owner.__module__}.{owner.__qualname__}"
        super().__init__(f"{kind} '{getattr(part, 'name', owner.__name__)}' ({place}) {fault}. Mend that class.")


class UnresolvedError(InputError):
    """An algorithm that must see the model before it can do what it was asked to."""


class NotFiniteError(InputError):
    """Numbers that are NaN or infinite where finite ones are needed. In training, it is a sign of steps that are too long."""


class WireError(SketchfedError, ValueError):
    """Bytes that are not an acceptable packet, or a packet that cannot become bytes."""


class StorageError(SketchfedError, OSError):
    """A file or folder of a run that cannot be written, or holds what no run wrote."""


class SecureSumError(SketchfedError):
    """A secure sum that was abandoned because too few took part, or a request of the server that a client must not answer."""


class LinkLostError(SketchfedError, ConnectionError):
    """The run at a SuperLink is over, or out of reach, while its server goes on."""


class RankError(SketchfedError, ConnectionError):
    """A rank of a launch that is gone, never came, or has other data, settings or versions than the others."""


class NoReplyError(SketchfedError):
    """A round that nobody answered: every client failed, or no client of a federation replied, however often it was asked."""


class LoopbackError(SketchfedError):
    """A federation on the loopback that does not come up, or a command that it refused."""


class DivergedError(SketchfedError):
    """Training that left the finite numbers."""


RAISED = "it raised "
"""How a reason begins that names an exception which is not sketchfed's own."""
FAILED = "its training failed: "
"""How a reason begins if a client's model, loss, loop or data is at fault, in sketchfed's own words."""


def reason(error: Exception) -> str:
    """Why a client did not answer: an error of sketchfed in its own words, any other with its type and message.

    >>> reason(KeyError("label"))
    "it raised KeyError: 'label'"
    """
    if isinstance(error, SketchfedError):
        return f"{FAILED if error.in_training else ''}{error}"
    return f"{RAISED}{type(error).__name__}: {error}".rstrip(": ")
