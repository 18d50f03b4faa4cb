"""What is seen of training, for examples that somebody has in mind."""

import pytest
import torch
from observed import SEED, convolutional, dense, digits, observed
from torch import nn

from sketchfed.attacks import Observation
from sketchfed.errors import InputError
from sketchfed.seeds import PublicSeed
from sketchfed.sketches import SKETCHES, make_sketch
from sketchfed.subspaces import IncrementalSvd
from sketchfed.training import LOSSES, Examples, LocalWork, Turn, make_trainer
from sketchfed.vectors import flatten

WORKS = {
    "a step": LocalWork(rate=0.3, steps=1),
    "five steps of all": LocalWork(rate=0.3, steps=5),
    "batches": LocalWork(rate=0.3, epochs=2, batch=3),
    "momentum and decay": LocalWork(rate=0.3, steps=3, momentum=0.9, decay=0.1),
}


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("model", [dense, convolutional])
def test_it_is_what_the_client_computes(model, work):
    """The trainer's own result, batches in the client's order."""
    module, (x, y) = model(), digits(8)
    seen = observed(module, x, y, work=work)
    trained = make_trainer(module, "cross_entropy").train(flatten(module), Examples(x, y), work, Turn(SEED))
    assert torch.allclose(seen.values, trained - flatten(module), atol=2e-5)


@pytest.mark.parametrize("name", SKETCHES)
def test_sketches_are_looked_through_by_their_adjoint(name):
    """The derivative of what is seen by the example, beside finite differences of it."""
    module, (x, y) = dense(), digits()
    sketch = make_sketch(name, dim=len(flatten(module)), size=40, seed=PublicSeed(3))
    seen = observed(module, x, y, known=sketch)
    assert torch.allclose(seen.values, sketch.apply(observed(module, x, y).values), atol=1e-6)
    toward, direction = torch.ones(40), torch.zeros_like(x)
    direction[0, 0, 3, 3] = 1.0
    x.requires_grad_()
    (slope,) = torch.autograd.grad(seen.seen(x, y) @ toward, x)
    with torch.no_grad():
        apart = seen.seen(x + 1e-2 * direction, y) - seen.seen(x - 1e-2 * direction, y)
    assert float((slope * direction).sum()) == pytest.approx(float(apart @ toward) / 2e-2, rel=0.02, abs=1e-4)


def test_maps_that_compute_outside_torch_are_looked_through_too():
    module, (x, y) = dense(), digits()
    subspace = IncrementalSvd().begin(dim=len(flatten(module)), size=30, seed=PublicSeed(5))
    seen = observed(module, x, y, known=subspace)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(seen.seen(x, y).square().sum(), x)
    assert slope.abs().max() > 0


def test_its_gradient_is_that_of_the_loss():
    module, (x, y) = dense(), digits(4)
    loss = LOSSES["cross_entropy"](module(x), y)
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
    assert torch.allclose(observed(module, x, y).gradient, expected, atol=1e-5)


class Stubborn(nn.Module):
    """A layer whose gradient autograd cannot differentiate again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.sum(1).expand(len(x), 10)


def test_models_whose_gradient_does_not_depend_on_the_example_are_refused():
    module, (x, y) = Stubborn(), digits()
    seen = Observation(
        values=torch.zeros(1),
        module=module,
        loss=lambda outputs, _: outputs.sum(),
        weights=flatten(module),
        work=WORKS["a step"],
        seed=SEED,
    )
    with pytest.raises(InputError, match="second derivative"):
        seen.seen(x, y)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": torch.zeros(3)}, "3"),
        ({"values": torch.full((4,), float("nan"))}, "finite"),
        ({"values": torch.ones(2, 2)}, "one vector"),
    ],
)
def test_observations_that_cannot_be_are_refused(change, said):
    module = dense()
    given = {"values": torch.zeros(4), "weights": flatten(module)} | change
    with pytest.raises(InputError, match=said):
        Observation(module=module, loss=LOSSES["cross_entropy"], work=WORKS["a step"], seed=SEED, **given)
