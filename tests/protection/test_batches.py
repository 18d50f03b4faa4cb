"""Gradients of single examples, hidden batches, and local steps with noise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from problems import SEED, dense_model, examples
from sketchfed.errors import InputError
from sketchfed.protection.batches import hidden_batches, passed_batch, passed_batches, poisson_batch, private_descent
from sketchfed.seeds import SecretSeed
from sketchfed.training import AutogradTrainer, Examples, LocalWork, PerceptronTrainer, Turn
from sketchfed.training.losses import loss_named
from sketchfed.vectors import flatten

FALSE_ALARM = 1e-6


def trainers(loss):
    module = dense_model("mlp", hidden=[5])
    return [PerceptronTrainer(module, loss_named(loss)), AutogradTrainer(module, loss_named(loss))], flatten(module)


def one_by_one(trainer, weights, data):
    """Each example's gradient, from a step of length one on that example alone."""
    work = LocalWork(rate=1.0)
    return torch.stack(
        [
            weights - trainer.train(weights, Examples(x[None], y[None]), work, Turn(SEED))
            for x, y in zip(data.x, data.y, strict=True)
        ]
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "squares"])
def test_gradients_of_examples_are_those_of_steps_on_each_alone(loss):
    data = examples(9, loss=loss)
    both, weights = trainers(loss)
    for trainer in both:
        torch.testing.assert_close(trainer.gradients(weights, data), one_by_one(trainer, weights, data), rtol=1e-4, atol=1e-5)


def test_gradients_may_be_written_into_given_memory():
    data = examples(5)
    for trainer in trainers("cross_entropy")[0]:
        weights, out = trainers("cross_entropy")[1], torch.full((8, trainer.dim), float("nan"))
        torch.testing.assert_close(trainer.gradients(weights, data, out=out), trainer.gradients(weights, data))


@pytest.mark.parametrize("clip", [0.1, 1.0, 100.0])
def test_a_clipped_sum_adds_gradients_of_bounded_length(clip):
    data = examples(37)
    both, weights = trainers("cross_entropy")
    for trainer in both:
        rows = trainer.gradients(weights, data)
        scales = (clip / rows.norm(dim=1)).clamp(max=1)
        torch.testing.assert_close(
            trainer.clipped_sum(weights, data, clip), (rows * scales[:, None]).sum(0), rtol=1e-4, atol=1e-5
        )


def test_an_empty_batch_has_a_sum_of_zero():
    nothing = Examples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    both, weights = trainers("cross_entropy")
    for trainer in both:
        assert trainer.gradients(weights, nothing).shape == (0, trainer.dim)
        assert not trainer.clipped_sum(weights, nothing, 1.0).any()


def test_layers_that_mix_examples_are_refused_at_example_level():
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 4))
    with pytest.raises(InputError, match="single example"):
        AutogradTrainer(module, loss_named("cross_entropy")).gradients(flatten(module), examples(4))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)])
def test_so_are_running_statistics_and_no_trial_changes_them(norm):
    module = nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.Flatten(), nn.Linear(48, 4))
    trainer = AutogradTrainer(module, loss_named("cross_entropy"))
    with pytest.raises(InputError, match="single example"):
        trainer.gradients(flatten(module), examples(4, shape=(1, 6, 6)))
    assert not trainer._copy()[1].running_mean.any()


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.rnn(x.view(-1, 2, 3))[0][:, -1])


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_layers_without_a_rule_for_many_examples_have_the_gradients_of_each(kind):
    """torch.func.vmap cannot compute gradients of some recurrent layers."""
    module, data = Last(kind), examples(4)
    rows = AutogradTrainer(module, loss_named("cross_entropy")).gradients(flatten(module), data)
    for index, row in enumerate(rows):
        module.zero_grad()
        loss_named("cross_entropy")(module(data.x[index : index + 1]), data.y[index : index + 1]).backward()
        torch.testing.assert_close(row, torch.cat([value.grad.flatten() for value in module.parameters()]))


def test_models_that_draw_are_refused_at_example_level():
    trainer = AutogradTrainer(nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 4)), loss_named("cross_entropy"))
    trainer.check(examples(2))
    with pytest.raises(InputError, match="dropout"):
        trainer.gradients(flatten(trainer._module), examples(4))


def test_hidden_batches_take_each_example_by_its_own_chance():
    """The size is binomial; false alarm below 1e-6 by its exact tails."""
    data = Examples(torch.zeros(20_000, 1), torch.arange(20_000))
    chosen = poisson_batch(data, 0.01, SecretSeed.insecure(1))
    law = stats.binom(20_000, 0.01)
    assert law.ppf(FALSE_ALARM / 2) <= len(chosen.y) <= law.ppf(1 - FALSE_ALARM / 2)
    assert not torch.equal(chosen.y, poisson_batch(data, 0.01, SecretSeed.insecure(2)).y)
    assert poisson_batch(data, 1.0, SecretSeed.insecure(1)) is data


@given(count=st.integers(1, 40), batch=st.integers(1, 45), passes=st.integers(1, 3))
def test_a_pass_takes_each_example_once(count, batch, passes):
    data = Examples(torch.zeros(count, 1), torch.arange(count))
    each = passed_batches(count, batch)
    for index in range(passes):
        parts = [passed_batch(data, batch, turn, SEED).y for turn in range(index * each, (index + 1) * each)]
        assert max(len(part) for part in parts) <= batch
        assert all(len(part) == batch for part in parts[:-1])
        assert sorted(torch.cat(parts).tolist()) == list(range(count))


def test_passes_differ_in_order_and_a_turn_is_always_the_same():
    data = Examples(torch.zeros(30, 1), torch.arange(30))
    first, again, later = (passed_batch(data, 10, turn, SEED).y for turn in (0, 0, 3))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, passed_batch(data, 10, 0, SEED.child("other")).y)
    assert passed_batch(data, 30, 5, SEED) is data


def test_private_steps_without_noise_and_clipping_are_plain_ones():
    data = examples(12)
    (trainer, _), weights = trainers("cross_entropy")
    work = LocalWork(rate=0.3, steps=4, batch=12, momentum=0.5, decay=0.01)
    batches = hidden_batches(data, work, SecretSeed.insecure(1))
    kept = private_descent(trainer, weights, batches, work, clip=1e9, noise=lambda total, _: total)
    torch.testing.assert_close(kept, trainer.train(weights, data, work, Turn(SEED)), rtol=1e-4, atol=1e-5)


def test_each_private_step_draws_its_own_noise():
    data, seen = examples(12), []
    (trainer, _), weights = trainers("cross_entropy")

    def noise(total, secret):
        from sketchfed.seeds import secret_bytes

        seen.append(secret_bytes(secret, 16))
        return total

    work = LocalWork(rate=0.1, steps=3, batch=4)
    private_descent(trainer, weights, hidden_batches(data, work, SecretSeed.insecure(1)), work, clip=1.0, noise=noise)
    assert len(set(seen)) == 3
