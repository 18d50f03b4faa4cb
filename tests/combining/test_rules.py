"""Each rule is what its paper says: compared with the formulas written out, and with what sketches do to it."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sketchfed import PublicSeed
from sketchfed.combining import COMBINE_RULES, CenteredClipping, GeometricMedian, Krum, Mean, Median, TrimmedMean
from sketchfed.errors import InputError
from sketchfed.sketches import make_sketch

UNTRIMMED = [Mean(), TrimmedMean(byzantine=0.0), Krum(byzantine=0.0, best=1.0), CenteredClipping(radius=math.inf)]


def rows_of(count=11, size=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) + 1


@pytest.mark.parametrize("rule", UNTRIMMED, ids=lambda rule: rule.name)
def test_a_rule_that_removes_nobody_is_the_mean(rule):
    rows, weights = rows_of(), torch.arange(11) % 3 + 1.0
    torch.testing.assert_close(rule.combine(rows), rows.mean(0))
    torch.testing.assert_close(rule.combine(rows, weights), (weights.double() @ rows) / weights.sum())


@pytest.mark.parametrize(("share", "count"), [(0.2, 10), (0.1, 20), (0.4, 5), (0.25, 8)])
def test_a_trimmed_mean_leaves_out_a_share_at_each_end(share, count):
    rows = rows_of(count)
    expected = stats.trim_mean(rows.numpy(), share, axis=0)
    torch.testing.assert_close(TrimmedMean(byzantine=share).combine(rows), torch.from_numpy(expected))


def test_a_trimmed_mean_cuts_clients_at_the_edge_in_part():
    """0.3 of 5 clients are one and a half: of 0, 1, 2, 4 and 7, the 2 counts whole, the 1 and the 4 half."""
    rows = torch.tensor([[4.0], [0.0], [1.0], [7.0], [2.0]])
    assert float(TrimmedMean(byzantine=0.3).combine(rows)) == pytest.approx((0.5 * 1 + 2 + 0.5 * 4) / 2)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_a_median_is_that_of_each_coordinate(count):
    rows = rows_of(count)
    torch.testing.assert_close(Median().combine(rows), torch.from_numpy(np.median(rows.numpy(), axis=0)))


@pytest.mark.parametrize("rule", [TrimmedMean(), Median(), GeometricMedian(), CenteredClipping()], ids=lambda rule: rule.name)
def test_a_weight_counts_as_that_many_equal_clients(rule):
    rows, weights = rows_of(), torch.arange(11) % 3 + 1
    repeated = rows.repeat_interleave(weights, 0)
    torch.testing.assert_close(rule.combine(rows, weights.double()), rule.combine(repeated), rtol=1e-5, atol=1e-5)


def test_a_geometric_median_balances_directions():
    """Weighted unit vectors towards all vectors cancel there. Away from it the sum of distances is larger."""
    rows, weights = rows_of(), torch.arange(11) % 3 + 1.0
    found = GeometricMedian().combine(rows, weights)
    away = rows - found
    pull = (weights.double()[:, None] * away / away.norm(dim=1, keepdim=True)).sum(0)
    assert pull.norm() < 1e-4 * weights.sum()
    total = weights.double() @ away.norm(dim=1)
    for seed in range(5):
        other = found + 0.1 * rows_of(1, seed=seed)[0]
        assert weights.double() @ (rows - other).norm(dim=1) > total


def test_a_geometric_median_of_three_points_is_their_fermat_point():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    torch.testing.assert_close(GeometricMedian().combine(rows), torch.tensor([0.5, math.sqrt(3) / 6]), rtol=1e-4, atol=1e-5)


def test_a_geometric_median_where_most_clients_agree_is_where_they_are():
    rows = torch.cat([torch.ones(6, 4), 1e6 * torch.ones(5, 4)])
    torch.testing.assert_close(GeometricMedian().combine(rows), torch.ones(4), rtol=1e-5, atol=1e-5)


def test_centered_clipping_ends_where_clipped_differences_cancel():
    rule, rows = CenteredClipping(), rows_of().clone()
    rows[:3] += 50
    found = rule.combine(rows)
    away = rows - found
    lengths = away.norm(dim=1, keepdim=True)

    def pull(radius):
        return float((away * (radius / lengths).clamp(max=1.0)).mean(0).norm())

    spread = float(lengths[3:].median())
    radii = torch.linspace(0.5 * spread, 2 * spread, 4_000).tolist()
    assert min(map(pull, radii)) < 1e-2 * spread, "for some radius near the median distance"
    assert (found - rows[3:].mean(0)).norm() < spread


def naive_scores(rows, attackers):
    """Blanchard et al. 2017, Sec. 4, with loops."""
    count, scores = len(rows), []
    for i in range(count):
        distances = sorted(float((rows[i] - rows[j]).square().sum()) for j in range(count) if j != i)
        scores.append(sum(distances[: count - attackers - 2]))
    return scores


@pytest.mark.parametrize(("count", "attackers"), [(10, 2), (20, 4), (10, 0), (15, 6)])
def test_krum_is_the_vector_with_the_lowest_score_and_multi_krum_the_mean_of_several(count, attackers):
    rows = rows_of(count)
    scores = naive_scores(rows, attackers)
    order = sorted(range(count), key=scores.__getitem__)
    share = attackers / count
    assert torch.equal(Krum(byzantine=share).combine(rows), rows[order[0]])
    torch.testing.assert_close(Krum(byzantine=share, best=0.4).combine(rows), rows[order[: int(0.4 * count)]].mean(0))


@pytest.mark.parametrize(
    ("rule", "options", "said"),
    [
        (TrimmedMean, {"byzantine": 0.5}, "No rule works against a majority"),
        (TrimmedMean, {"byzantine": -0.1}, "from 0 to below 0.5"),
        (Krum, {"byzantine": math.nan}, "from 0 to below 0.5"),
        (Krum, {"best": 1.5}, "combine.best"),
        (GeometricMedian, {"iterations": 0}, "combine.iterations"),
        (GeometricMedian, {"smoothing": 0.0}, "combine.smoothing"),
        (CenteredClipping, {"radius": 0.0}, "combine.radius"),
        (CenteredClipping, {"iterations": 0}, "combine.iterations"),
    ],
)
def test_options_that_cannot_work_are_refused(rule, options, said):
    with pytest.raises(InputError, match=said):
        rule(**options)


@pytest.mark.parametrize(
    ("rule", "packets", "said"),
    [
        (TrimmedMean(byzantine=0.2), 4, "Use 0.25 or more"),
        (Krum(byzantine=0.4), 10, "Use byzantine below 0.4"),
        (Krum(byzantine=0.2), 3, "n > 2f"),
    ],
)
def test_rounds_that_are_too_small_for_a_rule_are_refused(rule, packets, said):
    with pytest.raises(InputError, match=said):
        rule.check(packets)
    rule.check(30)


def test_large_rounds_do_not_take_more_memory_than_the_vectors(monkeypatch):
    """Coordinates are sorted in pieces, whose number does not change the result."""
    from sketchfed.combining import coordinates

    rows = rows_of(9, 1_000)
    whole = {name: kind().combine(rows) for name, kind in COMBINE_RULES.items()}
    monkeypatch.setattr(coordinates, "_NUMBERS", 64)
    assert all(torch.equal(kind().combine(rows), whole[name]) for name, kind in COMBINE_RULES.items())


# What sketches do to rules

CLIENTS, DIM, SIZE = 10, 4_096, 1_000


def test_what_krum_chooses_in_a_sketch_is_nearly_as_good_outside_of_it():
    """A sketch preserves the 45 distances up to 1 ± ε, so the chosen score is at most (1 + ε)/(1 − ε) times the lowest.

    For a normal sketch each squared distance is χ² with SIZE degrees: beyond ε = 0.35 with probability below
    2·exp(−SIZE·(ε²/4 − ε³/6)). The union over 45 pairs and 5 sketches makes a false alarm below 3e-8.
    """
    generator = torch.Generator().manual_seed(0)
    rows, error = torch.randn(CLIENTS, DIM, generator=generator) * torch.linspace(0.5, 2, CLIENTS)[:, None], 0.35
    scores = naive_scores(rows, 2)
    for seed in range(5):
        seen = make_sketch("gaussian", dim=DIM, size=SIZE, seed=PublicSeed(seed)).apply(rows)
        chosen = Krum(byzantine=0.2).combine(seen)
        index = int((seen - chosen).square().sum(1).argmin())
        assert scores[index] <= (1 + error) / (1 - error) * min(scores)


def test_a_geometric_median_of_sketches_is_nearly_a_median_outside():
    """The sum of distances to the same mixture of unsketched vectors is at most (1 + ε)/(1 − ε) times the smallest.

    On the affine span of the vectors, CLIENTS − 1 dimensions, the singular values of a normal sketch are within 1 ± ε for
    ε = (√9 + t)/√SIZE, except with probability 2·exp(−t²/2) (Davidson & Szarek 2001). t = 6.2 makes it 1e-8.
    """
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(CLIENTS, DIM, generator=generator).double()
    rows[:3] *= 10
    best = float((rows - GeometricMedian().combine(rows)).norm(dim=1).sum())
    error = (3 + 6.2) / math.sqrt(SIZE)
    seen = make_sketch("gaussian", dim=DIM, size=SIZE, seed=PublicSeed(3)).apply(rows)
    found = GeometricMedian().combine(seen)
    mixed = torch.linalg.lstsq(seen.T, found[:, None]).solution[:, 0]
    assert float(mixed.sum()) == pytest.approx(1.0, abs=1e-6)
    assert float((rows - mixed @ rows).norm(dim=1).sum()) <= (1 + error) / (1 - error) * best


def test_rules_of_distances_do_not_notice_a_rotation_and_rules_of_coordinates_do():
    """A square srht is a rotation. Rules that see distances commute with it up to rounding."""
    rows, rotation = rows_of(CLIENTS, 1_024), make_sketch("srht", dim=1_024, size=1_024, seed=PublicSeed(5))
    rows[:2] *= -9
    differs = {}
    for name, kind in COMBINE_RULES.items():
        direct, rotated = kind().combine(rows), rotation.adjoint(kind().combine(rotation.apply(rows)))
        differs[name] = float((direct - rotated).norm() / direct.norm())
    assert all(differs[name] < 1e-6 for name in ("mean", "geometric_median", "krum", "centered_clipping"))
    assert all(differs[name] > 1e-2 for name in ("trimmed_mean", "median"))


def test_a_median_of_mixed_coordinates_is_closer_to_the_mean_where_coordinates_are_skewed():
    """3 of 10 clients move a coordinate: its median is 0, its mean 0.3. Mixed coordinates are nearly normal, with equal ends.

    The median of 21 normal values differs from their mean with variance (π/2 − 1)·0.21/21 of each of 1,024 coordinates, so
    their distance is 0.25 of the mean's norm. It is concentrated within 5 %: 0.5 is more than ten deviations away.
    """
    draws = torch.rand(21, 1_024, generator=torch.Generator().manual_seed(2))
    rows = (draws < 0.3).float()
    rotation, mean = make_sketch("srht", dim=1_024, size=1_024, seed=PublicSeed(6)), rows.mean(0)
    direct = (Median().combine(rows) - mean).norm() / mean.norm()
    mixed = (rotation.adjoint(Median().combine(rotation.apply(rows))) - mean).norm() / mean.norm()
    assert direct > 0.8
    assert mixed < 0.5
