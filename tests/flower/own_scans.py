"""Datasets with random transforms that each node has for itself, and all of them as one data set."""

import torch
from own_data import CLIENTS, points
from torch.utils.data import Dataset

from sketchfed.data import DataSet, from_clients


class Scans(Dataset):
    """Points that are moved at random whenever they are read."""

    def __init__(self, client: int) -> None:
        self.x, self.y = points(10 + client, first=50 * client)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index] + 0.1 * torch.randn(4), int(self.y[index])


def load(settings: dict[str, object]) -> Scans:
    """For --node-config data="own_scans:load"."""
    return Scans(int(str(settings["partition-id"])))


def data() -> DataSet:
    """For [data] name = "own_scans:data", partition = "natural"."""
    return from_clients([Scans(client) for client in range(CLIENTS)], test=points(24, first=500))[0]


def once() -> DataSet:
    """For [data] name = "own_scans:once": as `data`, but read once."""
    return from_clients([Scans(client) for client in range(CLIENTS)], test=points(24, first=500), redraw=False)[0]
