"""The model, the data and the training of the quick start: nothing here knows of sketchfed."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network. It has no batch normalisation: a variance that went through a sketch may come out negative."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


def load_data(partition_id, num_partitions):
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    own = TensorDataset(x[partition_id::num_partitions], y[partition_id::num_partitions])
    order = torch.Generator().manual_seed(partition_id)
    return DataLoader(own, batch_size=32, shuffle=True, generator=order)


def train(net, loader, epochs, lr):
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    net.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for x, y in loader:
            outputs = net(x)
            loss += nn.functional.cross_entropy(outputs, y).item()
            right += int((outputs.argmax(1) == y).sum())
    return loss / len(loader), right / len(loader.dataset)
