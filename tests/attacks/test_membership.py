"""Members are found where nothing defends, by their losses and in updates, and not under much noise.

All draws come from fixed seeds, so a test that passes once does so always.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.stats
import torch
from observed import SEED, STEP, convolutional, dense, digits, observed
from torch import Tensor, nn
from torch.nn import functional

from sketchfed import PublicSeed
from sketchfed.attacks import Observation
from sketchfed.attacks.membership import by_alignment, by_loss, mislabelled
from sketchfed.attacks.scores import auc, auc_interval
from sketchfed.errors import InputError
from sketchfed.privacy.audit import audit, audited
from sketchfed.sketches import make_sketch
from sketchfed.training import LOSSES, Examples, LocalWork, Turn, make_trainer
from sketchfed.vectors import flatten

LOSS = LOSSES["cross_entropy"]
FITTED = LocalWork(rate=0.2, epochs=60, batch=16)
MEMBERS, CANDIDATES = 50, 200


@cache
def shuffled() -> Examples:
    """Digits come sorted by writer, which would tell members from others by itself."""
    x, y = digits(1_400)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(9))
    return Examples(x[order], y[order])


def part(start: int, stop: int) -> Examples:
    return Examples(shuffled().x[start:stop], shuffled().y[start:stop])


def trained(module: nn.Module, examples: Examples, work: LocalWork = FITTED) -> Tensor:
    return make_trainer(module, "cross_entropy").train(flatten(module), examples, work, Turn(SEED))


def area(scores: Tensor, members: int = MEMBERS) -> float:
    return auc(scores[:members], scores[members:])


# By losses ------------------------------------------------------------------------------------------------------------


def test_members_of_an_overfitted_model_have_low_losses():
    """60 wrong labels can only be learnt by heart. The areas of others, by chance, exceed 0.65 with odds below 1e-3."""
    module, candidates = dense(), mislabelled(part(0, 160), 10, PublicSeed(1))
    weights = trained(module, Examples(candidates.x[:60], candidates.y[:60]), LocalWork(rate=0.2, epochs=300, batch=16))
    assert area(by_loss(module, LOSS, weights, candidates), 60) >= 0.95
    assert area(by_loss(module, LOSS, flatten(module), candidates), 60) < 0.65


def test_a_reference_makes_up_for_examples_that_are_easy():
    module, candidates = dense(), part(0, 160)
    weights, other = trained(module, part(0, 60), LocalWork(rate=0.2, epochs=300, batch=16)), trained(module, part(200, 800))
    plain = by_loss(module, LOSS, weights, candidates)
    reference = -by_loss(module, LOSS, other, candidates)
    calibrated = by_loss(module, LOSS, weights, candidates, reference=reference)
    assert torch.allclose(calibrated, plain + reference)
    assert area(calibrated, 60) > area(plain, 60) > 0.7


def test_a_loss_is_that_of_one_example():
    """Also where it looks at values, and cannot be computed for many at once. The model is left in its mode."""

    def looking(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets) * (2.0 if float(outputs.max()) > 0 else 1.0)

    module = nn.Sequential(dense(), nn.Dropout(0.5)).train()
    candidates = part(0, 1_100)
    with torch.no_grad():
        expected = functional.cross_entropy(module[0](candidates.x), candidates.y, reduction="none")
        doubled = expected * (1 + (module[0](candidates.x).max(1).values > 0))
    assert torch.allclose(by_loss(module, LOSS, flatten(module), candidates), -expected, atol=1e-5)
    assert torch.allclose(by_loss(module, looking, flatten(module), candidates), -doubled, atol=1e-5)
    assert module.training


# In updates -----------------------------------------------------------------------------------------------------------


def mean_of(module: nn.Module, members: int, *, within: float = 1.0, work: LocalWork = STEP, seed: int = 3) -> Observation:
    dim, (x, y) = len(flatten(module)), part(0, members)
    known = None if within == 1 else make_sketch("srht", dim=dim, size=round(within * dim), seed=PublicSeed(seed))
    return observed(module, x, y, known=known, work=work)


def noisy(observation: Observation, ratio: float, seed: int = 1) -> Observation:
    """With noise so many times as long as what was seen."""
    values, generator = observation.values, torch.Generator().manual_seed(seed)
    normal = torch.randn(values.shape, generator=generator)
    return replace(observation, values=values + ratio * values.norm() / len(values) ** 0.5 * normal)


@pytest.mark.parametrize("model", [dense, convolutional])
@pytest.mark.parametrize("within", [1.0, 0.1])
def test_the_mean_of_a_round_shows_who_was_in_it(model, within):
    """50 members and 150 others, also where a sketch of 241 or 195 numbers was sent; cosines hardly see them."""
    module = model()
    seen = mean_of(module, MEMBERS, within=within)
    assert area(by_alignment([seen], part(0, CANDIDATES))) >= 0.9
    alone = torch.stack([seen.seen(x[None], y[None]).detach() for x, y in zip(*part(0, CANDIDATES), strict=True)])
    assert area(functional.cosine_similarity(alone, seen.values[None])) < 0.7


def test_members_that_are_no_candidates_do_not_hide_those_that_are():
    """Of 50 members the last ten are asked about, beside 200 others."""
    module = dense()
    assert area(by_alignment([mean_of(module, 50)], part(40, 250)), 10) >= 0.8


def test_several_local_steps_leave_much_of_it():
    assert area(by_alignment([mean_of(dense(), 16, work=LocalWork(rate=0.1, steps=5))], part(0, 120)), 16) >= 0.9


def rounds(module: nn.Module, count: int, ratio: float) -> list[Observation]:
    """What was seen of the same members round after round, each through a sketch of its own, while the model learns."""
    trainer, weights, found, members = make_trainer(module, "cross_entropy"), flatten(module), [], part(0, MEMBERS)
    for index in range(count):
        seen = replace(mean_of(module, MEMBERS, within=0.1, seed=index), weights=weights)
        found.append(noisy(replace(seen, values=seen.seen(*members).detach()), ratio, index))
        weights = trainer.train(weights, members, STEP, Turn(SEED))
    return found


def test_rounds_add_up():
    """Under noise as long as the mean, ten rounds tell more than one does."""
    seen, candidates = rounds(dense(), 10, 1.0), part(0, CANDIDATES)
    together = area(by_alignment(seen, candidates))
    single = [area(by_alignment([each], candidates)) for each in seen]
    assert together >= 0.75
    assert together > max(single)
    mean = sum(by_alignment([each], candidates) for each in seen) / 10
    assert torch.allclose(by_alignment(seen, candidates), mean, rtol=1e-6)


def test_noise_a_hundred_times_as_long_as_the_mean_leaves_nothing():
    """An interval of 99.9 % for the area contains ½."""
    scores = by_alignment([noisy(mean_of(dense(), MEMBERS), 100)], part(0, CANDIDATES))
    low, high = auc_interval(scores[:MEMBERS], scores[MEMBERS:], confidence=0.999)
    assert low < 0.5 < high


def test_scale_does_not_matter():
    """What was clipped, or is a sum and no mean, has the same direction."""
    seen, candidates = noisy(mean_of(dense(), MEMBERS, within=0.1), 0.3), part(0, CANDIDATES)
    orders = [by_alignment([replace(seen, values=scale * seen.values)], candidates).argsort() for scale in (1.0, 0.01)]
    assert torch.equal(*orders)


def test_candidates_are_simulated_once_for_all_that_see_them_alike(monkeypatch):
    seen, calls, told = mean_of(dense(), 5), [], []
    from sketchfed.attacks import membership

    simulate = membership.each_seen
    monkeypatch.setattr(membership, "each_seen", lambda *given: calls.append(1) or simulate(*given))
    others = [replace(seen, values=2 * seen.values, seed=PublicSeed(4)), replace(seen, weights=seen.weights + 1)]
    by_alignment([seen, *others], part(0, 20), on_step=lambda: told.append(1))
    assert (len(calls), len(told)) == (2, 3)


def test_where_clients_are_seen_one_by_one_the_largest_shows_who_was_among_them():
    module, used, others = dense(), part(0, 20), part(300, 380)
    sent = [observed(module, x[None], y[None]) for each in (used, others) for x, y in zip(*each, strict=True)]
    assert area(by_alignment(sent, part(0, 100), largest=True), 20) > 0.95


@pytest.mark.parametrize("largest", [False, True])
def test_a_candidate_is_looked_for_only_where_it_can_be(largest):
    module, used = dense(), part(0, 10)
    sent = [observed(module, x[None], y[None]) for x, y in zip(*used, strict=True)]
    possible = [torch.arange(20) == place for place in range(10)]
    scores = by_alignment(sent, part(0, 20), possible=possible, largest=largest)
    assert bool((scores[:10] > 0).all())
    assert not bool(scores[10:].any())


def test_where_there_is_nothing_to_tell_apart_all_scores_are_zero():
    seen, (x, y) = mean_of(dense(), 5), part(0, 1)
    same = Examples(x.expand(4, -1, -1, -1), y.expand(4))
    assert by_alignment([seen], same).tolist() == [0.0] * 4
    assert by_alignment([replace(seen, values=torch.zeros_like(seen.values))], part(0, 4)).tolist() == [0.0] * 4


# Canaries -------------------------------------------------------------------------------------------------------------


def test_wrong_labels_are_uniform_among_the_others():
    """χ² over the nine distances from the true label: odds of failure 1e-6 for another seed."""
    examples = Examples(torch.zeros(9_000, 1), torch.arange(9_000) % 10)
    found = mislabelled(examples, 10, PublicSeed(5))
    further = (found.y - examples.y) % 10
    assert (further > 0).all()
    assert scipy.stats.chisquare(np.bincount(further.numpy(), minlength=10)[1:]).pvalue > 1e-6
    assert torch.equal(found.x, examples.x)
    assert torch.equal(found.y, mislabelled(examples, 10, PublicSeed(5)).y)
    assert not torch.equal(found.y, mislabelled(examples, 10, PublicSeed(6)).y)
    assert mislabelled(Examples(torch.zeros(2, 1), torch.tensor([0, 1])), 2, SEED).y.tolist() == [1, 0]


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 1.0, 64.0), (1_000.0, 0.0, 0.0)])
def test_canaries_bound_epsilon_from_below(noise, low, high):
    """Training by heart is not private. Where noise drowns the weights a bound above 0 has odds of at most 5 % a seed."""
    module, canaries = dense(), mislabelled(part(0, 200), 10, PublicSeed(2))

    def run(included: np.ndarray) -> Tensor:
        chosen, (x, y) = torch.from_numpy(included), part(400, 800)
        weights = trained(module, Examples(torch.cat([x, canaries.x[chosen]]), torch.cat([y, canaries.y[chosen]])))
        normal = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2))
        return by_loss(module, LOSS, weights + noise * weights.std() * normal, canaries)

    found = audit(run, canaries=200, delta=1e-5, guesses=80, seed=PublicSeed(3))
    assert low <= found.lower <= high, found
    included = PublicSeed(3).child("audit").words(200) >> np.uint32(31) == 1
    assert audited(run(included), torch.from_numpy(included), delta=1e-5, guesses=80) == found


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "classes", "said"),
    [
        (torch.tensor([0, 3]), 3, "from 0 to 2"),
        (torch.tensor([0, -1]), 3, "from 0 to 2"),
        (torch.tensor([0.0, 1.0]), 3, "integers"),
        (torch.tensor([0, 0]), 1, "2 classes"),
        (torch.tensor([[0, 1]] * 2), 3, "integers"),
        (torch.tensor([0]), 3, "a target each"),
    ],
)
def test_labels_that_cannot_be_flipped_are_refused(y, classes, said):
    with pytest.raises(InputError, match=said):
        mislabelled(Examples(torch.zeros(2, 1), y), classes, SEED)


def test_what_cannot_be_scored_is_refused():
    module, candidates = dense(), part(0, 5)
    seen = mean_of(module, 5)
    for arguments, said in (
        (([], candidates), "no observation"),
        (([seen], part(0, 1)), "compared with each other"),
        (([replace(seen, values=torch.zeros(7))], candidates), "7 numbers"),
        (([seen], Examples(torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64))), r"shape \(5,\)"),
    ):
        with pytest.raises(InputError, match=said):
            by_alignment(*arguments)
    with pytest.raises(InputError, match="parameters"):
        by_loss(module, LOSS, torch.zeros(3), candidates)
    for reference in (torch.zeros(3), torch.full((5,), float("inf"))):
        with pytest.raises(InputError, match="reference"):
            by_loss(module, LOSS, flatten(module), candidates, reference=reference)


def test_inclusions_must_be_true_or_false():
    for wrong in (np.zeros(5), np.zeros((5, 1), bool), np.zeros(0, bool)):
        with pytest.raises(InputError, match="inclusions"):
            audited(np.zeros(5), wrong, delta=0.0)
    with pytest.raises(InputError, match="scores"):
        audited(np.zeros(4), np.zeros(5, bool), delta=0.0)
