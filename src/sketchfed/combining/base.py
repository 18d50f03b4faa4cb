"""The interface of a combine rule: many vectors with weights in, one vector out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.errors import FaultyPartError, InputError, SketchfedError

Rows = npt.NDArray[np.floating]
Weights = npt.NDArray[np.float64]

LEAST_PACKETS = 3
"""With fewer packets than this, no majority can outvote a single attacker."""


@dataclass(frozen=True, kw_only=True)
class CombineRule(ABC):
    """A rule that combines the vectors of a round into one. Its fields are its options, the keys of [combine].

    A vector is the mean over the clients of one packet, and its weight is their number: 1 for a single reply, n for a secure
    sum over n clients. All rules move with the vectors: if a vector is added to all of them, it is added to the result, too.
    Everything is computed in float64 and in a fixed order, so the result has the same bits for any number of threads.

    A subclass implements `_combined`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    breakdown: ClassVar[str]
    """The share of attackers, by weight, up to which the result stays bounded whatever they send."""
    cost: ClassVar[str]
    """The number of operations for n vectors of s numbers."""

    def combine(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Combine vectors `(n, size)` with weights `(n,)` into one vector `(size,)`. Without weights, all are equal."""
        if rows.ndim != 2 or 0 in rows.shape or rows.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"a combine rule takes vectors of shape (n, size), float32 or float64, got shape {tuple(rows.shape)} of "
                f"{rows.dtype}."
            )
        values = rows.detach().cpu().contiguous().numpy()
        for index, row in enumerate(values):
            if not np.isfinite(row).all():
                raise InputError(f"vector {index} of those to combine holds NaN or infinity. Leave it out.")
        return torch.from_numpy(self._checked_result(values, _checked(weights, len(values))).astype(values.dtype))

    def _checked_result(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        """What `_combined` returns. It gets an array that it cannot write to, and anybody may have written it."""
        shown, kind = rows.view(), "combine rule"
        shown.flags.writeable = False
        try:
            found = self._combined(shown, weights)
        except SketchfedError:
            raise
        except Exception as error:
            raise FaultyPartError(self, kind, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(found, np.ndarray):
            raise FaultyPartError(self, kind, f"returned {type(found).__name__}, not a numpy array")
        if found.shape != rows.shape[1:]:
            raise FaultyPartError(self, kind, f"returned shape {found.shape} for vectors of shape {rows.shape[1:]}")
        if not np.isfinite(found).all():
            raise FaultyPartError(self, kind, "returned NaN or infinity for finite vectors")
        return found

    @abstractmethod
    def _combined(self, rows: Rows, weights: Weights) -> npt.NDArray[np.float64]:
        """Combine finite vectors `(n, size)` with positive weights `(n,)` into one vector `(size,)`."""

    def check(self, packets: int) -> None:
        """Raise `InputError` if the rule cannot do its work on this many packets per round."""
        if packets < LEAST_PACKETS:
            raise InputError(
                f"algorithm.combine = '{self.name}' compares the packets of a round, but the server gets {packets} per round, "
                f"and {LEAST_PACKETS} are the least that can outvote one attacker. Raise algorithm.participation or "
                "data.clients, or use algorithm.combine = 'mean'."
            )


def check_share(name: str, share: float) -> None:
    """Raise `InputError` unless the assumed share of attackers leaves a majority of honest clients."""
    if not 0 <= share < 0.5:
        raise InputError(
            f"combine.{name} is the share of clients that may be attackers, so it must be from 0 to below 0.5, got {share}. No "
            "rule works against a majority."
        )


def _checked(weights: Tensor | None, count: int) -> Weights:
    if weights is None:
        return np.ones(count)
    values = weights.detach().cpu().to(torch.float64).numpy()
    if values.shape != (count,) or not (np.isfinite(values).all() and (values > 0).all()):
        raise InputError(f"a combine rule takes one positive weight for each of the {count} vectors, got {values}.")
    return values
