"""MNIST, Fashion-MNIST and CIFAR-10."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sketchfed.data.dataset import DataSet
from sketchfed.data.files import AnyArray, DataSource, Numbers, checked, described, read_arrays, read_idx, tensor

FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package `dataset-fashion-mnist` puts the four original files."""

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_DEVIATION = (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training pixels, from 0 to 1, of red, green and blue."""


def _arrays(*shape: int) -> dict[str, Numbers]:
    return {
        "x_train": Numbers(kind="u1", shape=("train", *shape)),
        "y_train": Numbers(kind="i8", shape=("train",), high=9),
        "x_test": Numbers(kind="u1", shape=("test", *shape)),
        "y_test": Numbers(kind="i8", shape=("test",), high=9),
    }


_GREY, _COLOUR = _arrays(28, 28), _arrays(32, 32, 3)

MNIST = DataSource(
    name="mnist",
    file="mnist.npz",
    published="'The MNIST database of handwritten digits' by Y. LeCun, C. Cortes and C. Burges",
    contents=described(_GREY),
)
FASHION_MNIST = DataSource(
    name="fashion_mnist",
    file="fashion_mnist.npz",
    published="Fashion-MNIST by Zalando Research (zalandoresearch/fashion-mnist, Debian package dataset-fashion-mnist)",
    contents=described(_GREY),
    also=f"; nor is there Debian's {FASHION_MNIST_FOLDER}",
)
CIFAR10 = DataSource(
    name="cifar10",
    file="cifar10.npz",
    published="CIFAR-10 by A. Krizhevsky, University of Toronto",
    contents=described(_COLOUR),
)


def mnist() -> DataSet:
    """70,000 handwritten digits of 28 by 28 pixels from 0 to 1 (LeCun et al. 1998)."""
    return _images(MNIST, read_arrays(MNIST, _GREY), (1, 28, 28), _grey)


def fashion_mnist() -> DataSet:
    """70,000 pictures of clothes of 28 by 28 pixels from 0 to 1, ten kinds (Xiao et al. 2017, arXiv:1708.07747)."""
    if FASHION_MNIST.path() is None and FASHION_MNIST_FOLDER.is_dir():
        return _images(FASHION_MNIST, _fashion_mnist_of_debian(), (1, 28, 28), _grey)
    return _images(FASHION_MNIST, read_arrays(FASHION_MNIST, _GREY), (1, 28, 28), _grey)


def cifar10() -> DataSet:
    """60,000 colour pictures of 32 by 32 pixels, ten kinds, each channel standardised (Krizhevsky 2009)."""
    return _images(CIFAR10, read_arrays(CIFAR10, _COLOUR), (3, 32, 32), _standardised_colour)


def _fashion_mnist_of_debian() -> dict[str, AnyArray]:
    content = {
        f"{letter}_{part}": read_idx(FASHION_MNIST, FASHION_MNIST_FOLDER / f"{prefix}-{what}-ubyte.gz")
        for part, prefix in (("train", "train"), ("test", "t10k"))
        for letter, what in (("x", "images-idx3"), ("y", "labels-idx1"))
    }
    return checked(FASHION_MNIST, FASHION_MNIST_FOLDER, content, _GREY)


def _images(
    source: DataSource, arrays: dict[str, AnyArray], shape: tuple[int, ...], prepare: Callable[[Tensor], Tensor]
) -> DataSet:
    tensors = {key: tensor(array) for key, array in arrays.items()}
    return DataSet(name=source.name, outputs=10, shape=shape, prepare=prepare, **tensors)  # type: ignore[arg-type]


def _grey(x: Tensor) -> Tensor:
    return x.unsqueeze(1).to(torch.float32) / 255


def _standardised_colour(x: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values, device=x.device) for values in (CIFAR10_MEAN, CIFAR10_DEVIATION))
    return ((x.to(torch.float32) / 255 - mean) / deviation).movedim(-1, 1).contiguous()
