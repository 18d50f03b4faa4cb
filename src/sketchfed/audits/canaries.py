"""Canaries: examples with wrong labels. The toss of a coin decides whether each is added to a client's data."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sketchfed.attacks.membership import mislabelled
from sketchfed.errors import InputError
from sketchfed.runs.workload import Workload
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """The canaries that an attack must find, and the client of each. The adversary knows the clients, but not who is there."""

    examples: Examples
    included: npt.NDArray[np.bool_]
    clients: Tensor


def with_canaries(workload: Workload, count: int, seed: PublicSeed) -> tuple[Workload, Canaries]:
    """Return the workload with about half of `count` canaries in it. Their inputs are taken from the held-out data.

    Labels are wrong, so nothing else in the data teaches the model the same (Steinke, Nasr & Jagielski 2023).
    """
    data = workload.dataset
    if data.task != "classification" or data.outputs < 2:
        raise InputError("canaries are examples with a wrong class, so they need a classification. Audit without canaries.")
    if count > len(data.x_test) // 4:
        raise InputError(
            f"{count:,} canaries would take more than a quarter of the {len(data.x_test):,} held-out examples. Use fewer."
        )
    order = torch.from_numpy(seed.child("canaries").words(len(data.x_test)).astype("int64")).argsort(stable=True)
    chosen, rest = order[:count], order[count:].sort().values
    wrong = mislabelled(Examples(data.x_test[chosen], data.y_test[chosen]), classes=data.outputs, seed=seed)
    included = seed.child("included").words(count) >> np.uint32(31) == 1
    there = torch.from_numpy(included)
    clients = torch.arange(count) % len(workload.parts)
    places = len(data.x_train) + torch.arange(int(there.sum()))
    parts = [torch.cat([part, places[clients[there] == client]]) for client, part in enumerate(workload.parts)]
    dataset = replace(
        data,
        x_train=torch.cat([data.x_train, data.x_test[chosen][there]]),
        y_train=torch.cat([data.y_train, wrong.y[there]]),
        x_test=data.x_test[rest],
        y_test=data.y_test[rest],
        groups=None,
    )
    canaries = Canaries(examples=Examples(data.prepare(wrong.x), wrong.y), included=included, clients=clients)
    return replace(workload, dataset=dataset, parts=parts), canaries
