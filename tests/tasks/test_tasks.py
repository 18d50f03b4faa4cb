"""The tasks: exact with a channel that loses nothing, and measured as described."""

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import Channel, make_codec
from sketchfed.errors import DivergedError, InputError
from sketchfed.tasks import k_means, linear_regression, power_iteration

DIM, CLIENTS = 12, 4


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def channel(name: str = "dense", **how: object) -> Channel:
    return Channel(make_codec(name, dim=DIM, size=3, clients=CLIENTS), PublicSeed(7), **how)


class Exact:
    """A mean without a codec, which counts no bytes."""

    def mean(self, vectors, present=None):
        if present is None:
            return vectors.mean(0)
        return (vectors * present[..., None]).sum(0) / present.sum(0).clamp(min=1)[:, None]


# Power iteration


def stretched(rows: int = 50, seed: int = 1) -> torch.Tensor:
    return normal(rows, DIM, seed=seed) * torch.linspace(1, 3, DIM)


def test_power_iteration_converges_to_the_top_eigenvector():
    """Clients whose second moments agree: each has the same rows, rotated among themselves by an orthogonal matrix."""
    x = stretched()
    clients = [torch.linalg.qr(normal(50, 50, seed=i)).Q @ x for i in range(CLIENTS)]
    history = power_iteration(clients, channel(), iterations=300, start=normal(DIM))
    top = torch.linalg.eigh(x.T.double() @ x.double()).eigenvectors[:, -1].float()
    assert history.losses[-1] < 1e-3
    assert abs(float(history.result @ top)) > 1 - 1e-6
    assert max(history.errors) < 1e-12


def test_power_iteration_averages_unit_vectors_of_one_local_step():
    clients, v = [stretched(seed=i) for i in range(CLIENTS)], normal(DIM) / normal(DIM).norm()
    history = power_iteration(clients, channel(), iterations=1, start=3 * normal(DIM))
    steps = [x.T @ x @ v for x in clients]
    mean = sum(step / step.norm() for step in steps) / CLIENTS
    assert torch.allclose(history.result, mean / mean.norm(), atol=1e-5)


def test_the_sign_of_an_eigenvector_does_not_matter():
    clients = [stretched(seed=i) for i in range(CLIENTS)]
    target = torch.linalg.eigh(sum(x.T @ x for x in clients)).eigenvectors[:, -1]
    runs = [
        power_iteration(clients, channel(), iterations=20, start=sign * normal(DIM), target=5 * way * target)
        for sign, way in ((1, 1), (-1, 1), (1, -1))
    ]
    assert runs[0].losses == pytest.approx(runs[1].losses, abs=1e-5)
    assert runs[0].losses == pytest.approx(runs[2].losses, abs=1e-5)
    unasked = power_iteration(clients, channel(), iterations=20, start=normal(DIM))
    assert runs[0].losses == pytest.approx(unasked.losses, abs=1e-4)


def test_a_mean_of_zero_leaves_the_eigenvector_where_it_is():
    class Silent:
        def mean(self, vectors):
            return torch.zeros(DIM)

    history = power_iteration([stretched()], Silent(), iterations=2, start=2 * torch.eye(DIM)[3])
    assert torch.equal(history.result, torch.eye(DIM)[3])


# k-means


def blobs(rows: int, seed: int) -> torch.Tensor:
    centres = 8 * normal(3, DIM, seed=9)
    return centres[torch.arange(rows) % 3] + normal(rows, DIM, seed=seed)


def test_k_means_is_lloyds_algorithm_with_means_over_clients():
    """Those without examples near a centroid do not count."""
    clients = [blobs(30, seed=i) for i in range(CLIENTS)]
    clients[0] = clients[0][::3]  # one blob
    centroids = start = 8 * normal(3, DIM, seed=9) + normal(3, DIM)
    history = k_means(clients, channel(), iterations=4, start=start)
    for _ in range(4):
        nearest = [torch.cdist(x, centroids).argmin(1) for x in clients]
        local = [[x[labels == j].mean(0) for x, labels in zip(clients, nearest, strict=True) if j in labels] for j in range(3)]
        assert [len(means) for means in local] == [4, 3, 3]
        centroids = torch.stack([sum(means) / len(means) for means in local])
    assert torch.allclose(history.result, centroids, atol=1e-4)
    loss = float(torch.cdist(torch.cat(clients), centroids).square().min(1).values.sum())
    assert history.losses[-1] == pytest.approx(loss, rel=1e-4)
    assert max(history.errors) < 1e-9


def test_a_centroid_that_nobody_is_near_stays():
    clients = [blobs(30, seed=i) for i in range(CLIENTS)]
    start = torch.cat([8 * normal(3, DIM, seed=9), torch.full((1, DIM), 1e3)])
    history = k_means(clients, channel(), iterations=2, start=start)
    assert torch.equal(history.result[3], start[3])
    assert max(history.errors) < 1e-9


def test_k_means_of_one_client_is_lloyds_algorithm():
    """From a centroid near each blob it ends with their means, and its loss never grows."""
    x = blobs(90, seed=1)
    history = k_means([x], Exact(), iterations=10, start=x[:3])
    assert torch.allclose(history.result, torch.stack([x[j::3].mean(0) for j in range(3)]), atol=1e-4)
    assert all(after <= before * (1 + 1e-6) for before, after in zip(history.losses, history.losses[1:], strict=False))


def test_errors_of_clusters_are_averaged():
    clients = [blobs(30, seed=i) for i in range(CLIENTS)]
    lossy = channel("rand_k")
    seen = []

    class Spy:
        def mean(self, vectors, present):
            means = lossy.mean(vectors, present)
            exact = Exact().mean(vectors, present)
            seen.append(float((means - exact).square().sum() / int(present.any(0).sum())))
            return means

    start = torch.cat([clients[0][:3], torch.full((1, DIM), 1e3)])
    assert k_means(clients, Spy(), iterations=3, start=start).errors == pytest.approx(seen)


# Linear regression


def pairs(rows: int = 40) -> list[tuple[torch.Tensor, torch.Tensor]]:
    data = [normal(rows, DIM, seed=i) for i in range(CLIENTS)]
    return [(x, x @ normal(DIM, seed=8) + 0.1 * normal(rows, seed=20 + i)) for i, x in enumerate(data)]


def test_linear_regression_is_gradient_descent_on_all_data():
    clients = pairs()
    history = linear_regression(clients, channel(), iterations=25, rate=0.05)
    x, y = (torch.cat(part).double() for part in zip(*clients, strict=True))
    w, losses = torch.zeros(DIM, dtype=torch.float64, requires_grad=True), []
    for _ in range(25):
        (gradient,) = torch.autograd.grad((x @ w - y).square().mean(), w)
        w = (w - 0.05 * gradient).detach().requires_grad_()
        losses.append((x @ w - y).square().mean().item())
    assert history.losses == pytest.approx(losses, rel=1e-4)
    assert torch.allclose(history.result.double(), w.detach(), atol=1e-5)


def test_linear_regression_starts_where_it_is_told():
    weights = normal(DIM, seed=8)
    history = linear_regression(pairs(), Exact(), iterations=1, rate=1e-9, start=weights)
    assert history.losses[0] == pytest.approx(0.01, rel=0.3)


# What they have in common


@pytest.mark.parametrize("name", ["rand_k", "wangni", "dense"])
def test_histories_have_what_a_client_sent(name):
    open_channel = channel(name)
    history = linear_regression(pairs(), open_channel, iterations=5, rate=0.01)
    assert len(history.errors) == len(history.losses) == len(history.client_bytes) == open_channel.rounds == 5
    assert history.client_bytes[-1] == open_channel.bytes_sent / CLIENTS
    assert all(before < after for before, after in zip(history.client_bytes, history.client_bytes[1:], strict=False))
    assert linear_regression(pairs(), Exact(), iterations=2, rate=0.01).client_bytes == (0, 0)


def test_codecs_that_err_less_get_further():
    clients = [stretched(seed=i) for i in range(CLIENTS)]
    ends = {
        name: power_iteration(clients, channel(name), iterations=40, start=normal(DIM)).losses[-1]
        for name in ("dense", "rand_k")
    }
    assert ends["dense"] < ends["rand_k"]


def test_what_overflows_is_reported_as_such():
    clients = [(1e10 * x, y) for x, y in pairs()]
    with pytest.raises(DivergedError, match="numbers overflowed in iteration"):
        linear_regression(clients, Exact(), iterations=10, rate=1.0)

    class Broken:
        def mean(self, vectors):
            return vectors.mean(0) / 0

    with pytest.raises(DivergedError, match="numbers overflowed in iteration 1"):
        linear_regression(pairs(), Broken(), iterations=10, rate=0.1)


def test_what_cannot_be_computed_is_refused():
    good = stretched()
    for clients in ([good, good[:, :3]], [good[:0]], [good[0]]):
        with pytest.raises(InputError, match=r"each client's data is a matrix"):
            power_iteration(clients, Exact(), iterations=1, start=normal(DIM))
    with pytest.raises(InputError, match="k-means needs at least one client's data"):
        k_means([], Exact(), iterations=1, start=good[:2])
    for start in (torch.zeros(DIM), torch.ones(DIM + 1)):
        with pytest.raises(InputError, match="start is a vector of 12 numbers that is not zero"):
            power_iteration([good], Exact(), iterations=1, start=start)
    for start in (good[0], good[:0], good[:2, :3]):
        with pytest.raises(InputError, match="start holds centroids of 12 numbers"):
            k_means([good], Exact(), iterations=1, start=start)
    with pytest.raises(InputError, match="at least one iteration, got iterations=0"):
        k_means([good], Exact(), iterations=0, start=good[:2])
    with pytest.raises(InputError, match=r"client 0 has 50 examples, but targets of shape \(49,\)"):
        linear_regression([(good, good[1:, 0])], Exact(), iterations=1, rate=0.1)
    with pytest.raises(InputError, match="the rate is a positive number, got -1"):
        linear_regression(pairs(), Exact(), iterations=1, rate=-1)
    with pytest.raises(InputError, match="start is a vector of 12 numbers, got"):
        linear_regression(pairs(), Exact(), iterations=1, rate=1, start=good)
