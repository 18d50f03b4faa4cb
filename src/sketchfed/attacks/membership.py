"""Membership inference: was this example trained on?

Scores are higher if an example looks like a member. `attacks.scores` has the area under their ROC curve. If members are
canaries, included by the toss of a coin, `privacy.audit.audited` has the ε that the scores refute.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from sketchfed.attacks.observation import Observation
from sketchfed.attacks.shadows import Progress, check_examples, check_size, each_seen, shared
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples, Loss
from sketchfed.training.objective import Objective, OfOutputs, loss_at, objective_of
from sketchfed.vectors import Layout

_CHUNK, _COLUMNS = 1024, 2**16
_FLAT = 1e-10
"""If candidates differ in a direction by less than this share of the largest difference, squared, the difference is
rounding."""


def by_loss(
    module: nn.Module, loss: Loss | Objective, weights: Tensor, candidates: Examples, *, reference: Tensor | None = None
) -> Tensor:
    """Minus the loss of each candidate under flat weights `(dim,)`: `(n,)`. Members were fitted, so their loss is low.

    Paper: Yeom et al. 2018, "Privacy Risk in Machine Learning", Sec. 3. `reference` are the candidates' losses under a model
    that saw none of them, `(n,)`. With it, the score is how much lower the loss is here (Watson et al. 2022, "On the Importance
    of Difficulty Calibration in Membership Inference Attacks"), so an easy example does not look like a member. The model is
    used in evaluation mode and is not modified.
    """
    check_examples(candidates)
    layout = Layout.of(module)
    if weights.shape != (layout.dim,):
        raise InputError(f"the model has {layout.dim:,} parameters, and the weights have shape {tuple(weights.shape)}.")
    evaluated, objective = deepcopy(module).eval(), objective_of(loss)
    with torch.no_grad():
        parts = [candidates.part(start, start + _CHUNK) for start in range(0, candidates.size, _CHUNK)]
        found = torch.cat([_losses(evaluated, objective, layout, weights.detach(), part) for part in parts])
    if reference is None:
        return -found
    if reference.shape != found.shape or not bool(reference.isfinite().all()):
        raise InputError(
            f"the reference is a finite loss for each of {len(found):,} candidates, got shape {tuple(reference.shape)}. "
            "Compute it as -by_loss(...) with the reference model's weights."
        )
    return reference.detach() - found


def _losses(module: nn.Module, objective: Objective, layout: Layout, weights: Tensor, examples: Examples) -> Tensor:
    if isinstance(objective, OfOutputs):
        outputs = functional_call(module, layout.views(weights), (examples.x,))
        return _each(lambda output, target: objective.loss(output[None], target[None]), outputs, examples.y)
    return _each(lambda x, y: loss_at(module, objective, layout, weights, Examples(x[None], y[None])), *examples)


def _each(alone: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> Tensor:
    try:
        return torch.func.vmap(alone)(first, second)
    except (RuntimeError, ValueError, TypeError):  # a loss that looks at values
        return torch.stack([alone(*pair) for pair in zip(first, second, strict=True)])


def by_alignment(
    observations: Sequence[Observation],
    candidates: Examples,
    *,
    possible: Sequence[Tensor] | None = None,
    largest: bool = False,
    on_step: Progress = None,
) -> Tensor:
    """How strongly each candidate's own update shows in what was observed, averaged over observations: `(n,)`.

    This is a white-box attack, after Nasr et al. 2019, "Comprehensive Privacy Analysis of Deep Learning". Maddock et al. 2023
    (CANIFE) and Andrew et al. 2024 ("one-shot") score gradient canaries by the cosine ⟨v, sᵢ⟩/‖v‖‖sᵢ‖ between what arrived and
    what a first step on the candidate alone would look like. That is the best test in white noise. But updates of examples
    resemble each other, so the other members are the larger noise.

    The score here is therefore the best test for v = β·s̄ + Σⱼ aⱼ(sⱼ − s̄) + noise, with aⱼ ~ N(0, τ²) and noise N(0, σ²I). It
    is the derivative of the log-likelihood with respect to a little more of candidate i: (sᵢ − s̄)ᵀ(τ²Σⱼ(sⱼ − s̄)(sⱼ − s̄)ᵀ +
    σ²I)⁻¹(v − βs̄). It adds up over observations and does not depend on the number of members. It needs no noise level, because
    τ and σ are estimated by maximum likelihood. With much noise it is the matched filter. Without noise it gives the
    coefficients of least squares, which separate the parts of a mean over a hundred examples where cosines show little.

    If there are several local steps, the first stands for all. In later steps, a candidate that is alone would be fitted more
    than any member of a batch. Candidates are compared with each other, so there must be two or more. Additional ones that are
    known not to be members do no harm and improve s̄ and the covariance.

    `possible` says for each observation which candidates can be in it, `(n,)` true or false, if that is known. The mean is then
    over those observations, and 0 if there is none. With `largest`, the score is the largest over observations, each in
    deviations over candidates. That is better if clients are seen one by one and a member is in few of their updates. `on_step`
    is called for each observation. The function takes 4·n·size bytes, and time n³.
    """
    check_examples(candidates)
    if not observations:
        raise InputError("there is no observation to compare candidates with. Give one or more.")
    if len(candidates.x) < 2:
        raise InputError("candidates are compared with each other, got one. Add some that are known not to be members.")
    steps = [replace(observation, work=replace(observation.work, steps=1)) for observation in observations]
    total, counts = torch.zeros(2, len(candidates.x), dtype=torch.float64)
    most = torch.full_like(total, -torch.inf)
    everybody = torch.ones(len(candidates.x), dtype=torch.bool)
    for group in shared(steps):
        span = _Span(each_seen(steps[group[0]], candidates))
        for place in group:
            check_size(observations[place], span.rows)
            here = everybody if possible is None else possible[place]
            found = span.score(observations[place].values)
            if largest:
                standard = (found - found.mean()) / found.std().clamp(min=1e-30)
                most = torch.where(here, torch.maximum(most, standard), most)
            total += torch.where(here, found, 0.0)
            counts += here
            if on_step is not None:
                on_step()
    return torch.where(counts > 0, most, 0.0) if largest else total / counts.clamp(min=1)


class _Span:
    """Updates of candidates `(n, size)`, the directions in which they differ, and by how much."""

    def __init__(self, rows: Tensor) -> None:
        self.mean = rows.mean(0)
        self.rows = rows - self.mean
        gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for part in torch.split(self.rows, _COLUMNS, dim=1):
            gram += part.double() @ part.double().T
        squares, axes = torch.linalg.eigh(gram)
        kept = squares > _FLAT * squares[-1].clamp(min=1e-60)
        self.squares, self.axes = squares[kept], axes[:, kept]

    def score(self, values: Tensor) -> Tensor:
        mean, values = self.mean.double(), values.detach().double()
        values = values - values @ mean / mean.square().sum().clamp(min=1e-60) * mean
        size, length = len(values), values.square().sum()
        if not len(self.squares) or not length > 0:
            return torch.zeros(len(self.rows), dtype=torch.float64)
        products = torch.zeros(len(self.rows), dtype=torch.float64)
        for part, own in zip(torch.split(self.rows, _COLUMNS, dim=1), torch.split(values, _COLUMNS), strict=True):
            products += part.double() @ own
        along = self.axes.T @ products / self.squares.sqrt()
        rest = (length - along.square().sum()).clamp(min=0)
        ratios = self.squares.mean() * torch.logspace(-8, 8, 65, dtype=torch.float64)[:, None]  # σ²/τ²
        scales = ((along.square() / (self.squares + ratios)).sum(1) + rest / ratios[:, 0]) / size  # the likeliest τ² for each
        unlikely = size * scales.log() + (self.squares + ratios).log().sum(1) + (size - len(along)) * ratios[:, 0].log()
        best = int(unlikely.argmin())
        found: Tensor = self.axes @ (along * self.squares.sqrt() / (self.squares + ratios[best])) / scales[best]
        return found


def mislabelled(examples: Examples, classes: int, seed: PublicSeed) -> Examples:
    """Return the same inputs, each with a wrong label, drawn uniformly from the others. Only memory can fit such canaries.

    Paper: label flipping in Nasr et al. 2021, "Adversary Instantiation", and in Steinke et al. 2023. Labels are `(n,)`.
    """
    check_examples(examples)
    y = examples.y
    if y.ndim != 1 or y.is_floating_point() or classes < 2 or not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(
            f"labels to be flipped are integers (n,) from 0 to {classes - 1}, of 2 classes or more; got {y.dtype} of shape "
            f"{tuple(y.shape)} from {y.min().item()} to {y.max().item()}."
        )
    words = seed.child("labels").words(len(y)).astype(np.uint64)
    further = 1 + torch.from_numpy((words * np.uint64(classes - 1) >> np.uint64(32)).astype(np.int64))
    return Examples(examples.x, (y + further) % classes)
