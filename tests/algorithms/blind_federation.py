"""Small federations of blind clients, and the same training with S written out."""

import torch
from torch import nn
from torch.nn import functional

from federation import Tap, federation, weights_of
from problems import examples
from sketchfed.algorithms import Dbcl, RoundContext
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.training.base import batches
from sketchfed.vectors import flatten

FAMILIES = ("balanced", "count", "sampling", "srht")
WORK = {"local_epochs": 2, "batch": 6, "local_rate": 0.1}
SHAPE = (1, 8, 8)


def perceptron() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 15), nn.ReLU(), nn.Linear(15, 12), nn.ReLU(), nn.Linear(12, 4))


def convolutional() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, stride=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 4)),
    )


MODULES = {"perceptron": perceptron, "convolutional": convolutional}


def dbcl(family="balanced", **settings) -> Dbcl:
    sketch = SketchSettings(name=family, ratio=settings.pop("ratio", 0.5))
    return Dbcl(sketch=sketch, **{**WORK, "public_start": True, **settings})


def data_of(clients):
    return [examples(14 + client, shape=SHAPE) for client in range(clients)]


def federated(algorithm, *, module=None, clients=3, **settings):
    return federation(algorithm, data_of(clients), module=module or perceptron(), loss="cross_entropy", **settings)


def seen_weights(form, weights):
    """The parameters of the model that a client trains, W·S·Sᵀ in place of W, with S written out."""
    given = form.layout.views(weights)
    effective = {name: value.detach() if name in form.withheld else value for name, value in given.items()}
    for name, sketch in form.layers:
        owner, dot, leaf = name.rpartition(".")
        bias = owner + dot + leaf.replace("weight", "bias")
        s = sketch.apply(torch.eye(sketch.dim, dtype=weights.dtype))
        rows = given[name].flatten(1)
        if bias in form.folded:
            rows = torch.cat([rows, given[bias][:, None]], 1)
        rows = rows @ s @ s.T
        if bias in form.folded:
            effective[bias], rows = rows[:, -1], rows[:, :-1]
        effective[name] = rows.reshape(given[name].shape)
    return effective


def trained_through(module, form, weights, data, work, seed):
    """What local work makes of all weights when the model computes with W·S·Sᵀ: by autograd, in float64."""
    module, w, velocity = module.double(), weights.double(), 0.0
    for batch in batches(data, work, seed):
        w.requires_grad_(True)
        seen = seen_weights(form, w)
        loss = functional.cross_entropy(torch.func.functional_call(module, seen, (batch.x.double(),)), batch.y)
        (gradient,) = torch.autograd.grad(loss + work.decay / 2 * form.apply(w).square().sum(), w)
        velocity = work.momentum * velocity + gradient
        w = w.detach() - work.rate * velocity
    module.float()
    return w


def assert_trains_through_sketches(algorithm, module, *, rounds=2, clients=3):
    server = federated(algorithm, module=module, clients=clients)
    weights, data = weights_of(server), data_of(clients)
    for index in range(rounds):
        server.advance()
        form = server.algorithm.given(server.seed, index).sketch
        contexts = [RoundContext(round=index, seed=server.seed, client=client) for client in range(clients)]
        work = server.algorithm.work
        each = [trained_through(module, form, weights, data[c.client], work, c.own) for c in contexts]
        weights = torch.stack(each).mean(0).float()
        torch.testing.assert_close(weights_of(server), weights, rtol=0, atol=1e-6)
    assert not torch.equal(weights, flatten(module))


def all_bytes(tap: Tap) -> bytes:
    return b"".join(message for exchange in [*tap.tasks, *tap.replies] for message in exchange.values())


def contains_run(haystack: bytes, values: torch.Tensor, *, run: int = 4) -> bool:
    """Whether so many consecutive numbers of a vector, none of them 0, occur anywhere in the bytes, at any offset."""
    numbers = values.detach().to(torch.float32).reshape(-1).numpy().astype("<f4")
    runs = [numbers[start : start + run] for start in range(len(numbers) - run + 1)]
    return any(part.tobytes() in haystack for part in runs if part.all())
