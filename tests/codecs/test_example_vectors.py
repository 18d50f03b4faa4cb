import math

import pytest
import torch

from sketchfed.codecs.examples import SHAPES, correlation_of, example_vectors, group_sizes
from sketchfed.errors import InputError, UnknownNameError


@pytest.mark.parametrize("shape", ["normal", "power_law"])
@pytest.mark.parametrize(
    ("clients", "dim", "correlation"),
    [(21, 1024, 12), (5, 3, -1), (5, 3, 4), (30, 10, -0.5), (2, 1, 0.3), (4, 64, 0), (1, 7, 0)],
)
def test_dense_vectors_have_the_wanted_correlation_and_length(shape, clients, dim, correlation):
    x = example_vectors(shape, clients=clients, dim=dim, correlation=correlation)
    assert (x.shape, x.dtype) == ((clients, dim), torch.float32)
    assert correlation_of(x) == pytest.approx(correlation, abs=1e-6)
    assert float(x.square().sum()) == pytest.approx(clients, rel=1e-5)


def test_the_correlation_is_that_of_the_definition():
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(1))
    gram = x @ x.T
    assert correlation_of(x) == pytest.approx(float((gram.sum() - gram.trace()) / gram.trace()), rel=1e-5)


@pytest.mark.parametrize("clients", range(2, 40))
def test_identical_vectors_have_no_more_than_full_correlation(clients):
    x = torch.randn(37, generator=torch.Generator().manual_seed(clients)).expand(clients, -1)
    assert clients - 1 - 1e-9 < correlation_of(x) <= clients - 1


def test_seeds_make_vectors_and_power_laws_have_outliers():
    made = {shape: example_vectors(shape, clients=3, dim=500, correlation=1, seed=4) for shape in SHAPES}
    assert torch.equal(made["normal"], example_vectors("normal", clients=3, dim=500, correlation=1, seed=4))
    assert not torch.equal(made["normal"], example_vectors("normal", clients=3, dim=500, correlation=1, seed=5))
    largest = {shape: float(x[0].abs().max() / x[0].norm()) for shape, x in made.items()}
    assert largest["normal"] < 0.3 < largest["power_law"] < largest["base"] == 1


@pytest.mark.parametrize("clients", [1, 2, 5, 11, 21, 51])
def test_groups_come_as_near_as_groups_can(clients):
    partitions = {groups: sum(g * (g - 1) for g in groups) / clients for groups in all_partitions(min(clients, 21))}
    for share in (0, 0.2, 0.5, 0.8, 1):
        wanted = share * (clients - 1)
        groups = group_sizes(clients, wanted)
        assert sum(groups) == clients
        reached = sum(g * (g - 1) for g in groups) / clients
        if clients <= 21:
            assert abs(reached - wanted) == pytest.approx(min(abs(value - wanted) for value in partitions.values()))
        else:
            assert abs(reached - wanted) < 1


def all_partitions(total, most=None):
    """Every way to write a number as a sum of numbers that do not grow."""
    if total == 0:
        yield ()
        return
    for first in range(min(total, most or total), 0, -1):
        for rest in all_partitions(total - first, first):
            yield (first, *rest)


def test_base_vectors_are_shared_by_groups():
    x = example_vectors("base", clients=21, dim=64, correlation=12)
    assert (x.sum(1) == 1).all()
    assert sorted(x.sum(0)[x.sum(0) > 0].int().tolist(), reverse=True) == [16, 4, 1]
    assert math.isclose(correlation_of(x), 12)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"correlation": 21}, "must be from −1 to 20 (identical vectors), got 21"),
        ({"correlation": -1.5}, "must be from −1 to 20 (identical vectors), got -1.5"),
        ({"correlation": float("nan")}, "got nan"),
        ({"clients": 1, "correlation": -0.5}, "one vector alone has correlation 0, got -0.5"),
        ({"clients": 0}, "clients must be a positive integer, got 0"),
        ({"dim": 0}, "dim must be a positive integer, got 0"),
        ({"shape": "base", "correlation": -0.5}, "cannot be negative, got -0.5"),
        ({"shape": "base", "dim": 3, "correlation": 1}, "different base vectors, but there are only dim = 3"),
    ],
)
def test_what_cannot_be_is_refused(given, why):
    shape = {"shape": "normal", "clients": 21, "dim": 64, "correlation": 12} | given
    with pytest.raises(InputError) as refused:
        example_vectors(shape.pop("shape"), **shape)
    assert why in str(refused.value)


def test_an_unknown_shape_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no shape of vectors named 'normale'\. Did you mean 'normal'"):
        example_vectors("normale", clients=2, dim=4, correlation=0)
