"""De-sketching on a device, where the device gives the bits of the CPU.

Every party de-sketches what the server broadcasts, and all of them must come to the same weights, bit for bit. So only
`portable` sketches are undone on a device, and only after the device showed that it comes to the bits of the CPU.
"""

import logging
from dataclasses import replace

import torch
from torch import Tensor

from sketchfed.caches import cached
from sketchfed.seeds import PublicSeed
from sketchfed.sketches.base import Sketch

log = logging.getLogger("sketchfed")


def desketched(sketch: Sketch, y: Tensor, device: torch.device) -> Tensor:
    """Rᵀy on the CPU, with the bits of the CPU, for `y` on the CPU. The device computes it if it can be relied on for that."""
    if device.type == "cpu" or not sketch.portable or not _agrees(replace(sketch, seed=PublicSeed(0)), device, y.dtype):
        return sketch.adjoint(y)
    return sketch.adjoint(y.to(device)).cpu()


@cached(maxsize=64)
def _agrees(sketch: Sketch, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device comes to the bits of the CPU: for numbers of one magnitude and of all, for zeros with either sign, and
    for numbers so small that some devices take them for zero.

    What a portable sketch computes does not depend on the numbers, nor on what is drawn, so one seed stands for all.
    """
    draw, count = torch.Generator().manual_seed(0), (sketch.size,)
    usual = torch.randn(count, generator=draw, dtype=torch.float64)
    magnitudes = 2.0 ** torch.randint(-100, 100, count, generator=draw)
    least = torch.tensor([1e-40, 0.0])[torch.randint(2, count, generator=draw)]
    tried = ((usual * factors).to(dtype) for factors in (torch.ones(count), magnitudes, least))
    same = all(_bits(sketch.adjoint(y)).equal(_bits(sketch.adjoint(y.to(device)).cpu())) for y in tried)
    if not same:
        log.warning(
            "%s does not compute the bits of the CPU for sketch '%s', so updates are de-sketched on the CPU. Training and "
            "encoding stay on %s.",
            device,
            sketch.name,
            device,
        )
    return same


def _bits(t: Tensor) -> Tensor:
    return t.view(torch.int32)
