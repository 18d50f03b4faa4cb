"""Attackers do what their papers say, and nothing else passes through their engine changed."""

import pytest
import torch

from sketchfed.algorithms import FedAvg, Iterative, SketchSettings
from sketchfed.testing import advanced, data_of, federation, weights_of
from sketchfed.training import Examples
from sketchfed.wire import unpack
from sketchfed_lab.faults.byzantine import ATTACKS, TARGET, AttackedEngine, Attackers, triggered

OWN, HONEST = torch.randn(2, 500), torch.randn(8, 500) + 1


def sent(name, own=OWN, honest=HONEST):
    return ATTACKS[name].sent(own, honest, attackers=len(own), generator=torch.Generator().manual_seed(0))


def test_scaled_updates_are_multiples():
    for name, factor in (("none", 1), ("sign flip", -1), ("-9 times", -9), ("-90 times", -90), ("backdoor", 5)):
        torch.testing.assert_close(sent(name), factor * OWN)


def test_noise_is_ten_times_as_long_as_an_honest_update():
    """The norm of 500 normal numbers is within 20 % of its mean, false alarm below 1e-6."""
    length = sent("noise").norm(dim=1) / HONEST.norm(dim=1).mean()
    assert ((length > 8) & (length < 12)).all()


def test_alie_stays_within_the_honest_values_of_a_coordinate():
    """With 24 of 50 attackers, 2 more make a majority, so z = Φ⁻¹(24/26) (Baruch et al. 2019, Alg. 3)."""
    honest = torch.randn(26, 200)
    found = sent("alie", torch.zeros(24, 200), honest)
    assert torch.equal(found[0], found[-1])
    away = (honest.mean(0) - found[0]) / honest.std(0, correction=0)
    torch.testing.assert_close(away, torch.full((200,), 1.4260769), rtol=1e-3, atol=1e-3)


def test_ipm_points_against_the_honest_mean():
    torch.testing.assert_close(sent("ipm")[0], -0.5 * HONEST.mean(0))


def test_labels_are_flipped_and_triggers_are_bright_squares():
    data = Examples(torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 5, 9]))
    assert ATTACKS["label flip"].examples(data, 10).y.tolist() == [9, 8, 4, 0]
    data.x[:, 0, 0, 0] = 1.0
    poisoned = ATTACKS["backdoor"].examples(data, 10)
    assert poisoned.y.tolist() == [TARGET, 1, TARGET, 9]
    assert (poisoned.x.sum((1, 2, 3)) == torch.tensor([10.0, 1.0, 10.0, 1.0])).all()
    assert data.x.sum() == 4, "the attacker's own examples stay as they are"
    flat = triggered(data.x.reshape(4, 784))
    assert torch.equal(flat.reshape(4, 1, 28, 28), triggered(data.x))


@pytest.mark.parametrize("algorithm", [FedAvg(), Iterative(sketch=SketchSettings(size=6))], ids=["dense", "sketched"])
def test_an_engine_changes_what_attackers_send_and_nothing_else(algorithm):
    honest = advanced(federation(algorithm, data_of(6)), 1)
    server = federation(algorithm, data_of(6))
    server.engine.inner = AttackedEngine(server.engine.inner, Attackers(ATTACKS["-9 times"], {1, 4}, 0))
    server.advance()
    for client, reply in server.engine.replies[0].items():
        before, after = (unpack(each).arrays["values"] for each in (honest.engine.replies[0][client], reply))
        torch.testing.assert_close(after, -9 * before if client in (1, 4) else before)
    assert not torch.equal(weights_of(server), weights_of(honest))
    assert server.tally.replies == 6
