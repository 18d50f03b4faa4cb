"""Data that each node has for itself, and all of it as one data set with the nodes as its natural groups."""

import os
from pathlib import Path

from torch import Tensor

from runs.tiny import points
from sketchfed.data import DataSet, from_clients

CLIENTS = 3
HERE = Path(__file__).parent
FOUND = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""With this in its environment a process finds this module, and the sources that this process finds."""


def load(settings: dict[str, object]) -> tuple[Tensor, Tensor]:
    """For --node-config data="own_data:load"."""
    return of_client(int(str(settings.get("partition-id", 0))))


def of_client(client: int) -> tuple[Tensor, Tensor]:
    return points(10 + client, first=50 * client)


def data() -> DataSet:
    """For [data] name = "own_data:data", partition = "natural"."""
    return from_clients([of_client(client) for client in range(CLIENTS)], test=points(24, first=500))[0]
