"""Simulates updates on the adversary's own examples, many at a time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sketchfed.attacks.observation import Observation, batches_used
from sketchfed.errors import InputError
from sketchfed.kernels.normals import normals_twin
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples
from sketchfed.training.objective import loss_at, objective_of
from sketchfed.vectors import Layout

Progress = Callable[[], None] | None

_HELD, _MOST = 2**23, 256
"""The number of weights that are computed with at a time, and the largest number of groups."""


def each_seen(observation: Observation, examples: Examples) -> Tensor:
    """What would have arrived if each example were the only one of a single client: `(n, size)`, without a graph."""
    check_examples(examples)
    seeds = observation.seed
    alone = replace(observation, seed=seeds if isinstance(seeds, PublicSeed) else seeds[0], counts=(), sizes=())
    return groups_seen(alone, Examples(examples.x[:, None], examples.y[:, None]))


def groups_seen(observation: Observation, groups: Examples, *, on_step: Progress = None) -> Tensor:
    """What would have arrived if each group were all examples: `(n, count, *shape)` to `(n, size)`, without a graph.

    This is `Observation.seen` for one group after the other. But `torch.func.vmap` computes all steps of many groups together,
    which is much faster. If a module does not allow that, because it draws numbers, depends on values or computes outside
    torch, groups are computed one by one. `on_step` is called for each group.
    """
    if not len(groups.x):
        return torch.zeros(0, len(observation.values))
    most = max(1, min(_MOST, _HELD // len(observation.weights)))
    found, together = [], True
    for x, y in zip(torch.split(groups.x.detach(), most), torch.split(groups.y, most), strict=True):
        if together:
            try:
                found.append(_together(observation, x, y))
            except (RuntimeError, ValueError, TypeError):
                together = False  # whatever is wrong with the examples themselves will be said one by one
        if not together:
            found.append(_one_by_one(observation, x, y))
        for _ in range(len(x) if on_step is not None else 0):
            on_step()  # type: ignore[misc]
    return torch.cat(found)


def shared(observations: Sequence[Observation]) -> list[list[int]]:
    """Group the observations in which a single example would look the same, and return their positions.

    The values may differ. So may the seeds, which give the order of batches and do not matter for a single example.
    """
    groups: list[list[int]] = []
    for place, one in enumerate(observations):
        for group in reversed(groups):  # those of a round follow each other
            first = observations[group[0]]
            if first.module is one.module and first.loss == one.loss and alike(first, one):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def alike(one: Observation, other: Observation) -> bool:
    """Whether two updates started from the same weights, with the same work, and went through the same map."""
    if one.values.shape != other.values.shape or one.work != other.work or (one.map is None) != (other.map is None):
        return False
    if one.weights is not other.weights and not torch.equal(one.weights, other.weights):
        return False
    if one.map is None or other.map is None or one.map is other.map or one.map == other.map:
        return True
    probe = normals_twin(PublicSeed(0).child("probe").stream, rows=torch.zeros(1, dtype=torch.int64), columns=len(one.weights))
    return torch.equal(one.map.apply(probe), other.map.apply(probe))  # equal maps may be made anew for each reply


def check_examples(examples: Examples) -> None:
    """Refuse inputs without targets, targets without inputs, and values that are not finite."""
    x, y = examples
    if x.ndim < 1 or y.ndim < 1 or not len(x) or len(x) != len(y):
        raise InputError(
            f"examples are inputs (n, *shape) with a target each, one or more, got shapes {tuple(x.shape)} and "
            f"{tuple(y.shape)}."
        )
    if not bool(x.isfinite().all()):
        raise InputError(f"inputs are finite numbers, got {int((~x.isfinite()).sum()):,} that are NaN or infinite.")


def check_size(observation: Observation, rows: Tensor) -> None:
    """Refuse values that did not come through the observation's map."""
    if rows.shape[1] != len(observation.values):
        raise InputError(
            f"{len(observation.values):,} numbers were observed, and an update has {rows.shape[1]:,} behind this map. "
            "Give the map, and the values, of the same round."
        )


def _together(observation: Observation, x: Tensor, y: Tensor) -> Tensor:
    layout, work, objective = Layout.of(observation.module), observation.work, objective_of(observation.loss)
    start = observation.weights.detach().to(x.dtype if x.is_floating_point() else observation.weights.dtype)

    def loss_of(weights: Tensor, batch: Examples) -> Tensor:
        return loss_at(observation.module, objective, layout, weights, batch)

    def change(x: Tensor, y: Tensor, seed: PublicSeed, size: int | None) -> Tensor:
        moved, said, velocity = start, torch.zeros_like(start), None
        for batch in batches_used(Examples(x, y), work, seed, size):
            step = torch.func.grad(loss_of)(moved, batch)
            if work.decay:
                step = step + work.decay * moved
            if work.momentum:
                velocity = step if velocity is None else work.momentum * velocity + step
                step = velocity
            said = said - work.rate * step
            moved = moved - work.rate * (step if observation.gram is None else observation.gram(step))
        return said

    def mean_change(x: Tensor, y: Tensor) -> Tensor:
        seeds = (observation.seed,) if isinstance(observation.seed, PublicSeed) else observation.seed
        parts = [torch.split(each, list(observation.counts) or len(x) // len(seeds)) for each in (x, y)]
        sizes = observation.sizes or [None] * len(seeds)
        return torch.stack([change(*own) for own in zip(*parts, seeds, sizes, strict=True)]).mean(0)

    with torch.no_grad():
        changes: Tensor = torch.func.vmap(mean_change)(x, y)
        return changes if observation.map is None else observation.map.apply(changes)


def _one_by_one(observation: Observation, x: Tensor, y: Tensor) -> Tensor:
    try:
        return torch.stack([observation.seen(*group).detach() for group in zip(x, y, strict=True)])
    except InputError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"the model that was observed cannot be trained on examples of shape {tuple(x.shape[2:])}: {error}. Give them as "
            "its clients have them: prepared, and with their targets."
        ) from error
