"""Example vectors with a given correlation, for trying out codecs."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sketchfed.codecs.base import check_correlation
from sketchfed.errors import InputError, UnknownNameError


def correlation_of(x: Tensor) -> float:
    """The correlation R = Σ_{i≠l}⟨xᵢ, x_l⟩ / Σ‖xᵢ‖² of the rows (Jiang et al. 2023, Eq. 7).

    R lies between −1 and n − 1. It is 0 for orthogonal rows and n − 1 for identical rows.

    >>> correlation_of(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    0.6666666666666667
    """
    wide = x.double()
    ratio = float(wide.sum(0).square().sum() / wide.square().sum())
    return min(ratio, len(x)) - 1  # rounding errors may exceed the possible range


def example_vectors(shape: str, *, clients: int, dim: int, correlation: float, seed: int = 0) -> Tensor:
    """Return float32 vectors `(clients, dim)` with Σ‖xᵢ‖² = clients and this correlation R.

    `shape` is one of: `normal`, dense and without outliers; `power_law`, dense with a few large coordinates, like gradients;
    `base`, unit base vectors, where groups of clients hold the same vector (Jiang et al. 2023, Sec. 4.3). For `base`, R is as
    close to the given value as possible.
    """
    if shape not in SHAPES:
        raise UnknownNameError("shape of vectors", shape, SHAPES)
    for name, value in (("dim", dim), ("clients", clients)):
        if type(value) is not int or value < 1:
            raise InputError(f"{name} must be a positive integer, got {value!r}.")
    check_correlation(correlation, clients)
    if clients == 1 and correlation:
        raise InputError(f"one vector alone has correlation 0, got {correlation}. Use more clients.")
    return SHAPES[shape](clients, dim, correlation, torch.Generator().manual_seed(seed))


def _normal(clients: int, dim: int, correlation: float, generator: torch.Generator) -> Tensor:
    return _around(torch.ones(dim, dtype=torch.float64), clients, correlation, generator)


def _power_law(clients: int, dim: int, correlation: float, generator: torch.Generator) -> Tensor:
    """The j-th coordinate, in a random order, is 1/j times as large as the first."""
    order = torch.randperm(dim, generator=generator)
    return _around(1 / (1 + order.double()), clients, correlation, generator)


def _around(scale: Tensor, clients: int, correlation: float, generator: torch.Generator) -> Tensor:
    """A common vector u and deviations wᵢ that sum to zero: 1 + R = ‖Σxᵢ‖²/Σ‖xᵢ‖² = n²‖u‖²/(n‖u‖² + Σ‖wᵢ‖²)."""
    common = scale * torch.randn(len(scale), generator=generator, dtype=torch.float64)
    apart = scale * torch.randn(clients, len(scale), generator=generator, dtype=torch.float64)
    apart -= apart.mean(0)
    # The common vector contributes the share (1 + R)/n of Σ‖xᵢ‖² = n, and the deviations contribute the rest.
    share = (1 + correlation) / clients
    common *= math.sqrt(share) / common.norm()
    apart *= math.sqrt(clients * (1 - share)) / apart.norm().clamp(min=1e-300)
    return (common + apart).float()


def _base(clients: int, dim: int, correlation: float, generator: torch.Generator) -> Tensor:
    groups = group_sizes(clients, correlation)
    if len(groups) > dim:
        raise InputError(
            f"{clients} clients with correlation {correlation:g} need {len(groups)} different base vectors, but there are only "
            f"dim = {dim}. Use a larger dim, or vectors of shape 'normal'."
        )
    places = torch.randperm(dim, generator=generator)[: len(groups)].repeat_interleave(torch.tensor(groups))
    return torch.zeros(clients, dim).scatter_(1, places[:, None], 1.0)


SHAPES: dict[str, Callable[[int, int, float, torch.Generator], Tensor]] = {
    "normal": _normal,
    "power_law": _power_law,
    "base": _base,
}


def group_sizes(clients: int, correlation: float) -> list[int]:
    """The number of clients that hold each base vector, such that R = Σ g(g − 1)/n is as close as possible to `correlation`.

    >>> group_sizes(21, 12), group_sizes(21, 16)
    ([16, 4, 1], [19, 1, 1])
    """
    if correlation < 0:
        raise InputError(f"base vectors are equal or orthogonal, so their correlation cannot be negative, got {correlation}.")
    # Bit q of reached[m] is set if m clients can be divided into groups with Σ g² = q.
    reached = [1]
    for count in range(1, clients + 1):
        reached.append(0)
        for group in range(1, count + 1):
            reached[count] |= reached[count - group] << group**2
    wanted = clients * (1 + correlation)
    squares = min((q for q in range(clients**2 + 1) if reached[clients] >> q & 1), key=lambda q: abs(q - wanted))
    groups, left = [], clients
    while left:
        group = next(g for g in range(left, 0, -1) if g**2 <= squares and reached[left - g] >> (squares - g**2) & 1)
        groups.append(group)
        left, squares = left - group, squares - group**2
    return sorted(groups, reverse=True)
