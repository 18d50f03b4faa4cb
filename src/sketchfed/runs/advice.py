"""What to change when training diverged."""

import math

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, FedAvg
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Trainer
from sketchfed.vectors import Layout, flatten
from sketchfed.workload import Workload


def advise(algorithm: Algorithm, workload: Workload, trainer: Trainer) -> str:
    """The steps that were taken, and the one that theory allows: 1/(8(1 + α)LK) (Song et al. 2023, Thm 5.1)."""
    examples = workload.examples(0)
    steps = algorithm.work.count(len(examples.x))
    alpha = _alpha(algorithm, trainer.dim)
    smoothness = _smoothness(workload, examples)
    if not math.isfinite(smoothness):
        return "Even at the first weights the loss is not finite: look for NaN, infinity or huge numbers in the data."
    allowed = 1 / (8 * (1 + alpha) * smoothness * steps)
    return (
        f"Steps are too long: local_rate = {algorithm.local_rate:g} with {steps} local steps and global_rate = "
        f"{algorithm.global_rate:g}. Try a tenth of either. Theory is sure of local_rate = {allowed:.2g} with global_rate = 1: "
        f"1/(8(1 + α)LK) with α = {alpha:.3g}, K = {steps}, and L = {smoothness:.3g} measured at the first weights of one "
        "client; practice allows far more."
    )


def _alpha(algorithm: Algorithm, dim: int) -> float:
    """The variance parameter of what travels: that of the sketch, or what an unbiased codec adds to one update."""
    sketch: SketchSettings | None = getattr(algorithm, "sketch", None)
    if sketch is not None:
        return sketch.codec(dim).sketch(PublicSeed(0)).exact_alpha
    codec = algorithm.codec.codec(dim, None) if isinstance(algorithm, FedAvg) else None
    return 1 / codec.shrinkage - 1 if codec is not None and codec.unbiased else 0.0


def _smoothness(workload: Workload, examples: Examples, *, most: int = 256, turns: int = 10) -> float:
    """The largest curvature of the loss at the first weights, by power iteration on Hessian-vector products."""
    from sketchfed.training.losses import loss_named

    module, loss = workload.module, loss_named(workload.loss)
    layout, weights = Layout.of(module), flatten(module).requires_grad_(True)
    outputs = torch.func.functional_call(module, layout.views(weights), (examples.x[:most],))
    (gradient,) = torch.autograd.grad(loss(outputs, examples.y[:most]), weights, create_graph=True)
    direction = torch.ones_like(weights) / layout.dim**0.5
    norm: Tensor = direction.norm()
    for _ in range(turns):
        (product,) = torch.autograd.grad(gradient, weights, direction, retain_graph=True)
        norm = product.norm()
        direction = product / norm.clamp(min=1e-30)
    return float(norm.clamp(min=1e-12))  # NaN stays NaN
