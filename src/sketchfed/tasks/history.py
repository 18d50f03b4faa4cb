"""What a task leaves behind: how far each mean was off, how well the task went, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sketchfed.errors import DivergedError, InputError


class MeanEstimator(Protocol):
    """Whatever estimates means of clients' vectors: a `codecs.Channel`, or something of yours.

    If it counts the bytes that all clients sent in `bytes_sent`, histories have them.
    """

    def mean(self, vectors: Tensor, present: Tensor | None = None) -> Tensor:
        """The estimated mean `(dim,)` of `(clients, dim)`; of `(clients, number, dim)` it is `(number, dim)`.

        Of all vectors, or of those that are `present`.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """An entry an iteration, and the result of the last one."""

    errors: tuple[float, ...]
    """‖x̂ − x̄‖², how far the server's mean was from the clients'; in k-means the average over clusters."""
    losses: tuple[float, ...]
    """The task's own loss after the iteration."""
    client_bytes: tuple[float, ...]
    """What a client has sent up to there, on average."""
    result: Tensor
    """Eigenvector, centroids or weights."""


class Meter:
    """Means through an estimator, and notes of them."""

    def __init__(self, estimator: MeanEstimator, *, iterations: int, clients: int) -> None:
        if type(iterations) is not int or iterations < 1:
            raise InputError(f"a task takes at least one iteration, got iterations={iterations!r}.")
        self._estimator, self._clients = estimator, clients
        self._errors: list[float] = []
        self._losses: list[float] = []
        self._bytes: list[float] = []

    def mean(self, vectors: Tensor, present: Tensor | None = None) -> Tensor:
        """The estimate; several vectors a client count with the average of their errors, as far as anybody sent them."""
        if not bool(vectors.isfinite().all()):
            raise self._diverged()
        if present is None:
            estimate = self._estimator.mean(vectors)
            error = float((estimate - vectors.mean(0)).square().sum(-1).mean())
        else:
            estimate = self._estimator.mean(vectors, present)
            counts = present.sum(0)
            exact = (vectors * present[..., None]).sum(0) / counts.clamp(min=1)[..., None]
            error = float((estimate - exact).square().sum(-1)[counts > 0].mean())
        if not error < float("inf"):
            raise self._diverged()
        self._errors.append(error)
        self._bytes.append(getattr(self._estimator, "bytes_sent", 0) / self._clients)
        return estimate

    def note(self, loss: float) -> None:
        self._losses.append(loss)

    def _diverged(self) -> DivergedError:
        return DivergedError(
            f"numbers overflowed in iteration {len(self._errors) + 1}: errors have grown too far. Send more numbers, "
            "use a codec with less error, or take smaller steps."
        )

    def history(self, result: Tensor) -> History:
        return History(errors=tuple(self._errors), losses=tuple(self._losses), client_bytes=tuple(self._bytes), result=result)


def check_clients(clients: Sequence[Tensor], *, what: str) -> int:
    """The number of columns that all clients' data have; there must be a client, and each must have a row."""
    if not clients:
        raise InputError(f"{what} needs at least one client's data, got none.")
    for number, x in enumerate(clients):
        if x.ndim != 2 or 0 in x.shape or x.shape[1] != clients[0].shape[-1]:
            raise InputError(
                f"each client's data is a matrix with an example a row and as many columns as the others', at least one of "
                f"both; client {number} has shape {tuple(x.shape)}, client 0 {tuple(clients[0].shape)}."
            )
    return clients[0].shape[1]
