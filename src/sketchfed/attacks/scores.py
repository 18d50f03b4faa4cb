"""Measures how close a reconstruction, or a guess, came to the truth.

Images are tensors `(n, channels, height, width)` with values from 0 to 1. Arithmetic is in float64 on the CPU. The scores of a
membership attack are higher for what looks like a member. NaN is refused, because an attack that broke down would look like a
defence that held.
"""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import betaincinv, expit, logit, ndtri
from torch import Tensor
from torch.nn.functional import conv2d

from sketchfed.errors import InputError

FloatArray = npt.NDArray[np.float64]
Scores = Tensor | npt.ArrayLike

MOST_DECIBELS = 100.0
"""The signal-to-noise ratio of a guess without error, and of any guess that is closer than this."""

_WINDOW, _WINDOW_DEVIATION = 11, 1.5
_SMALL_MEAN, _SMALL_VARIANCE = 0.01**2, 0.03**2  # C₁ = (K₁·peak)² and C₂ = (K₂·peak)² at a peak of 1


def mse(guess: Tensor, truth: Tensor) -> Tensor:
    """The mean square error of each guess: `(n, ...)` and `(n, ...)` to `(n,)`."""
    guess, truth = _batches(guess, truth)
    return (guess - truth).square().reshape(len(guess), -1).mean(1)


def psnr(guess: Tensor, truth: Tensor, peak: float = 1.0) -> Tensor:
    """The peak signal-to-noise ratio 10·log₁₀(peak²/mse) in dB, at most `MOST_DECIBELS`: `(n, ...)` and `(n, ...)` to `(n,)`.

    `peak` is the range of the values: 1 for images from 0 to 1, 255 for bytes. Without the cap, one exact guess would make the
    mean over a batch infinite.
    """
    if not (math.isfinite(peak) and peak > 0):
        raise InputError(f"the peak is the range of the values, positive and finite, got {peak!r}. From 0 to 1 it is 1.")
    return (20 * math.log10(peak) - 10 * mse(guess, truth).log10()).clamp(max=MOST_DECIBELS)


def ssim(guess: Tensor, truth: Tensor) -> Tensor:
    """The mean structural similarity of each image, 1 for equal images: twice `(n, channels, height, width)` to `(n,)`.

    Paper: Wang et al. 2004, "Image Quality Assessment: From Error Visibility to Structural Similarity", Eqs. 13 to 17, with its
    Gaussian window of 11 × 11 and deviation 1.5, K₁ = 0.01, K₂ = 0.03 and a peak of 1, at all places where the window lies
    within the image. The paper's images are grey. Here the mean is over channels too. Images with a side below 11 get the
    largest square window with an odd side that fits. A window of 1 × 1 sees no structure and compares brightness only.
    """
    guess, truth = _batches(guess, truth)
    if guess.ndim != 4:
        raise InputError(
            f"structural similarity is that of images (n, channels, height, width), got shape {tuple(guess.shape)}. "
            "Reshape them, a single grey image to (1, 1, height, width)."
        )
    x, y, xx, yy, xy = _blurred(torch.stack([guess, truth, guess * guess, truth * truth, guess * truth])).unbind()
    brightness = (2 * x * y + _SMALL_MEAN) / (x * x + y * y + _SMALL_MEAN)
    structure = (2 * (xy - x * y) + _SMALL_VARIANCE) / (xx - x * x + yy - y * y + _SMALL_VARIANCE)
    return (brightness * structure).mean((1, 2, 3))


def _blurred(images: Tensor) -> Tensor:
    """Means over the last two axes under a Gaussian window with sum 1. It is the product of one window along each axis."""
    side = min(_WINDOW, *images.shape[-2:])
    side -= 1 - side % 2
    places = torch.arange(side, dtype=images.dtype) - side // 2
    weights = torch.softmax(-places.square() / (2 * _WINDOW_DEVIATION**2), 0)
    flat = images.reshape(-1, 1, *images.shape[-2:])
    blurred = conv2d(conv2d(flat, weights.reshape(1, 1, -1, 1)), weights.reshape(1, 1, 1, -1))
    return blurred.reshape(*images.shape[:-2], *blurred.shape[-2:])


def matched(guess: Tensor, truth: Tensor) -> Tensor:
    """The order `(n,)` in which guesses are closest to the truths: `guess[order]` has the least sum of squared errors.

    For `(n, ...)` and `(n, ...)`. An attack on the gradient of a batch cannot know the order of the examples.
    """
    from scipy.optimize import linear_sum_assignment

    guess, truth = _batches(guess, truth)
    flat = truth.reshape(len(truth), -1), guess.reshape(len(guess), -1)
    distances = torch.cdist(*flat, compute_mode="donot_use_mm_for_euclid_dist")  # products cancel where guesses are good
    return torch.from_numpy(linear_sum_assignment(distances.square().numpy())[1])


def label_accuracy(guess: Tensor, truth: Tensor) -> float:
    """The share of a batch's labels that were guessed, in any order: Σ over classes of the smaller count, divided by n.

    For `(n,)` and `(n,)` integers, or one of each `()`: then it is 1 if they are equal and 0 otherwise. Labels from n separate
    attacks have an order, so compare them one by one.
    """
    guessed, true = (Counter(_labels(labels).tolist()) for labels in (guess, truth))
    if guessed.total() != true.total():
        raise InputError(f"got {guessed.total():,} guesses of {true.total():,} labels. Guess one label for each example.")
    return (guessed & true).total() / true.total()


def recognised(classifier: Callable[[Tensor], Tensor], guess: Tensor, labels: Tensor) -> float:
    """The share of reconstructions `(n, ...)` that a classifier assigns to their true `labels`, `(n,)`.

    The classifier returns logits `(n, classes)`. Among equal logits the first counts. It should be in evaluation mode, and it
    should not be the model under attack: guesses that were fitted to that model's gradients may fool it.
    """
    expected = _labels(labels)
    _refuse_non_finite(guess)
    if guess.ndim < 1 or len(guess) != len(expected):
        raise InputError(f"got guesses of shape {tuple(guess.shape)} and {len(expected):,} labels. Give one label a guess.")
    with torch.no_grad():
        logits = classifier(guess).cpu()
    if logits.ndim != 2 or len(logits) != len(expected) or bool(logits.isnan().any()):
        raise InputError(
            f"for {len(expected):,} guesses a classifier gives logits of shape ({len(expected)}, classes) that are numbers, "
            f"got shape {tuple(logits.shape)} or NaN. Give one that takes a batch."
        )
    if not 0 <= int(expected.min()) <= int(expected.max()) < logits.shape[1]:
        raise InputError(
            f"the classifier knows labels from 0 to {logits.shape[1] - 1}, got labels from {int(expected.min())} to "
            f"{int(expected.max())}. Give one that was trained on these classes."
        )
    return int((logits.argmax(1) == expected).sum()) / len(expected)


def auc(positive: Scores, negative: Scores) -> float:
    """The area under the ROC curve from scores `(m,)` of members and `(n,)` of others. ½ is chance.

    It is the probability that a member scores higher than another, where ties count half (Mann & Whitney 1947). It is unbiased.
    """
    return float(placements(_scores(positive, "positive"), _scores(negative, "negative")).mean())


def auc_interval(positive: Scores, negative: Scores, confidence: float = 0.95) -> tuple[float, float]:
    """An interval for the area that holds over the draws of members and others, with about this confidence.

    Paper: DeLong et al. 1988, "Comparing the Areas under Two or More Correlated Receiver Operating Characteristic Curves". Its
    variance is carried over to log(A/(1 − A)). The interval is normal on that scale, so it stays within 0 and 1. This is
    asymptotic, and too short if one group has a handful of scores and the other has many. If that variance says nothing, the
    interval is exact for independent scores, and wide. With k = min(m, n):

    - At an area of 1 it is `share_interval(k, k)`, and at 0 `share_interval(0, k)`. All of k disjoint pairs were in order. The
      probability of this is at most A^k, and exactly that if scores of the smaller group are outliers with probability 1 − A.
    - If all scores are equal, or a group has only one, it is A ± √(log(2/(1 − confidence))/2k) by Hoeffding 1963, Sec. 5.
    """
    _check_confidence(confidence)
    up, down = _scores(positive, "positive"), _scores(negative, "negative")
    above, least = placements(up, down), min(len(up), len(down))
    area = float(above.mean())
    if area in (0.0, 1.0):
        return share_interval(int(area) * least, least, confidence)
    below = 1 - placements(down, up)
    variance = above.var(ddof=1) / len(up) + below.var(ddof=1) / len(down) if least > 1 else 0.0
    if variance == 0.0:
        reach = math.sqrt(math.log(2 / (1 - confidence)) / (2 * least))
        return max(0.0, area - reach), min(1.0, area + reach)
    reach = ndtri(0.5 + confidence / 2) * math.sqrt(variance) / (area * (1 - area))
    return float(expit(logit(area) - reach)), float(expit(logit(area) + reach))


def true_positive_rate(positive: Scores, negative: Scores, false_positive_rate: float = 0.01) -> float:
    """The largest share of members above a threshold that at most this share of others exceeds.

    Paper: Carlini et al. 2022, "Membership Inference Attacks From First Principles". An attack that is sure about a few members
    is a leak, and the area hides it. The curve is not interpolated: with fewer than 1/false_positive_rate others, none of them
    may be above. The threshold is chosen on the same scores, which slightly favours the attack.
    """
    if not 0 <= false_positive_rate <= 1:
        raise InputError(f"a false positive rate lies from 0 to 1, got {false_positive_rate!r}. Give 0.01 for 1 %.")
    up, down = _scores(positive, "positive"), np.sort(_scores(negative, "negative"))[::-1]
    allowed = math.floor(false_positive_rate * len(down) + 1e-9)  # 0.29 · 100 is below 29
    return float((up > down[allowed]).mean()) if allowed < len(down) else 1.0


def share_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """An interval for a probability, from `successes` in independent trials. It misses with 1 − confidence at most.

    Paper: Clopper & Pearson 1934. Each side misses with half of that probability at most, also if the other side is 0 or 1.
    """
    _check_confidence(confidence)
    if successes % 1 or trials % 1 or not 0 <= successes <= trials or trials < 1:
        raise InputError(
            f"successes are a whole number from 0 to that of the trials, of which there is one or more; got {successes!r} of "
            f"{trials!r}. Give counts, not shares."
        )
    miss, failures = (1 - confidence) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, miss)) if successes else 0.0
    high = 1 - float(betaincinv(failures, successes + 1, miss)) if failures else 1.0
    return low, high


def placements(scores: FloatArray, others: FloatArray) -> FloatArray:
    """For each score, the share of others below it, where equal ones count half: DeLong et al.'s structural components."""
    ordered = np.sort(others)
    below, up_to = (np.searchsorted(ordered, scores, side=side) for side in ("left", "right"))
    return np.asarray((below + up_to) / (2 * len(others)), np.float64)


def _scores(values: Scores, which: str) -> FloatArray:
    plain = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    scores = np.asarray(plain, np.float64)
    if scores.ndim != 1 or not scores.size or np.isnan(scores).any():
        raise InputError(
            f"the {which} scores are one number for each example, (n,), got shape {scores.shape} with "
            f"{int(np.isnan(scores).sum()):,} NaN. Flatten them, give one or more, and find where an attack broke down."
        )
    return scores


def _batches(guess: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float64 on the CPU, if they can be compared."""
    if guess.shape != truth.shape or guess.ndim < 1 or not guess.numel():
        raise InputError(
            f"a batch of guesses is compared with as many truths of the same shape, got {tuple(guess.shape)} and "
            f"{tuple(truth.shape)}. Reshape both to (n, ...), with one example or more."
        )
    for batch in (guess, truth):
        _refuse_non_finite(batch)
    return guess.detach().cpu().double(), truth.detach().cpu().double()


def _refuse_non_finite(batch: Tensor) -> None:
    if not bool(batch.isfinite().all()):
        raise InputError(
            f"got {int((~batch.isfinite()).sum()):,} values that are NaN or infinite, to which nothing is close. "
            "Find where the attack diverged (a smaller step?), or count this guess as a failure."
        )


def _labels(labels: Tensor) -> Tensor:
    if labels.ndim > 1 or not labels.numel() or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"labels are integers (n,), one or more, got {labels.dtype} of shape {tuple(labels.shape)}. "
            "Of logits or probabilities take the argmax."
        )
    return labels.detach().cpu().long().reshape(-1)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"a confidence lies between 0 and 1, got {confidence!r}. Give 0.95 for 95 %.")
