"""How close guesses came: every score against its definition written out, intervals by simulation.

Simulations have a chance of 1e-6 for each figure to fail without reason, by the binomial distribution; seeds are fixed.
"""

import math
from itertools import permutations, product

import pytest
import torch

from sketchfed.attacks.scores import (
    MOST_DECIBELS,
    label_accuracy,
    matched,
    mse,
    psnr,
    recognised,
    ssim,
)
from sketchfed.errors import InputError

SHAPES = [(1, 28, 28), (3, 16, 13), (2, 11, 11), (1, 8, 8), (1, 20, 6), (3, 3, 4), (1, 2, 2), (2, 1, 7)]


every_image_score = pytest.mark.parametrize("score", [mse, psnr, ssim, matched])


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noisy(truth: torch.Tensor, *, seed: int = 2) -> torch.Tensor:
    return (0.7 * truth + 0.3 * images(*truth.shape, seed=seed)).clamp(0, 1)


# Images.


def test_the_mean_square_error_is_one_number_an_example():
    truth = images(3, 2, 4, 5)
    guess = noisy(truth)
    flat = torch.stack([guess.reshape(3, 40), truth.reshape(3, 40)], 1)
    expected = [sum((g - t) ** 2 for g, t in zip(*pair, strict=True)) / 40 for pair in flat]
    torch.testing.assert_close(mse(guess, truth), torch.stack(expected))
    torch.testing.assert_close(mse(flat[:, 0], flat[:, 1]), torch.stack(expected))


def test_bytes_and_halves_are_compared_without_overflow():
    truth = torch.tensor([[0, 255], [255, 255]], dtype=torch.uint8)
    assert mse(255 - truth, truth).tolist() == [255**2, 255**2]
    assert mse(torch.full((1, 9), 300.0, dtype=torch.float16), torch.zeros(1, 9, dtype=torch.float16)).tolist() == [9e4]


def test_the_signal_to_noise_ratio_is_in_decibels_of_the_peak():
    truth = torch.zeros(3, 1, 2, 2)
    guess = truth + torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64).reshape(3, 1, 1, 1)
    torch.testing.assert_close(psnr(guess, truth), torch.tensor([0.0, 20.0, 40.0], dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(psnr(255 * guess, truth, peak=255), psnr(guess, truth))


def test_a_perfect_guess_has_a_hundred_decibels_and_so_has_any_better_than_that():
    truth = images(2, 1, 4, 4)
    guess = truth + torch.tensor([0.0, 1e-7]).reshape(2, 1, 1, 1)
    assert psnr(guess, truth).tolist() == [MOST_DECIBELS, MOST_DECIBELS] == [100, 100]
    assert psnr(truth + 2e-5, truth).max() < MOST_DECIBELS


def written_out_similarity(guess: torch.Tensor, truth: torch.Tensor) -> float:
    """Wang et al. 2004, Eqs. 13 to 17, one window after the other."""
    channels, height, width = truth.shape
    side = max(odd for odd in range(1, 12, 2) if odd <= min(height, width))
    reach = side // 2
    window = torch.tensor(
        [[math.exp(-(i**2 + j**2) / (2 * 1.5**2)) for j in range(-reach, reach + 1)] for i in range(-reach, reach + 1)],
        dtype=torch.float64,
    )
    window /= window.sum()
    found = []
    for c, top, left in product(range(channels), range(height - side + 1), range(width - side + 1)):
        x, y = (image[c, top : top + side, left : left + side] for image in (guess, truth))
        mean_x, mean_y = (window * x).sum(), (window * y).sum()
        var_x, var_y = (window * (x - mean_x) ** 2).sum(), (window * (y - mean_y) ** 2).sum()
        covariance = (window * (x - mean_x) * (y - mean_y)).sum()
        above = (2 * mean_x * mean_y + 0.01**2) * (2 * covariance + 0.03**2)
        found.append(above / ((mean_x**2 + mean_y**2 + 0.01**2) * (var_x + var_y + 0.03**2)))
    return float(torch.stack(found).mean())


@pytest.mark.parametrize("shape", SHAPES)
def test_structural_similarity_is_its_formula_for_images_of_every_size(shape):
    truth = images(3, *shape)
    guess = torch.stack([noisy(truth[0]), 1 - truth[1], images(*shape, seed=7)])
    expected = [written_out_similarity(g, t) for g, t in zip(guess, truth, strict=True)]
    assert ssim(guess, truth).tolist() == pytest.approx(expected, abs=1e-12)


def test_structural_similarity_is_one_for_equal_images_and_symmetric_and_never_larger():
    truth, guess = images(4, 3, 12, 12), images(4, 3, 12, 12, seed=3)
    torch.testing.assert_close(ssim(truth, truth), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(ssim(truth, guess), ssim(guess, truth))
    assert ssim(guess, truth).abs().max() < 1
    assert ssim(1 - truth, truth).max() < 0


def test_flat_images_are_similar_if_they_are_equally_bright():
    flat = torch.full((1, 1, 16, 16), 0.3)
    assert float(ssim(flat, flat)) == pytest.approx(1)
    assert float(ssim(flat + 0.4, flat)) == pytest.approx((2 * 0.7 * 0.3 + 1e-4) / (0.7**2 + 0.3**2 + 1e-4))


def test_a_wild_guess_is_not_similar():
    """Rounding errors of 1e8 squared are as large as any variance of the truth."""
    truth = images(3, 1, 16, 16)
    assert ssim(torch.full_like(truth, 1e8), truth).abs().max() < 1e-6
    assert ssim(1e8 * truth.flip(-1), truth).abs().max() < 1e-6


def test_structural_similarity_needs_channels():
    with pytest.raises(InputError, match=r"\(n, channels, height, width\), got shape \(2, 16, 16\)"):
        ssim(images(2, 16, 16), images(2, 16, 16))


def test_a_shuffled_batch_is_put_in_order():
    truth, shuffle = images(9, 3, 4, 4), torch.randperm(9, generator=torch.Generator().manual_seed(1))
    order = matched(noisy(truth)[shuffle], truth)
    assert torch.equal(shuffle[order], torch.arange(9))


@pytest.mark.parametrize("seed", range(5))
def test_no_other_order_is_closer(seed):
    """Guesses that have nothing to do with the truths, so that the nearest truth of many guesses is the same."""
    guess, truth = images(6, 2, seed=seed), 0.3 * images(6, 2, seed=100 + seed)
    least = min(float((guess[list(order)] - truth).square().sum()) for order in permutations(range(6)))
    order = matched(guess, truth)
    assert sorted(order.tolist()) == list(range(6))
    assert float((guess[order] - truth).square().sum()) == pytest.approx(least, rel=1e-12)


def test_examples_that_hardly_differ_are_told_apart():
    """Differences of 1e-9 beside values of 1: their squares would be lost in ‖x‖² + ‖y‖² − 2⟨x, y⟩."""
    truth = 1 + 1e-9 * torch.arange(5, dtype=torch.float64)[:, None] * torch.ones(40, dtype=torch.float64)
    assert matched(truth.flip(0), truth).tolist() == [4, 3, 2, 1, 0]


@every_image_score
def test_guesses_with_gradients_are_scored_like_others(score):
    truth = images(2, 1, 12, 12)
    torch.testing.assert_close(score(noisy(truth).requires_grad_(), truth), score(noisy(truth), truth))


@every_image_score
def test_images_that_cannot_be_compared_are_refused(score):
    truth = images(2, 1, 12, 12)
    with pytest.raises(InputError, match=r"same shape, got \(1, 1, 12, 12\) and \(2, 1, 12, 12\)"):
        score(truth[:1], truth)
    for empty in (truth[:0], truth[..., :0]):
        with pytest.raises(InputError, match=r"one example or more"):
            score(empty, empty)
    with pytest.raises(InputError, match=r"got \(\) and \(\)"):
        score(torch.tensor(1.0), torch.tensor(1.0))
    for bad in (math.nan, math.inf):
        spoilt = truth.clone()
        spoilt[1, 0, 3, 4] = bad
        for pair in ((spoilt, truth), (truth, spoilt)):
            with pytest.raises(InputError, match=r"got 1 values that are NaN or infinite"):
                score(*pair)


@pytest.mark.parametrize("peak", [0.0, -1.0, math.nan, math.inf])
def test_a_peak_is_positive(peak):
    with pytest.raises(InputError, match=r"the peak is the range"):
        psnr(images(1, 4), images(1, 4), peak=peak)


# Labels.


def labels(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_labels_of_a_batch_count_whatever_their_order():
    assert label_accuracy(labels(3, 1, 2, 1), labels(1, 1, 2, 3)) == 1
    assert label_accuracy(labels(1, 1, 1, 1), labels(1, 1, 2, 3)) == 0.5
    assert label_accuracy(labels(1, 2, 3, 3), labels(1, 1, 1, 1)) == 0.25
    assert label_accuracy(labels(4, 5), labels(6, 7)) == 0


def test_single_labels_are_equal_or_not():
    for shape in [(), (1,)]:
        same, other = torch.full(shape, 3), torch.full(shape, 4)
        assert label_accuracy(same, same) == 1
        assert label_accuracy(other, same) == 0


def test_labels_that_are_none_are_refused():
    with pytest.raises(InputError, match=r"got 1 guesses of 2 labels"):
        label_accuracy(labels(1), labels(1, 2))
    with pytest.raises(InputError, match=r"got torch.float32 of shape \(2,\).*argmax"):
        label_accuracy(torch.tensor([0.2, 0.8]), labels(1, 2))
    with pytest.raises(InputError, match=r"of shape \(1, 2\)"):
        label_accuracy(labels(1, 2)[None], labels(1, 2))
    with pytest.raises(InputError, match=r"one or more"):
        label_accuracy(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))


def test_what_a_classifier_recognises_is_counted():
    """Each image is bright in the channel that is its class."""
    guess = torch.eye(4).reshape(4, 4, 1, 1).expand(4, 4, 5, 5).clone().requires_grad_()
    asked = []

    def brightest(batch: torch.Tensor) -> torch.Tensor:
        asked.append(torch.is_grad_enabled())
        return batch.mean((2, 3))

    assert recognised(brightest, guess, labels(0, 1, 2, 3)) == 1
    assert recognised(brightest, guess, labels(0, 1, 3, 2)) == 0.5
    assert recognised(brightest, guess, labels(1, 2, 3, 0)) == 0
    assert not any(asked)


def test_classifiers_and_labels_that_do_not_fit_are_refused():
    guess = images(3, 4)
    with pytest.raises(InputError, match=r"shape \(3, 4\) and 2 labels"):
        recognised(lambda batch: batch, guess, labels(0, 1))
    for wrong in (lambda batch: batch.argmax(1), lambda batch: batch[:1], lambda batch: batch * math.nan):
        with pytest.raises(InputError, match=r"logits of shape \(3, classes\)"):
            recognised(wrong, guess, labels(0, 1, 2))
    for beyond in (-1, 4):
        with pytest.raises(InputError, match=rf"labels from 0 to 3, got labels from .*{beyond}"):
            recognised(lambda batch: batch, guess, labels(0, 1, beyond))
    with pytest.raises(InputError, match=r"12 values that are NaN"):
        recognised(lambda batch: batch, guess * math.nan, labels(0, 1, 2))
