"""Tries an attack from a view on victims and compares the result with the truth. This gives one finding."""

import torch
from torch import Tensor

from sketchfed.attacks.base import Attack
from sketchfed.attacks.estimation import cosine
from sketchfed.attacks.matching import Guess
from sketchfed.attacks.reconstruction import OnStep, Reconstruction
from sketchfed.attacks.scores import MOST_DECIBELS, label_accuracy, mse, psnr, recognised, ssim
from sketchfed.attacks.steps import AllMessages, AsSent, StepAttack
from sketchfed.attacks.targets import Target
from sketchfed.attacks.view import View
from sketchfed.audits.evidence import Evidence
from sketchfed.audits.findings import Finding, PicturePair
from sketchfed.audits.intervals import median_interval
from sketchfed.audits.outside import Outside
from sketchfed.audits.png import png_base64
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.training import Examples

RECOVERED = 3.0
"""An example counts as recovered if it is this many dB closer to the truth than the mean of public data is: half the error."""
ALIGNED = 0.5
"""Steps count as known if the interval of the median cosine with the truth is above this."""
_TOLD = "clients are told every step by design, with whatever noise is in it: there is nothing to attack."


def judged_examples(
    attack: Reconstruction,
    view: View,
    recorded: Evidence,
    outside: Outside,
    *,
    victims: int,
    seed: PublicSeed,
    on_step: OnStep | None = None,
) -> Finding:
    """Compare the reconstructions of up to `victims` targets with the originals. One recovered example is a leak."""
    try:
        targets = attack.targets(view)
        chosen = _aimed_at(targets, recorded, victims)
        guesses = [
            (target, truth, attack.reconstruct(target, view.public, seed.child("victim", index), on_step))
            for index, (target, truth) in enumerate(chosen)
        ]
    except InputError as error:
        return not_applicable(attack, view, str(error))
    if not guesses:
        return not_applicable(attack, view, "no batch that it could aim at had an example in it.")
    return _scored(attack, view, outside, guesses)


def _scored(attack: Attack, view: View, outside: Outside, guesses: list[tuple[Target, Examples, Guess]]) -> Finding:
    found, chances, labels, pairs, failures = [], [], [], [], 0
    for _, truth, guess in guesses:
        if not bool(guess.x.isfinite().all()):
            failures += 1
            found.append(0.0)
            labels.append(0.0)
            chances.append(_chance(outside, truth.x))
            continue
        order, kept = _paired(guess.x, truth.x)
        x, original = outside.scaled(guess.x[order]), outside.scaled(truth.x[kept])
        found.append(float(psnr(x, original).mean()))
        chances.append(_chance(outside, truth.x[kept]))
        labels.append(_labels(guess.y, truth.y))
        pairs.append((x, original, truth.y[kept]))
    recovered = sum(score >= chance + RECOVERED for score, chance in zip(found, chances, strict=True))
    middle, low, high = median_interval(found)
    details = {"recovered": recovered / len(found), "labels": sum(labels) / len(labels), "failures": float(failures)}
    pictures: list[PicturePair] = []
    if pairs:
        x, original, y = (torch.cat([pair[part] for pair in pairs]) for part in range(3))
        details["mse"] = float(mse(x, original).mean())
        if not y.is_floating_point():
            spread = outside.high - outside.low
            both = [recognised(outside.recogniser, each * spread + outside.low, y) for each in (x, original)]
            details |= {"recognised": both[0], "recognised_originals": both[1]}
        if outside.image is not None:
            images = [each.reshape(len(each), *outside.image) for each in (x, original)]
            details["ssim"] = float(ssim(*images).mean())
            pictures = [
                PicturePair(truth=png_base64(truth), guess=png_base64(guess), decibels=float(psnr(guess[None], truth[None])))
                for guess, truth in zip(*images, strict=True)
            ]
    return Finding(
        role=view.role,
        attack=attack.name,
        goal="examples",
        verdict="leaks" if recovered else "nothing found",
        reason="" if outside.image is not None else "examples are not images: PSNR is over their columns, scaled to 0 to 1.",
        victims=len(found),
        examples=guesses[0][0].count,
        measure="psnr",
        score=middle,
        low=low,
        high=high,
        chance=median_interval(chances)[0],
        details=details,
        pictures=pictures[:8],
    )


def judged_steps(attack: StepAttack, view: View, recorded: Evidence) -> Finding:
    """Compare the estimated steps of the server's weights with the true ones, by their cosine in each round."""
    if not recorded.weights:
        return not_applicable(attack, view, "the weights between rounds were not kept, so nothing can be compared with them.")
    try:
        steps = attack.steps(view)
    except InputError as error:
        return not_applicable(attack, view, str(error))
    layout, cosines = view.public.layout, []
    for index, parts in steps.items():
        true = layout.views(recorded.weights[index + 1] - recorded.weights[index])
        form = view.public.sketch(index)
        rows = {name: true[name].reshape(len(true[name]), -1) if form is None else form.rows(name, true) for name in parts}
        estimate, truth = (torch.cat([each[name].reshape(-1) for name in parts]) for each in (parts, rows))
        if float(truth.norm()) and float(estimate.norm()):
            cosines.append(cosine(estimate, truth))
    if not cosines:
        return not_applicable(attack, view, "the weights did not move.")
    return _aligned(attack, view, cosines, told=isinstance(attack, AsSent))


def judged_changes(attack: AllMessages, view: View, recorded: Evidence) -> Finding:
    """Compare the estimated changes of a node's neighbours with the true ones, by their cosine in each round."""
    try:
        pairs = [(estimate, recorded.change(*place)) for place, estimate in attack.changes(view).items()]
    except InputError as error:
        return not_applicable(attack, view, str(error))
    cosines = [cosine(*pair) for pair in pairs if all(float(each.norm()) for each in pair)]
    if not cosines:
        return not_applicable(attack, view, "no neighbour's model moved.")
    return _aligned(attack, view, cosines, told=False)


def _aligned(attack: Attack, view: View, cosines: list[float], *, told: bool) -> Finding:
    """The finding on estimates with these cosines. What is `told` by design is no leak."""
    middle, low, high = median_interval(cosines)
    return Finding(
        role=view.role,
        attack=attack.name,
        goal=attack.goal,
        verdict="not applicable" if told else "leaks" if low > ALIGNED else "nothing found",
        reason=_TOLD if told else "",
        victims=len(cosines),
        measure="cosine",
        score=middle,
        low=low,
        high=high,
        chance=0.0,
    )


def _aimed_at(targets: list[Target], recorded: Evidence, victims: int) -> list[tuple[Target, Examples]]:
    """Return the first `victims` targets that have examples, and the true examples."""
    chosen: list[tuple[Target, Examples]] = []
    for target in targets:
        first = target.first
        truth = recorded.behind(first.round, first.clients or recorded.replied(first.round))
        if len(truth.x):
            chosen.append((target, truth))
        if len(chosen) == victims:
            break
    return chosen


def _paired(guess: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Match guesses with originals so that squared errors are smallest. There may be fewer of one than of the other."""
    from scipy.optimize import linear_sum_assignment

    distances = torch.cdist(guess.flatten(1).double(), truth.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist")
    rows, columns = linear_sum_assignment(distances.square().numpy())
    return torch.from_numpy(rows), torch.from_numpy(columns)


def _chance(outside: Outside, truth: Tensor) -> float:
    original = outside.scaled(truth)
    return min(MOST_DECIBELS, float(psnr(outside.scaled(outside.mean).expand_as(original), original).mean()))


def _labels(guess: Tensor, truth: Tensor) -> float:
    """The share of labels that are right. If the batch is hidden, the share of the guessed labels that are in it."""
    if truth.is_floating_point():
        return 0.0
    if len(guess) == len(truth):
        return label_accuracy(guess, truth)
    return float(torch.isin(guess, truth).float().mean())


def not_applicable(attack: Attack, view: View, reason: str, *, name: str | None = None) -> Finding:
    """A finding that says why the attack does not apply."""
    return Finding(role=view.role, attack=name or attack.name, goal=attack.goal, verdict="not applicable", reason=reason)
