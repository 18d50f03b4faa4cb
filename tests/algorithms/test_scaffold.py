"""SCAFFOLD: control variates that travel in the code of the update."""

import pytest
import torch
from torch import nn

import sketchfed
from sketchfed.algorithms import FedAvg, Iterative, SketchSettings, cohort
from sketchfed.errors import InputError
from sketchfed.runs.starting import prepare
from sketchfed.seeds import PublicSeed

CURVES = [torch.tensor([1.0, 8.0]), torch.tensor([6.0, 1.0]), torch.tensor([2.0, 3.0]), torch.tensor([9.0, 0.5])]
"""The curvatures of four clients' quadratics, whose minima are at (1, 0), (−1, 2), (0, −3) and (2, 1)."""
MINIMA = [torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 2.0]), torch.tensor([0.0, -3.0]), torch.tensor([2.0, 1.0])]
BEST = torch.stack([c * m for c, m in zip(CURVES, MINIMA, strict=True)]).sum(0) / torch.stack(CURVES).sum(0)
RATE, STEPS = 0.05, 10


class Point(nn.Module):
    def __init__(self, dim: int = 2) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(dim))


def quadratic(model, batch):
    curve, minimum = batch[0][: len(batch[0]) // 2], batch[0][len(batch[0]) // 2 :]
    return 0.5 * (curve * (model.at - minimum).square()).sum()


CLIENTS = [torch.cat([curve, minimum])[None] for curve, minimum in zip(CURVES, MINIMA, strict=True)]


def trained(rounds: int, algorithm: dict, **tables):
    table = {"local_steps": STEPS, "local_rate": RATE, "rounds": rounds, **algorithm}
    return sketchfed.run({"algorithm": table, **tables}, model=Point(), clients=CLIENTS, batch_loss=quadratic)


def scaffold(rounds: int, count: int) -> torch.Tensor:
    """Karimireddy et al. 2020, Alg. 1, Option II, with a global rate of 1."""
    x, c, own = torch.zeros(2), torch.zeros(2), [torch.zeros(2) for _ in CLIENTS]
    for index in range(rounds):
        changes, controls = [], []
        for client in cohort(PublicSeed(0), index, population=4, count=count):
            y = x.clone()
            for _ in range(STEPS):
                y -= RATE * (CURVES[client] * (y - MINIMA[client]) - own[client] + c)
            new = own[client] - c + (x - y) / (STEPS * RATE)
            changes.append(y - x)
            controls.append(new - own[client])
            own[client] = new
        x = x + torch.stack(changes).mean(0)
        c = c + torch.stack(controls).sum(0) / 4
    return x


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_it_is_the_papers_algorithm(participation):
    found = trained(6, {"scaffold": True, "participation": participation}).weights
    assert torch.allclose(found, scaffold(6, round(4 * participation)), atol=1e-5)


def test_it_comes_to_the_optimum_where_fedavg_stays_away():
    """With unlike clients and many local steps, FedAvg converges to another point (Karimireddy et al. 2020, Thm II, Fig. 3)."""
    plain, corrected = trained(200, {}).weights, trained(200, {"scaffold": True}).weights
    assert (plain - BEST).norm() > 0.2
    assert (corrected - BEST).norm() < 1e-3


WAYS = {
    "dense": ({"name": "fedavg"}, {}),
    "qsgd": ({"name": "fedavg"}, {"codec": {"name": "qsgd"}}),
    "top_k": ({"name": "fedavg"}, {"codec": {"name": "top_k", "ratio": 0.3}}),
    "rand_k": ({"name": "fedavg"}, {"codec": {"name": "rand_k", "ratio": 0.3}}),
    "eden": ({"name": "fedavg"}, {"codec": {"name": "eden"}}),
    "a sketch of few bits": ({"name": "fedavg"}, {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.3, "bits": 4}}),
    "sketches both ways": ({"name": "iterative"}, {"sketch": {"ratio": 0.3}}),
    "sketches by layer": ({"name": "iterative"}, {"sketch": {"ratio": 0.3, "blocks": "layer"}}),
    "secure sums": ({"name": "iterative"}, {"sketch": {"ratio": 0.3}, "secure": {"clip": 20.0}}),
}


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


@pytest.mark.parametrize("way", WAYS)
def test_the_servers_variate_is_the_mean_of_the_clients_whatever_the_code_loses(way):
    """This is the invariant of the paper (Sec. 4). If it broke, all clients would be corrected towards a wrong point."""
    algorithm, tables = WAYS[way]
    generator = torch.Generator().manual_seed(3)
    clients = [(torch.randn(9, 6, generator=generator) + at, torch.arange(9) % 3) for at in range(4)]
    table = {**algorithm, "scaffold": True, "participation": 0.75, "rounds": 8, "local_steps": 4, "local_rate": 0.05}
    run = sketchfed.run({"algorithm": table, **tables}, model=wide(), clients=clients, test=clients[0], folder=None)
    assert torch.isfinite(run.weights).all()
    mean, server = variates({"algorithm": table, **tables}, clients)
    assert server.norm() > 1e-4, "the variates say something"
    assert torch.allclose(mean, server, atol=1e-4 if "secure" in tables else 1e-5)


def variates(config, clients):
    """The mean of the clients' variates, and the server's."""
    from sketchfed.algorithms.beside import CONTROL
    from sketchfed.config import load_config
    from sketchfed.runs.loop import Loop
    from sketchfed.runs.objects import Objects

    objects = Objects(
        model=wide(), clients=clients, test=clients[0], loss=None, metric=None, task="classification", redraw=None, train=None,
        evaluate=None,
    )  # fmt: skip
    chosen = objects.named_in(load_config(config))
    loop = Loop(chosen, objects.problem(chosen))
    loop.finish()
    memories = loop._host._engine.memories
    first, last = loop._algorithm.segments.control_span
    own = [memories[client].kept[CONTROL] for client in memories]
    return torch.stack(own).sum(0) / len(clients), loop._server.state.replica.weights[first:last]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FedAvg(scaffold=True, local_momentum=0.9), "only plain SGD steps allow"),
        (lambda: FedAvg(scaffold=True, global_momentum=0.9), "only plain SGD steps allow"),
        (lambda: FedAvg(scaffold=True, error_feedback=True).resolved(9, 3), "does not go with error_feedback or prediction"),
        (lambda: Iterative(scaffold=True, form="projection"), "form = 'projection'"),
        (lambda: Iterative(scaffold=True, sketch=SketchSettings(bits_down=4)), "drift away"),
    ],
)
def test_what_does_not_go_with_control_variates_is_refused(make, why):
    with pytest.raises(InputError, match=why):
        make()


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"codec": {"name": "rand_k_spatial", "ratio": 0.5}}, "decodes all packets together"),
        ({"privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}}, "adds up over all rounds"),
        ({"training": {"optimiser": "adam"}}, "only plain SGD steps allow"),
    ],
)
def test_runs_that_do_not_go_with_control_variates_are_refused_before_round_1(tables, why):
    with pytest.raises(InputError, match=why):
        prepare_of(tables)


def prepare_of(tables):
    from sketchfed.config import load_config

    prepare(load_config({"algorithm": {"scaffold": True, "rounds": 2}, "data": {"clients": 4}, **tables}))


def test_a_loop_of_ones_own_is_told_to_pass_its_loss():
    with pytest.raises(InputError, match="pass the loss as batch_loss"):
        sketchfed.run({"algorithm": {"scaffold": True}}, model=Point(), clients=CLIENTS, train=lambda *_: None)


def test_a_client_whose_training_failed_moves_no_variate():
    """Otherwise x − y = 0 would be taken for a gradient of zero."""
    from sketchfed.algorithms.beside import ControlledTrainer
    from sketchfed.training import LocalWork, OfBatch, Turn, examples_in, make_trainer
    from sketchfed.training.total import TotalTrainer

    def fails(model, batch):
        raise ValueError("no")

    algorithm = FedAvg(scaffold=True).resolved(2, 4, Point())
    trainer = TotalTrainer(make_trainer(Point(), OfBatch(fails)))
    controlled = ControlledTrainer(trainer, algorithm.segments, algorithm, PublicSeed(0))
    turn, weights = Turn(PublicSeed(1)), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(controlled.train(weights, examples_in(CLIENTS[0]), LocalWork(rate=0.1, steps=2), turn), weights)
    assert not turn.kept
