"""Training of any module: the right steps, the same bits each time, and no surprises."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional

from problems import SEED, by_torch, dense_model, examples
from sketchfed import PublicSeed
from sketchfed.errors import InputError
from sketchfed.training import AutogradTrainer, LocalWork, Turn, make_trainer
from sketchfed.vectors import Layout, flatten

WORK = LocalWork(rate=0.1, batch=5, epochs=2, momentum=0.5, decay=0.1)


def seeded(make: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make()


def convolution() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)))


def dropout() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 4)))


def images(count: int = 23) -> object:
    return examples(count, shape=(1, 6, 6))


def trainer_of(module: nn.Module, data: object = None) -> AutogradTrainer:
    trainer = AutogradTrainer(module, functional.cross_entropy)
    trainer.check(data or examples())
    return trainer


@pytest.mark.parametrize("work", [LocalWork(rate=0.1), LocalWork(rate=0.1, steps=4, batch=7), WORK])
def test_a_convolution_is_trained_as_torch_does(work):
    module, data = convolution(), images()
    trained = trainer_of(module, data).train(flatten(module), data, work, Turn(SEED))
    assert torch.allclose(trained, by_torch(module, functional.cross_entropy, flatten(module), data, work), rtol=0, atol=1e-5)


def test_tied_layers_are_trained_as_torch_does():
    layer = seeded(lambda: nn.Linear(6, 6))
    module = nn.Sequential(layer, nn.ReLU(), layer)
    trained = make_trainer(module, "cross_entropy").train(flatten(module), examples(), WORK, Turn(SEED))
    assert torch.allclose(trained, by_torch(module, functional.cross_entropy, flatten(module), examples(), WORK), atol=1e-5)


def test_frozen_layers_stay_as_they_are_and_cost_nothing():
    module = dense_model("mlp", hidden=[5])
    module[1].requires_grad_(False)
    trainer, weights = make_trainer(module, "cross_entropy"), flatten(module)
    assert trainer.dim == len(weights) == 5 * 4 + 4
    trained = trainer.train(weights, examples(), WORK, Turn(SEED))
    assert torch.allclose(trained, by_torch(module, functional.cross_entropy, weights, examples(), WORK), atol=1e-5)
    assert torch.allclose(trainer.outputs(trained, examples().x), module(examples().x), atol=1e-5)


def test_hooks_of_the_module_are_kept():
    module = dense_model("linear")
    module.register_forward_hook(lambda _module, _inputs, outputs: 3 * outputs)
    trainer, x = make_trainer(module, "cross_entropy"), examples().x
    assert torch.allclose(trainer.outputs(flatten(module), x), module(x), atol=1e-6)


def test_a_parameter_without_a_gradient_does_not_move():
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 4), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    module = Partly()
    trained = trainer_of(module).train(flatten(module), examples(), LocalWork(rate=0.1, steps=3), Turn(SEED))
    before, after = (Layout.of(module).views(weights) for weights in (flatten(module), trained))
    assert torch.equal(before["unused.weight"], after["unused.weight"])
    assert not torch.equal(before["used.weight"], after["used.weight"])


def test_a_loss_of_ones_own_is_used_for_training_and_scores():
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().sum(1).mean()

    module, data, work = dense_model("linear"), examples(loss="squares"), LocalWork(rate=0.1, steps=3)
    trainer = make_trainer(module, loss)
    assert torch.allclose(
        trainer.train(flatten(module), data, work, Turn(SEED)), by_torch(module, loss, flatten(module), data, work), atol=1e-5
    )
    total, right = trainer.score(flatten(module), data)
    assert (total, right) == (pytest.approx(23 * loss(module(data.x), data.y).item(), rel=1e-5), 0)


def test_dropout_makes_training_sequential_and_nothing_else_does():
    assert trainer_of(dropout()).sequential
    assert not trainer_of(convolution(), images()).sequential


def test_dropout_draws_from_the_seed_of_client_and_round_alone():
    module, trainer = dropout(), trainer_of(dropout())
    torch.manual_seed(1)
    first = trainer.train(flatten(module), examples(), WORK, Turn(SEED))
    torch.manual_seed(2)
    assert torch.equal(trainer.train(flatten(module), examples(), WORK, Turn(SEED)), first)
    assert torch.equal(trainer_of(module).train(flatten(module), examples(), WORK, Turn(SEED)), first)
    full = LocalWork(rate=0.1, steps=2)  # no batches are drawn, so only dropout can differ
    one, other = (trainer.train(flatten(module), examples(), full, Turn(PublicSeed(seed))) for seed in (1, 2))
    assert not torch.equal(one, other)


def test_dropout_is_off_when_scoring():
    module, trainer = dropout(), trainer_of(dropout())
    assert torch.allclose(trainer.outputs(flatten(module), examples().x), module.eval()(examples().x), atol=1e-6)
    trainer.train(flatten(module), examples(), WORK, Turn(SEED))
    assert trainer.score(flatten(module), examples()) == trainer.score(flatten(module), examples())


def test_the_users_own_generator_is_not_disturbed():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    trainer_of(dropout()).train(flatten(dropout()), examples(), WORK, Turn(SEED))
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("make", [convolution, lambda: dense_model("mlp", hidden=[5])])
def test_threads_do_not_change_a_bit(make):
    module = make()
    data = [images(20 + client) if isinstance(module[0], nn.Conv2d) else examples(20 + client) for client in range(8)]
    trainer, weights = trainer_of(module, data[0]), flatten(module)
    alone = [trainer.train(weights, own, WORK, Turn(SEED)) for own in data]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda own: trainer.train(weights, own, WORK, Turn(SEED)), data))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_the_weights_given_and_the_module_are_left_alone():
    module, data = convolution(), images()
    weights, kept = flatten(module), flatten(module)
    trained = trainer_of(module, data).train(weights, data, WORK, Turn(SEED))
    assert torch.equal(weights, kept)
    assert torch.equal(flatten(module), kept)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert trained.data_ptr() != weights.data_ptr()


def test_a_result_is_not_overwritten_by_the_next_client():
    module, data = convolution(), images()
    trainer = trainer_of(module, data)
    first = trainer.train(flatten(module), data, WORK, Turn(SEED))
    kept = first.clone()
    trainer.train(flatten(module), images(30), WORK, Turn(SEED))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True)])
def test_buffers_that_training_changes_are_refused(norm):
    module = nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.Flatten(), nn.Linear(48, 4))
    with pytest.raises(InputError, match=r"training changes the buffer '1.*use nn\.GroupNorm or nn\.LayerNorm") as refused:
        trainer_of(module, images())
    assert "track_running_stats" not in str(refused.value), "without running statistics a batch of one example fails"


@pytest.mark.parametrize("norm", [nn.GroupNorm(1, 3), nn.LayerNorm(3)])
def test_the_norms_that_are_advised_train_on_a_batch_of_one(norm):
    """Five examples in batches of four leave a batch of one."""
    module, data = nn.Sequential(nn.Linear(6, 3), norm, nn.Linear(3, 4)), examples(5)
    trained = trainer_of(module, data).train(flatten(module), data, LocalWork(rate=0.1, batch=4), Turn(SEED))
    assert torch.isfinite(trained).all()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(3, track_running_stats=False), nn.GroupNorm(1, 3), nn.LayerNorm([3, 4, 4])])
def test_norms_without_running_statistics_are_trained(norm):
    module = nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.Flatten(), nn.Linear(48, 4))
    trained = trainer_of(module, images()).train(flatten(module), images(), WORK, Turn(SEED))
    assert torch.isfinite(trained).all()


@pytest.mark.parametrize("data", [examples(shape=(7,)), examples(shape=(1, 6, 7)), examples(60, shape=(1, 6, 6), outputs=30)])
def test_data_that_does_not_fit_is_refused_before_training(data):
    with pytest.raises(InputError, match=r"cannot be trained on examples of shape .* Check the model's input shape"):
        trainer_of(convolution(), data)
