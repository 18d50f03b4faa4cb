import math

import pytest
import torch

from sketchfed.errors import InputError
from sketchfed.planner import LinearRegression, LogisticRegression


def clients(rows=(30, 17, 40), dim=6, seed=7):
    """Clients that differ in how many examples they have, in scale and in what they want."""
    generator = torch.Generator().manual_seed(seed)
    features = [(1 + c) * torch.randn(n, dim, generator=generator, dtype=torch.float64) for c, n in enumerate(rows)]
    truth = torch.randn(len(rows), dim, generator=generator, dtype=torch.float64)
    noise = [2 * torch.randn(n, generator=generator, dtype=torch.float64) for n in rows]
    return features, [x @ w + e for x, w, e in zip(features, truth, noise, strict=True)]


def logistic(regularisation=0.1):
    features, targets = clients()
    return LogisticRegression(features=features, labels=[(y > 0).long() for y in targets], regularisation=regularisation)


def linear(regularisation=0.0):
    features, targets = clients()
    return LinearRegression(features=features, labels=targets, regularisation=regularisation)


def local_loss(problem, client):
    """f_c written down once more, for autograd."""
    x, y, mu = problem.features[client], problem.labels[client], problem.regularisation

    def loss(w):
        z = x @ w
        if isinstance(problem, LinearRegression):
            return ((z - y) ** 2 / 2).mean() + mu / 2 * w.square().sum()
        sign = 2.0 * y - 1
        return torch.log(1 + torch.exp(-sign * z)).mean() + mu / 2 * w.square().sum()

    return loss


@pytest.mark.parametrize("problem", [logistic(), linear()], ids=["logistic", "linear"])
def test_losses_and_gradients_are_those_of_autograd(problem):
    points = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for client in range(3):
        for w, gradient in zip(points[client], problem.gradients(points)[client], strict=True):
            expected = torch.func.grad(local_loss(problem, client))(w)
            assert torch.allclose(gradient, expected, rtol=1e-12)
    mean = torch.stack([local_loss(problem, client)(points[0, 0]) for client in range(3)]).mean()
    assert torch.allclose(problem.loss(points)[0, 0], mean, rtol=1e-12)


@pytest.mark.parametrize("problem", [logistic(), linear()], ids=["logistic", "linear"])
def test_the_constants_are_those_of_autograd(problem):
    """A logistic loss bends most at w = 0, where its Hessian is the bound itself; a parabola bends alike everywhere."""
    zero = torch.zeros(6, dtype=torch.float64)
    hessians = torch.stack([torch.func.hessian(local_loss(problem, client))(zero) for client in range(3)])
    measured, optimum = problem.measure(), problem.minimiser
    assert torch.allclose(problem.hessian_bounds, hessians, rtol=1e-12)
    assert measured.smoothness == pytest.approx(float(torch.linalg.eigvalsh(hessians).max()))
    assert measured.top_curvature == pytest.approx(float(torch.linalg.eigvalsh(hessians.mean(0)).max()))
    assert measured.total_curvature == pytest.approx(float(hessians.mean(0).trace()))
    gradients = torch.stack([torch.func.grad(local_loss(problem, client))(optimum) for client in range(3)])
    assert measured.heterogeneity == pytest.approx(float(gradients.square().sum(1).mean()))
    assert gradients.mean(0).norm() < 1e-13 * gradients.norm(dim=1).max() + 1e-13
    assert measured.square_distance == pytest.approx(float(optimum.square().sum()))
    assert measured.gap == pytest.approx(float(problem.loss(zero) - problem.loss(optimum)))


def test_strong_convexity_is_the_regularisation_and_for_parabolas_what_the_data_add():
    assert logistic(0.1).measure().strong_convexity == 0.1
    assert logistic(0.0).measure().strong_convexity == 0
    problem = linear(0.25)
    least = min(float(torch.linalg.eigvalsh(x.T @ x / len(x))[0]) for x in problem.features)
    assert least > 0.01
    assert problem.measure().strong_convexity == pytest.approx(0.25 + least)


def test_the_hessian_bound_holds_everywhere():
    problem = logistic()
    for w in 3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64):
        spare = problem.hessian_bounds[1] - torch.func.hessian(local_loss(problem, 1))(w)
        assert torch.linalg.eigvalsh(spare)[0] > 0


def test_clients_weigh_alike_however_many_examples_they_have():
    """Showing every example of one client twice changes nothing."""
    once = logistic()
    twice = LogisticRegression(
        features=[once.features[0].repeat(2, 1), *once.features[1:]],
        labels=[once.labels[0].repeat(2), *once.labels[1:]],
        regularisation=0.1,
    )
    assert torch.allclose(once.minimiser, twice.minimiser, rtol=1e-10)
    assert once.measure().heterogeneity == pytest.approx(twice.measure().heterogeneity)


def test_labels_may_be_zero_and_one_or_minus_one_and_one():
    zero_one = logistic()
    signs = LogisticRegression(features=zero_one.features, labels=[2 * y - 1 for y in zero_one.labels], regularisation=0.1)
    assert torch.equal(zero_one.minimiser, signs.minimiser)


def test_without_a_unique_minimiser_the_nearest_counts():
    """The last coordinate never appears in the data, so w* may have anything there."""
    features, targets = clients()
    problem = LinearRegression(features=[x * torch.tensor([1, 1, 1, 1, 1, 0.0]) for x in features], labels=targets)
    start = torch.tensor([0, 0, 0, 0, 0, 5.0])
    assert problem.minimiser[-1] == pytest.approx(0, abs=1e-12)
    assert problem.measure().strong_convexity == 0
    assert problem.measure(start).square_distance == pytest.approx(problem.measure().square_distance)
    assert problem.measure(start + 1).square_distance != pytest.approx(problem.measure().square_distance)


def test_newton_converges_from_far_where_a_full_step_would_overshoot():
    """Two classes that overlap in one example: the optimum is large, and the loss flat on the way."""
    x = torch.tensor([[1.0], [2.0], [3.0], [0.001]])
    problem = LogisticRegression(features=[x], labels=[torch.tensor([1, 1, 1, 0])])
    w = problem.minimiser
    assert problem.gradients(w.expand(1, 1, -1)).abs().max() < 1e-12
    assert w > 5


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: LogisticRegression(features=[], labels=[]), "at least one client"),
        (lambda: LinearRegression(features=[torch.ones(3, 2)], labels=[torch.ones(2)]), "got (3, 2) and (2,)"),
        (lambda: LinearRegression(features=[torch.ones(3, 2), torch.ones(3, 1)], labels=[torch.ones(3)] * 2), "client 1"),
        (lambda: LinearRegression(features=[torch.full((1, 1), math.nan)], labels=[torch.ones(1)]), "NaN or infinite"),
        (lambda: LogisticRegression(features=[torch.ones(2, 1)], labels=[torch.tensor([0, 2])]), "got 0, 2"),
        (lambda: LogisticRegression(features=[torch.ones(1, 1)], labels=[torch.ones(1)], regularisation=-1), "from 0, got -1"),
        (
            lambda: LogisticRegression(features=[torch.tensor([[1.0], [-1.0]])], labels=[torch.tensor([1, 0])]).measure(),
            "Set the regularisation (strong convexity) above 0",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(make, why):
    with pytest.raises(InputError) as refused:
        make()
    assert why in str(refused.value)
