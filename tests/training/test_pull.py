"""What a pull adds to local steps, against a few lines of torch, in every trainer."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from sketchfed.algorithms import Dbcl
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.errors import InputError
from sketchfed.models import build
from sketchfed.protection.batches import private_descent
from sketchfed.seeds import PublicSeed, SecretSeed
from sketchfed.training import (
    AutogradTrainer,
    Examples,
    LiveExamples,
    LocalWork,
    OfBatch,
    OwnLoop,
    PerceptronTrainer,
    Pull,
    StackTrainer,
    TrainingSettings,
    Turn,
    examples_in,
    make_trainer,
)
from sketchfed.vectors import Layout, flatten, load

SEED = PublicSeed(7)
MU = 0.7
MODELS = {
    "perceptron": (lambda: build("mlp", shape=(6,), outputs=3, seed=SEED, hidden=[8]), (6,), PerceptronTrainer),
    "large perceptron": (lambda: build("mlp", shape=(60,), outputs=3, seed=SEED, hidden=[600]), (60,), PerceptronTrainer),
    "stack": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)),
        (1, 8, 8),
        StackTrainer,
    ),
    "autograd": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (6,), AutogradTrainer),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(params=list(MODELS))
def made(request):
    """A module, its examples, and the trainer that is chosen for it."""
    build_module, shape, kind = MODELS[request.param]
    torch.manual_seed(3)
    module, draw = build_module(), torch.Generator().manual_seed(4)
    trainer = make_trainer(module, "cross_entropy")
    assert type(trainer) is kind
    return module, Examples(torch.randn(10, *shape, generator=draw), torch.arange(10) % 3), trainer


def pull_on(dim: int) -> Pull:
    return Pull(MU, torch.linspace(-0.2, 0.3, dim))


def by_hand(module, batches, *, rate, pull, momentum=0.0, decay=0.0, optimiser=None, clip=None, loss=None) -> torch.Tensor:
    """Each step of an ordinary loop, whose gradient the pull changes."""
    start, weights = flatten(module), flatten(module)
    measure = loss or (lambda outputs, y: functional.cross_entropy(outputs, y))
    load(module, weights)
    made = (
        optimiser(module.parameters())
        if optimiser
        else torch.optim.SGD(module.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
    )
    for x, y in batches:
        made.zero_grad()
        measure(module(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        extra = pull.proximal * (flatten(module) - start) + pull.linear
        for parameter, part in zip(module.parameters(), Layout.of(module).views(extra).values(), strict=True):
            parameter.grad += part
        made.step()
    found = flatten(module)
    load(module, start)
    return found


@pytest.mark.parametrize("kind", [{}, {"momentum": 0.8}, {"decay": 0.1}, {"momentum": 0.8, "decay": 0.1}])
def test_every_trainer_takes_the_steps_of_an_ordinary_loop(made, kind):
    module, examples, trainer = made
    pull, work = pull_on(trainer.dim), LocalWork(rate=0.1, steps=7, batch=4, **kind)
    order, slices = work.order(10, SEED)
    batches = [(examples.x[order[a:b]], examples.y[order[a:b]]) for a, b in slices]
    found = trainer.train(flatten(module), examples, work, Turn(SEED, pull=pull))
    torch.testing.assert_close(found, by_hand(module, batches, rate=0.1, pull=pull, **kind), **CLOSE)
    assert not torch.allclose(found, trainer.train(flatten(module), examples, work, Turn(SEED)), **CLOSE)


def test_a_pull_of_nothing_changes_no_bit(made):
    module, examples, trainer = made
    work = LocalWork(rate=0.1, steps=3, batch=4)
    plain = trainer.train(flatten(module), examples, work, Turn(SEED))
    assert not Pull()
    assert torch.equal(plain, trainer.train(flatten(module), examples, work, Turn(SEED, pull=Pull())))


def test_the_proximal_term_is_zero_in_the_first_step(made):
    module, examples, trainer = made
    work = LocalWork(rate=0.1, steps=1)
    found = trainer.train(flatten(module), examples, work, Turn(SEED, pull=Pull(50.0)))
    torch.testing.assert_close(found, trainer.train(flatten(module), examples, work, Turn(SEED)), **CLOSE)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def of_six(count: int = 12) -> Examples:
    draw = torch.Generator().manual_seed(2)
    return Examples(torch.randn(count, 6, generator=draw), torch.arange(count) % 3)


@pytest.mark.parametrize(
    ("settings", "optimiser", "clip"),
    [
        ({"optimiser": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05), None),
        ({"clip_norm": 0.05}, lambda p: torch.optim.SGD(p, lr=0.05), 0.05),
        ({"accumulate": 3}, lambda p: torch.optim.SGD(p, lr=0.05), None),
    ],
)
def test_an_optimiser_of_torch_is_given_the_clipped_gradient_plus_the_pull(settings, optimiser, clip):
    trainer = make_trainer(net(), "cross_entropy", TrainingSettings(**settings).recipe(10))
    pull = pull_on(trainer.dim)
    found = trainer.train(flatten(net()), of_six(), LocalWork(rate=0.05, steps=6), Turn(SEED, pull=pull))
    reference = by_hand(net(), [tuple(of_six())] * 6, rate=0.05, pull=pull, optimiser=optimiser, clip=clip)
    torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}])
def test_a_parameter_that_the_loss_does_not_use_is_pulled_as_well(settings):
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    module = Aside()
    trainer = make_trainer(module, "cross_entropy", TrainingSettings(**settings).recipe(1))
    pull = Pull(linear=torch.ones(trainer.dim))
    moved = trainer.train(flatten(module), of_six(), LocalWork(rate=0.5, steps=2), Turn(SEED, pull=pull)) - flatten(module)
    torch.testing.assert_close(moved[-6:], torch.full((6,), -1.0))


@pytest.mark.parametrize("kind", ["live", "items", "columns", "stream"])
def test_data_of_any_kind_is_pulled_alike(kind):
    plain, module = of_six(), net()
    batch_loss = OfBatch(lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    loss = "cross_entropy" if kind == "live" else batch_loss
    data = {
        "live": lambda: LiveExamples(*plain, read=lambda rows, seed: Examples(plain.x[rows], plain.y[rows])),
        "items": lambda: examples_in(list(TensorDataset(*plain)), None, owner="it"),
        "columns": lambda: examples_in(tuple(plain), None, owner="it"),
        "stream": lambda: examples_in(DataLoader(TensorDataset(*plain), batch_size=12), None, owner="it"),
    }[kind]()
    trainer = make_trainer(module, loss)
    pull = pull_on(trainer.dim)
    found = trainer.train(flatten(module), data, LocalWork(rate=0.05, steps=5), Turn(SEED, pull=pull))
    torch.testing.assert_close(found, by_hand(module, [tuple(plain)] * 5, rate=0.05, pull=pull), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_client_form_is_pulled_towards_the_weights_that_it_saw(momentum):
    """The client adds the pull to Γ. The weights that it sees move by RRᵀ times what the update to send moves by."""
    torch.manual_seed(5)
    module, data = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), of_six()
    form = Dbcl(sketch=SketchSettings(name="balanced", ratio=0.5)).resolved(1, module=module).given(SEED, 0).sketch
    trainers = [
        make_trainer(module, "cross_entropy").sketched(form),
        AutogradTrainer(module, functional.cross_entropy).sketched(form),
    ]
    assert [type(trainer) for trainer in trainers] == [PerceptronTrainer, AutogradTrainer]
    start, work = form.apply(flatten(module)), LocalWork(rate=0.1, steps=5, momentum=momentum)
    pull, seen, said = pull_on(form.size), start.clone(), start.clone()
    velocity = torch.zeros_like(start)
    for _ in range(5):
        gradient = trainers[1].gradients(seen, data).mean(0)
        velocity = momentum * velocity + gradient + MU * (seen - start) + pull.linear
        said, seen = said - 0.1 * velocity, seen - 0.1 * form.gram(velocity)
    for trainer in trainers:
        found = trainer.train(start, data, work, Turn(SEED, pull=pull))
        torch.testing.assert_close(found, said, rtol=1e-5, atol=1e-6)


def test_noisy_steps_are_pulled_after_the_noise():
    module, examples = net(), of_six()
    trainer, work = make_trainer(module, "cross_entropy"), LocalWork(rate=0.1, steps=4, batch=12, momentum=0.3, decay=0.05)
    pull, start = pull_on(trainer.dim), flatten(module)
    secrets = [SecretSeed.insecure(number) for number in range(4)]
    noises = [torch.randn(trainer.dim, generator=torch.Generator().manual_seed(number)) for number in range(4)]
    given = iter(noises)
    batches, noise = [(examples, secret) for secret in secrets], lambda total, _: total + next(given)
    found = private_descent(trainer, start, batches, work, clip=0.5, noise=noise, pull=pull)
    weights, velocity = start.clone(), torch.zeros_like(start)
    for drawn in noises:
        step = (trainer.clipped_sum(weights, examples, 0.5) + drawn) / 12 + 0.05 * weights
        velocity = 0.3 * velocity + step + MU * (weights - start) + pull.linear
        weights = weights - 0.1 * velocity
    torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-6)


def test_a_loop_of_ones_own_is_refused():
    loop = OwnLoop(net(), lambda model, data, context: None, {}, name="mine")
    with pytest.raises(InputError, match="shows only whole updates"):
        loop.train(flatten(net()), of_six(), LocalWork(rate=0.1), Turn(SEED, pull=Pull(0.1)))


@pytest.mark.parametrize("proximal", [-0.1, float("inf"), float("nan")])
def test_a_proximal_term_is_a_finite_number_not_below_zero(proximal):
    with pytest.raises(InputError, match="must not be negative"):
        Pull(proximal)
    with pytest.raises(InputError, match="must not be negative"):
        TrainingSettings(proximal=proximal)
