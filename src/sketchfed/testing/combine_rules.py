"""What every combine rule must do with vectors, weights and attackers."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from sketchfed.combining import CombineRule
from sketchfed.errors import InputError
from sketchfed.testing.suite import Suite, only

CLIENTS, SIZE = 15, 40

Corruption = Callable[[Tensor, int], Tensor]
"""Returns the vectors of attackers, from those of the honest clients and the number of attackers."""


def _rows(count: int = CLIENTS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, SIZE, generator=generator) + 3 * torch.randn(SIZE, generator=generator)


def _scaled(factor: float) -> Corruption:
    return lambda honest, count: factor * honest.mean(0) + torch.zeros(count, 1)


def _apart(honest: Tensor, count: int) -> Tensor:
    return torch.stack([(-1.0) ** i * 10.0 ** (3 * i + 3) * honest[i % len(honest)] for i in range(count)])


def _close(honest: Tensor, count: int) -> Tensor:
    return honest.mean(0) + 2 * (honest[0] - honest.mean(0)) + torch.zeros(count, 1)


ATTACKS: dict[str, Corruption] = {
    "-9 times": _scaled(-9.0),
    "-90 times": _scaled(-90.0),
    "1e15 times": _scaled(1e15),
    "1e35": lambda honest, count: torch.full((count, honest.shape[1]), 1e35),
    "each its own": _apart,
    "close together": _close,
    "zeros": lambda honest, count: torch.zeros(count, honest.shape[1]),
}


class CombineRuleConformance(Suite):
    """All demands on a combine rule. `rules` are instances of yours."""

    argument, attribute, kind, example = "rule", "rules", CombineRule, "[Mine(byzantine=0.2)]"
    rules: ClassVar[object]

    def tolerated(self, rule: CombineRule) -> float:
        """The share of attackers, by weight, that a rule is tried with. 0 if it tolerates none."""
        return 0.0 if rule.breakdown == "0" else float(getattr(rule, "byzantine", 0.4))

    def test_the_result_is_one_vector(self, rule: CombineRule) -> None:
        """`combine` returns `(size,)` of the type it was given, finite, and does not modify its input."""
        for dtype in (torch.float32, torch.float64):
            rows = _rows().to(dtype)
            before = rows.clone()
            found = rule.combine(rows)
            assert found.shape == (SIZE,)
            assert found.dtype == dtype
            assert torch.isfinite(found).all()
            assert torch.equal(rows, before)

    def test_equal_vectors_are_the_result(self, rule: CombineRule) -> None:
        """If all vectors are equal, or there is only one, the result is that vector."""
        for count in (1, 2, 3, CLIENTS):
            rows = _rows(1).expand(count, SIZE)
            torch.testing.assert_close(rule.combine(rows), rows[0])

    def test_the_order_of_vectors_does_not_matter(self, rule: CombineRule) -> None:
        """The order of the vectors does not matter, up to rounding, if each keeps its weight."""
        rows, weights = _rows(), torch.arange(CLIENTS) % 3 + 1.0
        order = torch.randperm(CLIENTS, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(rule.combine(rows[order]), rule.combine(rows), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(rule.combine(rows[order], weights[order]), rule.combine(rows, weights), rtol=1e-4, atol=1e-5)

    def test_the_result_moves_with_the_vectors(self, rule: CombineRule) -> None:
        """If a vector is added to all vectors, it is added to the result. If all are scaled, so is the result."""
        rows, shift = _rows().double(), 5 * _rows(1, seed=2)[0].double()
        found = rule.combine(rows)
        torch.testing.assert_close(rule.combine(rows + shift), found + shift, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(rule.combine(-0.01 * rows), -0.01 * found, rtol=1e-6, atol=1e-6)

    def test_only_ratios_of_weights_matter(self, rule: CombineRule) -> None:
        """Weights may be multiplied by any number. Without weights, all vectors have the same."""
        rows, weights = _rows(), torch.arange(CLIENTS) % 4 + 1.0
        torch.testing.assert_close(rule.combine(rows, 7 * weights), rule.combine(rows, weights))
        torch.testing.assert_close(rule.combine(rows, torch.full((CLIENTS,), 3.0)), rule.combine(rows))

    def test_results_are_the_same_bits_for_any_number_of_threads(self, rule: CombineRule) -> None:
        """The result has the same bits each time, for any number of threads."""
        rows, before, found = _rows().repeat(1, 500), torch.get_num_threads(), []
        try:
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                found.append(rule.combine(rows))
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(each, found[0]) for each in found)

    @pytest.mark.parametrize("attack", ATTACKS)
    @only(lambda suite, rule: suite.tolerated(rule) > 0)
    def test_tolerated_attackers_do_not_move_the_result_far(self, rule: CombineRule, attack: str) -> None:
        """As many attackers as `tolerated` says leave the result near the honest vectors, whatever they send.

        Near is ten times the diameter of the honest vectors. A rule that does not tolerate them is off by thousands of
        diameters in some of the attacks.
        """
        attackers = int(self.tolerated(rule) * CLIENTS + 1e-9)
        honest = _rows(CLIENTS - attackers)
        found = rule.combine(torch.cat([ATTACKS[attack](honest, attackers), honest]))
        assert (found - honest.mean(0)).norm() <= 10 * torch.cdist(honest, honest).max()

    @only(lambda suite, rule: suite.tolerated(rule) > 0)
    def test_attackers_are_counted_by_their_weight(self, rule: CombineRule) -> None:
        """Many packets of little weight do not outvote few packets of large weight."""
        honest, weight = _rows(5), 20.0
        attackers = int(self.tolerated(rule) * 5 * weight / (1 - self.tolerated(rule)) + 1e-9)
        rows = torch.cat([honest, torch.full((attackers, SIZE), 1e6) + _rows(attackers)])
        weights = torch.tensor([weight] * 5 + [1.0] * attackers)
        assert attackers > 5
        assert (rule.combine(rows, weights) - honest.mean(0)).norm() <= 10 * torch.cdist(honest, honest).max()

    def test_what_cannot_be_combined_is_refused(self, rule: CombineRule) -> None:
        """NaN, infinity, other shapes and types, and weights that are not positive are refused with the reason."""
        for wrong in (float("nan"), float("inf"), -float("inf")):
            rows = _rows()
            rows[3, 7] = wrong
            with pytest.raises(InputError, match=r"vector 3 .* NaN or infinity"):
                rule.combine(rows)
        for shape in ((0, SIZE), (3, 0), (SIZE,), (1, 2, 3)):
            with pytest.raises(InputError, match="shape"):
                rule.combine(torch.zeros(shape))
        with pytest.raises(InputError, match="int64"):
            rule.combine(torch.zeros(3, 4, dtype=torch.int64))
        for weights in (torch.zeros(CLIENTS), torch.ones(CLIENTS - 1), torch.full((CLIENTS,), float("nan"))):
            with pytest.raises(InputError, match="one positive weight for each"):
                rule.combine(_rows(), weights)

    @only(lambda suite, rule: suite.tolerated(rule) > 0)
    def test_a_majority_needs_three_packets(self, rule: CombineRule) -> None:
        """`check` accepts a round of many packets, and refuses one of fewer than three."""
        rule.check(1_000)
        for packets in (1, 2):
            with pytest.raises(InputError, match="compares the packets of a round"):
                rule.check(packets)
