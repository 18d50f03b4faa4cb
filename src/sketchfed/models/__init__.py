"""Models by name. A model is a function of an example's shape and the number of outputs that returns a `torch.nn.Module`.

Built-in models start from weights that everyone can rebuild from the public seed, on any platform, so the first round
sends nothing.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from sketchfed.errors import InputError
from sketchfed.models.convolutional import cnn_cifar, cnn_mnist, lenet
from sketchfed.models.layered import linear, logistic, mlp
from sketchfed.models.start import initialise
from sketchfed.parts import Registry, check_options
from sketchfed.seeds import PublicSeed

__all__ = ["MODELS", "build", "initialise"]

MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model",
    {model.__name__: model for model in (mlp, logistic, linear, lenet, cnn_mnist, cnn_cifar)},
    group="sketchfed.models",
)


def build(name: str, *, shape: tuple[int, ...], outputs: int, seed: PublicSeed, **options: Any) -> nn.Module:
    """The model of a name, or of a `package.module:function`, with its first weights.

    >>> build("mlp", shape=(64,), outputs=10, seed=PublicSeed(7), hidden=[32])
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    builder = MODELS[name]
    check_options(builder, options, owner=f"model '{name}'", besides=("shape", "outputs"))
    module = builder(shape=shape, outputs=outputs, **options)
    if not isinstance(module, nn.Module):
        raise InputError(f"model '{name}' returned a {type(module).__name__}; it must return a torch.nn.Module.")
    return initialise(module, seed) if name in MODELS.built_in else module
