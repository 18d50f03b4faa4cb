"""Data sets and how they are spread over clients."""

from collections.abc import Callable

from sketchfed.data.census import a9a, adult
from sketchfed.data.dataset import DataSet, from_clients, hold_out
from sketchfed.data.digits import digits
from sketchfed.data.images import cifar10, fashion_mnist, mnist
from sketchfed.data.partitions import PARTITIONS, partition
from sketchfed.data.shakespeare import shakespeare
from sketchfed.data.ujiindoorloc import ujiindoorloc
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.plugins import check_options, resolve

__all__ = ["DATA_SETS", "PARTITIONS", "DataSet", "from_clients", "hold_out", "load", "partition"]

DATA_SETS: dict[str, Callable[..., DataSet]] = {
    loader.__name__: loader for loader in (digits, mnist, fashion_mnist, cifar10, adult, a9a, ujiindoorloc, shakespeare)
}


def load(name: str, **options: object) -> DataSet:
    """The data set of a name, or what your own function `package.module:function` returns.

    >>> data = load("digits")
    >>> len(data.x_train), len(data.x_test), data.shape, data.outputs
    (1438, 359, (64,), 10)
    """
    if isinstance(name, str) and ":" in name:
        loader = resolve(name, "data set")
    elif isinstance(name, str) and name in DATA_SETS:
        loader = DATA_SETS[name]
    else:
        raise UnknownNameError("data set", name, [*DATA_SETS, "package.module:function for your own"])
    check_options(loader, options, owner=f"data set '{name}'")
    data = loader(**options)
    if not isinstance(data, DataSet):
        raise InputError(f"'{name}' must return a sketchfed.data.DataSet, but returned a {type(data).__name__}.")
    return data
