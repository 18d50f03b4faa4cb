"""Rebuilds a replica from the named tensors in which runs and clients store it between rounds."""

import weakref
from collections.abc import Callable, Mapping
from hashlib import sha256

from torch import Tensor

from sketchfed.algorithms.state import Replica
from sketchfed.seeds import PublicSeed
from sketchfed.subspaces import Subspace


def from_tensors(tensors: Mapping[str, Tensor], *, round: int) -> Replica:
    """Rebuild the replica of a round. Raises KeyError or ValueError if the tensors are not a replica."""
    return Replica(
        round=round,
        weights=tensors["weights"],
        velocity=tensors.get("velocity"),
        prediction=tensors.get("prediction"),
        moments=(moments := group(tensors, "moments")),
        subspace=_subspace(group(tensors, "subspace"), moments),
    )


def group(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix and a dot, under their names without the prefix."""
    return {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}


def _subspace(tensors: dict[str, Tensor], moments: Mapping[str, Tensor]) -> Subspace | None:
    if not tensors:
        return None
    found = Subspace.from_tensors(tensors, seed=PublicSeed.from_bytes(tensors.pop("seed").numpy().tobytes()))
    if "mean" in moments and len(moments["mean"]) != found.dim:
        raise ValueError(f"its subspace has {found.dim:,} dimensions, but its moments have {len(moments['mean']):,}")
    return found


def followed(
    replica: Replica, settings: object, seed: PublicSeed, said: Tensor, step: Callable[[], Replica], *, clients: int = 1
) -> Replica:
    """Return the result of `step`, which follows the update `said` from this replica, or the same result from before.

    `clients` is the number of clients that the update stands for.

    The server and the clients of one process begin a round with the same object and follow the same bytes. Then they end it
    with the same object too, which saves a step and the memory of a replica. It is kept only as long as somebody else holds it.
    """
    key = (settings, seed, clients, sha256(said.numpy()).digest())  # type: ignore[arg-type]
    known = replica.__dict__.get("_followed")
    after: Replica | None = known[1]() if known is not None and known[0] == key else None
    if after is None:
        after = step()
        object.__setattr__(replica, "_followed", (key, weakref.ref(after)))
    return after
