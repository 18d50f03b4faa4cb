"""The convolutional networks that the papers train."""

from itertools import pairwise

import torch
from torch import nn

from sketchfed.errors import InputError


def lenet(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, for images of 28 or 32 pixels a side."""
    channels = _channels("lenet", shape, least=20)
    body = nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    return _headed(body, shape, [120, 84], outputs)


def cnn_mnist(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of Zhang & Wang 2021, Sec. 6.2, for MNIST: that of McMahan et al. 2017, 'same' padding."""
    channels = _channels("cnn_mnist", shape, least=4)
    body = nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    return _headed(body, shape, [512], outputs)


def cnn_cifar(*, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of Zhang & Wang 2021, Sec. 6.2, for CIFAR-10; the paper does not say its padding: 'same' here."""
    channels = _channels("cnn_cifar", shape, least=4)
    body = nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    return _headed(body, shape, [200], outputs)


def _headed(body: nn.Sequential, shape: tuple[int, ...], hidden: list[int], outputs: int) -> nn.Sequential:
    with torch.no_grad():
        widths = [body(torch.zeros(1, *shape)).shape[1], *hidden]
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*body, *layers, nn.Linear(widths[-1], outputs))


def _channels(name: str, shape: tuple[int, ...], *, least: int) -> int:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(
            f"model '{name}' takes images (channels, height, width) of at least {least} pixels a side, got examples of "
            f"shape {shape}. Use model 'mlp', or an image data set such as 'mnist'."
        )
    return shape[0]
