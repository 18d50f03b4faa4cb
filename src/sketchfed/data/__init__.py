"""Data sets and how they are spread over clients."""

from collections.abc import Callable

from sketchfed.data.census import ADULT_CATEGORIES, ADULT_NUMBERS, a9a, adult
from sketchfed.data.clients import from_clients
from sketchfed.data.dataset import DataSet, hold_out
from sketchfed.data.digits import digits
from sketchfed.data.images import cifar10, fashion_mnist, mnist
from sketchfed.data.partitions import PARTITIONS, partition
from sketchfed.data.shakespeare import shakespeare
from sketchfed.data.ujiindoorloc import ujiindoorloc
from sketchfed.errors import InputError
from sketchfed.parts import Registry, check_options

__all__ = [
    "ADULT_CATEGORIES",
    "ADULT_NUMBERS",
    "DATA_SETS",
    "PARTITIONS",
    "DataSet",
    "from_clients",
    "hold_out",
    "load",
    "partition",
]

_OURS = (digits, mnist, fashion_mnist, cifar10, adult, a9a, ujiindoorloc, shakespeare)
DATA_SETS: Registry[Callable[..., DataSet]] = Registry(
    "data set", {loader.__name__: loader for loader in _OURS}, group="sketchfed.data"
)


def load(name: str, **options: object) -> DataSet:
    """The data set of a name, or what your own function `package.module:function` returns.

    >>> data = load("digits")
    >>> len(data.x_train), len(data.x_test), data.shape, data.outputs
    (1438, 359, (64,), 10)
    """
    loader = DATA_SETS[name]
    check_options(loader, options, owner=f"data set '{name}'")
    data = loader(**options)
    if not isinstance(data, DataSet):
        raise InputError(f"'{name}' must return a sketchfed.data.DataSet, but returned a {type(data).__name__}.")
    return data
