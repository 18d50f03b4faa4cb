"""Steps during the backward pass: the same bits as afterwards, with less memory, and never too early."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from problems import SEED, examples
from sketchfed.training import AutogradTrainer, LocalWork, Turn, autograd
from sketchfed.vectors import flatten

WORK = LocalWork(rate=0.1, batch=5, epochs=2)


class Body(nn.Module):
    """Two layers of the same shape between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))


class Tied(Body):
    """One matrix is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.third.weight = self.second.weight


class Unused(Body):
    """Some parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.fourth = nn.Linear(8, 8)


class Detached(Body):
    """The graph reads a parameter after its gradient is complete: to differentiate by what lies before it."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.second(functional.linear(hidden, self.second.weight.detach()))))


class Reentrant(Tied):
    """The gradient of the matrix that is used twice comes in two parts."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        for layer in (self.second, self.third):
            hidden = checkpoint(lambda h, layer=layer: torch.tanh(layer(h)), hidden, use_reentrant=True)
        return self.last(hidden)


class Checkpointed(Tied):
    """The same with checkpoints of the usual kind."""

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        for layer in (self.second, self.third):
            hidden = checkpoint(lambda h, layer=layer: torch.tanh(layer(h)), hidden, use_reentrant=False)
        return self.last(hidden)


class Dropping(Body):
    """Draws from torch's generator."""

    def forward(self, x):
        return super().forward(functional.dropout(x, 0.3, self.training))


def made(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return kind()


def trained(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch, *, least: int) -> tuple[torch.Tensor, AutogradTrainer]:
    monkeypatch.setattr(autograd, "LEAST_EAGER", least)
    module = made(kind)
    trainer = AutogradTrainer(module, functional.cross_entropy)
    trainer.check(examples(23))
    return trainer.train(flatten(module), examples(23), WORK, Turn(SEED)), trainer


@pytest.mark.parametrize(
    ("kind", "fits"),
    [(Body, True), (Tied, True), (Unused, True), (Checkpointed, True), (Dropping, True), (Detached, False), (Reentrant, False)],
)
def test_a_step_during_the_backward_pass_gives_the_same_bits(kind, fits, monkeypatch):
    """Where a parameter would move too early, training begins anew without it, and the trainer remembers."""
    afterwards, _ = trained(kind, monkeypatch, least=10**9)
    during, trainer = trained(kind, monkeypatch, least=1)
    assert torch.equal(during, afterwards)
    assert trainer._eager is fits


def test_an_error_of_the_model_is_raised_once(monkeypatch):
    calls = []

    class Failing(Body):
        def forward(self, x):
            if self.training and torch.is_grad_enabled():
                calls.append(len(x))
            if len(calls) > 2:
                raise RuntimeError("out of memory")
            return super().forward(x)

    with pytest.raises(RuntimeError, match="out of memory"):
        trained(Failing, monkeypatch, least=1)
    assert len(calls) == 3


def test_only_the_gradients_of_a_layer_or_two_exist_at_a_time(monkeypatch):
    monkeypatch.setattr(autograd, "LEAST_EAGER", 1)
    held = []

    class Watching(torch.autograd.Function):
        """Sees the backward pass arrive before the first layer."""

        @staticmethod
        def forward(ctx, x, module):
            ctx.module = module
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            held.append([name for name, p in ctx.module.named_parameters() if p.grad is not None])
            return gradient, None

    class Watched(Body):
        def forward(self, x):
            hidden = Watching.apply(torch.tanh(self.first(x)), self)
            return self.last(torch.tanh(self.third(torch.tanh(self.second(hidden)))))

    trained(Watched, monkeypatch, least=1)
    trial, *steps = held
    assert len(trial) == 6
    assert steps == [[]] * 10
