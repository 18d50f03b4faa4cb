"""Advice on what to change after training diverged."""

import math

import torch
from torch import Tensor

from sketchfed.algorithms import Algorithm, RoundContext
from sketchfed.codecs.linear import LinearCode, RoundTrip
from sketchfed.errors import NotLinearError
from sketchfed.runs.workload import Workload
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import Sketch
from sketchfed.training import Examples, Trainer
from sketchfed.training.objective import loss_at, objective_of
from sketchfed.vectors import Layout, flatten


def advise(algorithm: Algorithm, workload: Workload, trainer: Trainer) -> str:
    """Compare the steps that were taken with the step that theory allows: 1/(8(1 + α)LK) (Song et al. 2023, Thm 5.1)."""
    steps = algorithm.work.count(len(workload.parts[0]))
    try:
        alpha = _alpha(algorithm, trainer.dim)
        smoothness = _smoothness(workload, workload.examples(0))
    except Exception:  # an error in the algorithm, model, loss or data must not hide that training diverged
        return (
            f"Steps may be too long: local_rate = {algorithm.local_rate:g} with {steps} local steps and global_rate = "
            f"{algorithm.global_rate:g}. Try a tenth of either."
        )
    if not math.isfinite(smoothness):
        return "Even at the first weights the loss is not finite: look for NaN, infinity or huge numbers in the data."
    allowed = 1 / (8 * (1 + alpha) * smoothness * steps)
    return (
        f"Steps are too long: local_rate = {algorithm.local_rate:g} with {steps} local steps and global_rate = "
        f"{algorithm.global_rate:g}. Try a tenth of either. Theory allows local_rate = {allowed:.2g} with global_rate = 1: "
        f"1/(8(1 + α)LK) with α = {alpha:.3g}, K = {steps}, and L = {smoothness:.3g} measured at the first weights of one "
        "client. In practice, far longer steps work."
    )


def _alpha(algorithm: Algorithm, dim: int) -> float:
    """The variance parameter α of the code: E‖decoded − x‖² ≤ α‖x‖². 0 if it is not known."""
    try:
        code: object = algorithm.code(dim, RoundContext(round=0, seed=PublicSeed(0), client=0))
    except NotLinearError as error:
        code = error.code
    known = code.map if isinstance(code, LinearCode) else None
    if isinstance(known, Sketch):
        return known.exact_alpha
    return known.alpha if isinstance(known, RoundTrip) else 0.0


def _smoothness(workload: Workload, examples: Examples, *, most: int = 256, turns: int = 40) -> float:
    """Estimate the largest curvature of the loss at the first weights by power iteration on Hessian-vector products."""
    module, objective = workload.first_module, objective_of(workload.loss)
    layout, weights = Layout.of(module), flatten(module).requires_grad_(True)
    loss = loss_at(module, objective, layout, weights, examples.part(0, most))
    (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
    direction = torch.randn(layout.dim, generator=torch.Generator().manual_seed(0))  # all ones may be flat, as for logits
    direction = (direction / direction.norm()).to(weights)
    norm: Tensor = direction.norm()
    for _ in range(turns):
        (product,) = torch.autograd.grad(gradient, weights, direction, retain_graph=True)
        norm = product.norm()
        direction = product / norm.clamp(min=1e-30)
    return float(norm.clamp(min=1e-12))  # NaN stays NaN
