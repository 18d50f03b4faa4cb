"""How training examples are spread over clients.

A partition says which client owns each training example. Orders and subsets are drawn from the seed's own stream and are
the same everywhere; Dirichlet shares come from numpy's generator on a Philox key of the seed, the same for the same numpy.
"""

from collections.abc import Callable
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.data.dataset import DataSet
from sketchfed.errors import InputError
from sketchfed.kernels import draws
from sketchfed.parts import Registry, check_options
from sketchfed.seeds import PublicSeed

Owners = npt.NDArray[np.int64]
"""The number of its client for each training example."""


def iid(data: DataSet, *, clients: int, seed: PublicSeed) -> Owners:
    """Shuffled and dealt out: every client has the same number of examples, up to one."""
    return _deal(len(data.x_train), clients, seed)


def shards(data: DataSet, *, clients: int, seed: PublicSeed, shards: int = 2) -> Owners:
    """Examples sorted by class and cut into `shards` equal pieces a client, dealt at random (McMahan et al. 2017, Sec. 3).

    Most clients then have examples of about `shards` classes only.
    """
    labels, total = _classes(data, "shards"), _positive("shards", shards) * clients
    if total > len(labels):
        raise InputError(
            f"{shards} shards for each of {clients:,} clients are {total:,}, more than the {len(labels):,} training examples. "
            f"Use clients <= {len(labels) // shards:,}, or fewer shards."
        )
    shard_owner = _deal(total, clients, seed)
    owners = np.empty(len(labels), np.int64)
    owners[np.argsort(labels, kind="stable")] = shard_owner[np.arange(len(labels)) * total // len(labels)]
    return owners


def dirichlet(data: DataSet, *, clients: int, seed: PublicSeed, concentration: float = 0.5, minimum: int = 1) -> Owners:
    """Each class is shared out in proportions drawn from Dirichlet(`concentration`), anew for each class.

    The smaller the concentration, the fewer clients share a class and the more their numbers of examples differ
    (Yurochkin et al. 2019, Sec. 4; compare Hsu et al. 2019, which fixes these numbers). Afterwards clients with fewer than
    `minimum` examples are filled up from random examples that others can spare. Others draw again until no client is short,
    which for many clients never ends.
    """
    labels = _classes(data, "dirichlet")
    _check_concentration(concentration)
    order = _order(len(labels), seed.child("order"))
    owners = np.empty(len(labels), np.int64)
    for number, label in enumerate(np.unique(labels)):
        of_class = order[labels[order] == label]
        owners[of_class] = _shares(len(of_class), clients, concentration, seed.child("class", number))
    return _filled_up(owners, clients, _positive("minimum", minimum), seed.child("fill"))


def quantity(data: DataSet, *, clients: int, seed: PublicSeed, concentration: float = 0.5, minimum: int = 1) -> Owners:
    """Shuffled examples in unequal numbers: the clients' shares are one draw from Dirichlet(`concentration`).

    The smaller the concentration, the more the numbers differ (Li et al. 2022, "Federated learning on non-IID data silos",
    quantity skew). Clients with fewer than `minimum` are filled up as in `dirichlet`.
    """
    _check_concentration(concentration)
    owners = np.empty(len(data.x_train), np.int64)
    shares = _shares(len(owners), clients, concentration, seed.child("sizes"))
    owners[_order(len(owners), seed.child("order"))] = shares
    return _filled_up(owners, clients, _positive("minimum", minimum), seed.child("fill"))


def natural(data: DataSet, *, clients: int | None, seed: PublicSeed) -> Owners:
    """To whom the examples belong: a client for each of the data set's groups, or whole groups dealt to fewer clients."""
    if data.groups is None:
        raise InputError(
            f"data set '{data.name}' has no natural groups. Use another partition, such as 'dirichlet', or set groups in your "
            "own data set."
        )
    group = np.unique(data.groups.cpu().numpy(), return_inverse=True)[1].astype(np.int64)
    count = int(group.max()) + 1
    if clients is None or clients == count:
        return group
    if clients > count:
        raise InputError(
            f"the partition 'natural' has {count:,} groups in data set '{data.name}', too few for {clients:,} clients. Leave "
            f"clients out, or use clients <= {count:,}."
        )
    return _deal(count, clients, seed)[group]


PARTITIONS: Registry[Callable[..., Owners]] = Registry(
    "partition", {rule.__name__: rule for rule in (iid, shards, dirichlet, quantity, natural)}, group="sketchfed.partitions"
)


def partition(
    data: DataSet, *, name: str = "iid", clients: int | None = None, seed: PublicSeed, **options: object
) -> list[Tensor]:
    """The training examples of each client, as ascending int64 indices: each example once, and no client without any.

    >>> from sketchfed.data import load
    >>> [len(part) for part in partition(load("digits"), clients=4, seed=PublicSeed(7))]
    [360, 360, 359, 359]
    """
    rule, examples = PARTITIONS[name], len(data.x_train)
    if not isinstance(seed, PublicSeed):
        raise InputError(f"seed must be a PublicSeed, got {type(seed).__name__}. Write seed=PublicSeed(7).")
    check_options(rule, options, owner=f"partition '{name}'", besides=("data", "clients", "seed"))
    if clients is None and rule is not natural:
        raise InputError(f"partition '{name}' needs the number of clients. Write clients=10.")
    if clients is not None and _positive("clients", clients) > examples:
        raise InputError(
            f"{clients:,} clients are more than the {examples:,} training examples of data set '{data.name}': some would have "
            f"none. Use clients <= {examples:,}."
        )
    owners = rule(data, clients=clients, seed=seed.child(name), **options)
    if name not in PARTITIONS.built_in:
        owners = _checked(owners, name, examples=examples, clients=clients)
    sizes = np.bincount(owners, minlength=clients or 0).tolist()
    return list(torch.split(torch.from_numpy(np.argsort(owners, kind="stable")), sizes))


def _checked(owners: object, name: str, *, examples: int, clients: int | None) -> Owners:
    """What somebody else's rule returned, if it gives every example to a client and every client an example."""
    found = np.asarray(owners)
    if found.shape != (examples,) or found.dtype.kind not in "iu":
        raise InputError(
            f"partition '{name}' returned an array of shape {found.shape} and type {found.dtype}. It must return the number of "
            f"its client, an integer, for each of the {examples:,} training examples."
        )
    count = clients or int(found.max()) + 1
    if found.min() < 0 or found.max() >= count:
        raise InputError(
            f"partition '{name}' numbered its clients from {found.min()} to {found.max()}. Number them from 0 to {count - 1}."
        )
    without = np.flatnonzero(np.bincount(found, minlength=count) == 0)
    if len(without):
        raise InputError(
            f"partition '{name}' gave client {without[0]} no example. Give each of the {count:,} clients one or more."
        )
    return found.astype(np.int64)


def _order(count: int, seed: PublicSeed) -> Owners:
    return draws.permutation(seed.stream, dim=count).astype(np.int64)


def _deal(count: int, clients: int, seed: PublicSeed) -> Owners:
    """The clients of `count` things that are shuffled and dealt round by round."""
    owners = np.empty(count, np.int64)
    owners[_order(count, seed)] = np.arange(count) % clients
    return owners


def _shares(count: int, clients: int, concentration: float, seed: PublicSeed) -> Owners:
    """Clients for `count` things, ascending, in proportions drawn from a symmetric Dirichlet distribution.

    A client whose share is p of `count` has ⌊p·count⌋ or one more, on average p·count, by a random phase.
    """
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed.to_bytes(), "little")))
    shares = generator.dirichlet(np.full(clients, float(concentration)))
    edges = np.floor(np.cumsum(shares) * count + generator.random())
    return np.minimum(np.searchsorted(edges, np.arange(count), side="right"), clients - 1)


def _filled_up(owners: Owners, clients: int, minimum: int, seed: PublicSeed) -> Owners:
    """Give every client at least `minimum` examples. Random examples move from clients that have more.

    One pass: whatever a client has beyond its first `minimum` examples, in a random order, may move.
    """
    if clients * minimum > len(owners):
        raise InputError(
            f"{clients:,} clients with at least {minimum:,} examples need {clients * minimum:,}, but there are "
            f"{len(owners):,}. Use fewer clients, or minimum <= {len(owners) // clients}."
        )
    sizes = np.bincount(owners, minlength=clients)
    needy = np.repeat(np.arange(clients), np.maximum(minimum - sizes, 0))
    order = _order(len(owners), seed)
    by_owner = order[np.argsort(owners[order], kind="stable")]
    rank = np.empty(len(owners), np.int64)
    rank[by_owner] = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    spare = order[rank[order] >= minimum]
    filled = owners.copy()
    filled[spare[: len(needy)]] = needy
    return filled


def _classes(data: DataSet, name: str) -> npt.NDArray[np.int64]:
    if data.task != "classification":
        raise InputError(
            f"the partition '{name}' goes by classes, and data set '{data.name}' is a regression without them. Use 'iid', "
            "'quantity' or 'natural'."
        )
    return data.y_train.cpu().numpy()


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {value!r}.")
    return value


def _check_concentration(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value > 0):
        raise InputError(f"concentration must be a positive number, got {value!r}: the smaller, the more clients differ.")
