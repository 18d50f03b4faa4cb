"""Many simulated updates at once are the same as one after the other."""

from dataclasses import replace

import pytest
import torch
from observed import SEED, STEP, convolutional, dense, digits, observed
from torch import Tensor, nn

from sketchfed import PublicSeed
from sketchfed.attacks import shadows
from sketchfed.attacks.shadows import alike, each_seen, groups_seen, shared
from sketchfed.errors import InputError
from sketchfed.sketches import make_sketch
from sketchfed.subspaces import IncrementalSvd
from sketchfed.training import Examples, LocalWork
from sketchfed.vectors import flatten

WORKS = {
    "a step": STEP,
    "a step with decay": LocalWork(rate=0.3, steps=1, decay=0.1),
    "five steps of all": LocalWork(rate=0.3, steps=5),
    "batches": LocalWork(rate=0.3, epochs=2, batch=3),
    "momentum and decay": LocalWork(rate=0.3, steps=3, momentum=0.9, decay=0.1),
}


def sketched(module: nn.Module, *, size: int = 40, seed: int = 3):
    return make_sketch("srht", dim=len(flatten(module)), size=size, seed=PublicSeed(seed))


def one_by_one(observation, groups: Examples) -> Tensor:
    return torch.stack([observation.seen(x, y).detach() for x, y in zip(*groups, strict=True)])


def grouped(groups: int, count: int) -> Examples:
    x, y = digits(groups * count)
    return Examples(x.reshape(groups, count, 1, 8, 8), y.reshape(groups, count))


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("model", [dense, convolutional])
@pytest.mark.parametrize("through", ["nothing", "a sketch"])
def test_each_example_alone_is_what_the_observation_says_of_it(model, work, through):
    module, (x, y) = model(), digits(7)
    seen = observed(module, x, y, work=work, known=None if through == "nothing" else sketched(module))
    found = each_seen(seen, Examples(x, y))
    assert torch.allclose(found, one_by_one(seen, Examples(x[:, None], y[:, None])), atol=1e-5)
    assert not found.requires_grad


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_groups_keep_the_order_of_their_batches(work):
    module, groups = dense(), grouped(5, 8)
    seen = observed(module, groups.x[0], groups.y[0], work=work)
    assert torch.allclose(groups_seen(seen, groups), one_by_one(seen, groups), atol=1e-5)


@pytest.mark.parametrize("counts", [(), (1, 2, 3)])
def test_groups_are_shared_out_to_the_clients_whose_mean_was_seen(counts):
    module, groups = dense(), grouped(4, 6)
    seeds = tuple(SEED.child("client", index) for index in range(3))
    seen = replace(observed(module, groups.x[0], groups.y[0], work=WORKS["batches"]), seed=seeds, counts=counts)
    assert torch.allclose(groups_seen(seen, groups), one_by_one(seen, groups), atol=1e-5)
    alone = replace(seen, seed=seeds[0], counts=())
    examples = Examples(groups.x[0], groups.y[0])
    assert torch.equal(each_seen(seen, examples), each_seen(alone, examples))
    with pytest.raises(InputError, match="clients"):
        groups_seen(seen, grouped(4, 5))


def test_weights_that_move_behind_a_sketch_do_so_in_simulations():
    module, groups = dense(), grouped(3, 4)
    seen = replace(observed(module, groups.x[0], groups.y[0], work=WORKS["five steps of all"]), gram=lambda step: 0.5 * step)
    found = groups_seen(seen, groups)
    assert torch.allclose(found, one_by_one(seen, groups), atol=1e-5)
    assert not torch.allclose(found, groups_seen(replace(seen, gram=None), groups), atol=1e-3)


class Counted(nn.Module):
    """Counts its forward passes, and may look at a value, which `vmap` forbids."""

    def __init__(self, inside: nn.Module, *, looks: bool) -> None:
        super().__init__()
        self.inside, self.looks, self.passes = inside, looks, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.looks and float(x.detach().sum()) < 0:
            return self.inside(-x)
        return self.inside(x)


def test_a_module_is_run_once_for_many_groups_unless_it_looks_at_values():
    (x, y), counts, found = digits(30), [], []
    for looks in (False, True):
        module = Counted(dense(), looks=looks)
        seen = observed(module, x, y)
        module.passes = 0
        found.append(each_seen(seen, Examples(x, y)))
        counts.append(module.passes)
    assert counts[0] == 1
    assert 30 <= counts[1] <= 31  # and one in vain
    assert torch.allclose(*found, atol=1e-6)


def test_few_are_held_in_memory_at_a_time_and_each_is_told(monkeypatch):
    module, (x, y) = dense(), digits(10)
    seen, told = observed(module, x, y), []
    expected = each_seen(seen, Examples(x, y))
    monkeypatch.setattr(shadows, "_HELD", 3 * len(seen.weights))
    found = groups_seen(seen, Examples(x[:, None], y[:, None]), on_step=lambda: told.append(1))
    assert torch.allclose(found, expected, atol=1e-6)
    assert len(told) == 10
    assert groups_seen(seen, Examples(x[:0, None], y[:0, None])).shape == (0, len(seen.values))


def test_maps_outside_torch_are_gone_through():
    module, (x, y) = dense(), digits(5)
    subspace = IncrementalSvd().begin(dim=len(flatten(module)), size=30, seed=PublicSeed(5))
    seen = observed(module, x, y, known=subspace)
    assert torch.allclose(each_seen(seen, Examples(x, y)), one_by_one(seen, Examples(x[:, None], y[:, None])), atol=1e-5)


def test_observations_share_what_does_not_depend_on_the_values():
    module, other, (x, y) = dense(), dense(), digits(2)
    first = observed(module, x, y, known=sketched(module))
    observations = [
        first,
        replace(first, values=2 * first.values, seed=PublicSeed(77), map=sketched(module), weights=first.weights.clone()),
        replace(first, map=sketched(module, seed=4)),
        replace(first, weights=first.weights + 1),
        replace(first, work=LocalWork(rate=0.2, steps=1)),
        replace(first, module=other),
        observed(module, x, y),
        replace(first, weights=first.weights + 1),
    ]
    assert shared(observations) == [[0, 1], [2], [3, 7], [4], [5], [6]]


def test_maps_that_were_made_anew_are_told_apart_by_what_they_do():
    module, (x, y) = dense(), digits(2)
    maps = [IncrementalSvd().begin(dim=len(flatten(module)), size=30, seed=PublicSeed(s)) for s in (5, 5, 6)]
    first, again, other = (observed(module, x, y, known=known) for known in maps)
    assert alike(first, again)
    assert not alike(first, other)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (torch.zeros(3, 1, 8, 8), torch.zeros(2, dtype=torch.int64), "a target each"),
        (torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), "one or more"),
        (torch.full((2, 1, 8, 8), float("nan")), torch.zeros(2, dtype=torch.int64), "NaN"),
        (torch.zeros(2, 1, 9, 9), torch.zeros(2, dtype=torch.int64), r"\(1, 9, 9\)"),
    ],
)
def test_examples_that_do_not_fit_are_refused(x, y, said):
    module, own = dense(), digits(2)
    with pytest.raises(InputError, match=said):
        each_seen(observed(module, *own), Examples(x, y))
