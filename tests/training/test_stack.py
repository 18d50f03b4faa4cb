"""The trainer for convolutional stacks does what autograd does, and takes nothing else for its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from problems import SEED, by_torch, examples
from sketchfed.models import build
from sketchfed.seeds import PublicSeed
from sketchfed.training import LOSSES, AutogradTrainer, LocalWork, StackTrainer, Turn, make_trainer
from sketchfed.training.stack import stacked_layers
from sketchfed.vectors import flatten

SHAPE = (2, 9, 7)
STACKS = {
    "convolution": [nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 7 * 5, 4)],
    "padding": [nn.Conv2d(2, 3, 3, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 11 * 9, 4)],
    "wide padding": [nn.Conv2d(2, 1, 5, padding=4), nn.Flatten(), nn.Linear(13 * 11, 4)],
    "stride": [nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 5 * 4, 4)],
    "oblong filter": [nn.Conv2d(2, 3, (3, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 7 * 6, 4)],
    "no bias": [nn.Conv2d(2, 3, 3, bias=False), nn.Flatten(), nn.Linear(3 * 7 * 5, 4, bias=False)],
    "pooling, ragged": [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4 * 3, 4)],
    "pooling after ReLU": [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 4 * 3, 4)],
    "pooling by three": [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(3 * 3 * 2, 4)],
    "averages": [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * 4 * 3, 4)],
    "pooling first": [nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3 * 3 * 2, 4)],
    "two of each": [
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4)),
    ],
}
WORK = {
    "one step": LocalWork(rate=0.1, steps=1),
    "batches, ragged": LocalWork(rate=0.1, batch=5, epochs=2),
    "batches of one": LocalWork(rate=0.05, batch=1),
    "momentum and decay": LocalWork(rate=0.05, batch=4, momentum=0.5, decay=0.1),
}

KERNELS = ["cross_entropy", "squares"]
"""Losses with hand-written steps."""


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("loss", KERNELS)
@pytest.mark.parametrize("name", STACKS)
def test_it_trains_as_autograd_and_torch_do(name, loss, work):
    torch.manual_seed(3)
    module, data = nn.Sequential(*STACKS[name]), examples(13, shape=SHAPE, loss=loss)
    weights, trainer = flatten(module), make_trainer(module, loss)
    assert isinstance(trainer, StackTrainer)
    trained = trainer.train(weights, data, WORK[work], Turn(SEED))
    assert (trained - weights).norm() > 1e-3, "nothing was learned, so nothing was compared"
    slow = AutogradTrainer(module, LOSSES[loss]).train(weights, data, WORK[work], Turn(SEED))
    assert torch.allclose(trained, slow, rtol=0, atol=1e-5)
    assert torch.allclose(trained, by_torch(module, LOSSES[loss], weights, data, WORK[work]), rtol=0, atol=1e-5)


def test_lenet_trains_as_autograd_does_whatever_the_number_of_workers():
    module, data = build("lenet", shape=(1, 28, 28), outputs=4, seed=PublicSeed(3)), examples(30, shape=(1, 28, 28))
    weights, work, trainer = flatten(module), LocalWork(rate=0.05, batch=10), make_trainer(module, "cross_entropy")
    alone = [trainer.train(weights, data, work, Turn(PublicSeed(seed))) for seed in range(4)]
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        together = list(pool.map(lambda seed: trainer.train(weights, data, work, Turn(PublicSeed(seed))), range(4)))
    assert all(map(torch.equal, alone, together))
    slow = AutogradTrainer(module, LOSSES["cross_entropy"]).train(weights, data, work, Turn(PublicSeed(0)))
    assert torch.allclose(alone[0], slow, rtol=0, atol=1e-5)


def test_of_equal_numbers_in_a_window_the_first_gets_the_derivative_as_in_torch():
    """Small integers have many ties."""
    from sketchfed.kernels.images import largest, spread

    for side in (2, 3):
        x = torch.randint(0, 3, (2, 3, 7, 8)).float().requires_grad_()
        expected = nn.functional.max_pool2d(x, side)
        delta = torch.randn_like(expected)
        expected.backward(delta)
        found, places = largest(x.detach(), side)
        assert torch.equal(found, expected)
        assert torch.equal(spread(delta, places, side, tuple(x.shape)), x.grad)


def hooked() -> nn.Module:
    module = nn.Sequential(*(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(105, 4)))
    module[0].register_forward_hook(lambda *_: None)
    return module


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(105, 4))
    module[0].bias.requires_grad_(False)
    return module


class Doubled(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


TAIL = (nn.Flatten(), nn.Linear(105, 4))
OTHERS = {
    "groups": nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), *TAIL),
    "dilation": nn.Sequential(nn.Conv2d(2, 3, 2, dilation=2), *TAIL),
    "padding by name": nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), *TAIL),
    "padding by reflection": nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), *TAIL),
    "two strides": nn.Sequential(nn.Conv2d(2, 3, 3, stride=(1, 2)), *TAIL),
    "overlapping windows": nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, stride=2), *TAIL),
    "windows with padding": nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2, padding=1), *TAIL),
    "last windows cut": nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2, ceil_mode=True), *TAIL),
    "other divisor": nn.Sequential(nn.Conv2d(2, 3, 3), nn.AvgPool2d(2, divisor_override=3), *TAIL),
    "batch normalisation": nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), *TAIL),
    "dropout": nn.Sequential(nn.Conv2d(2, 3, 3), nn.Dropout(), *TAIL),
    "own layer": nn.Sequential(Doubled(2, 3, 3), *TAIL),
    "not flattened": nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(5, 4)),
    "activation last": nn.Sequential(nn.Conv2d(2, 3, 3), *TAIL, nn.ReLU()),
    "nested": nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 3)), *TAIL),
    "hooked": hooked(),
    "frozen": frozen(),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_not_such_a_stack_is_left_to_autograd(case):
    assert stacked_layers(OTHERS[case]) is None
    assert type(make_trainer(OTHERS[case], "cross_entropy")) is AutogradTrainer


def test_other_losses_are_left_to_autograd():
    assert type(make_trainer(nn.Sequential(*STACKS["convolution"]), nn.functional.l1_loss)) is AutogradTrainer


def test_convolutions_with_many_windows_are_left_to_torch(monkeypatch):
    module = build("cnn_cifar", shape=(3, 32, 32), outputs=4, seed=PublicSeed(3))
    trainer, data, work = make_trainer(module, "cross_entropy"), examples(2, shape=(3, 32, 32)), LocalWork(rate=0.1, steps=1)
    monkeypatch.setattr(StackTrainer, "_stepped", None)
    assert torch.equal(
        trainer.train(flatten(module), data, work, Turn(SEED)),
        AutogradTrainer(module, LOSSES["cross_entropy"]).train(flatten(module), data, work, Turn(SEED)),
    )
