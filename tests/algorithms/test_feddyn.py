"""FedDyn: dynamic regularisation, whose corrections follow what the server decodes."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

import sketchfed
from sketchfed.algorithms import FedAvg, Iterative, SketchSettings, cohort
from sketchfed.algorithms.beside import CONTROL, GRADIENT
from sketchfed.algorithms.round_settings import DRIFT
from sketchfed.config import load_config
from sketchfed.errors import InputError, WireError
from sketchfed.runs.loop import Loop
from sketchfed.runs.objects import Objects
from sketchfed.runs.starting import prepare
from sketchfed.seeds import PublicSeed

CLIENTS, RATE, STEPS, ALPHA = 5, 0.3, 4, 0.5
ROUND = {"rounds": 6, "participation": 0.6, "local_rate": RATE, "local_steps": STEPS}


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Clients with different laws."""
    draw = torch.Generator().manual_seed(100 + client)
    x = torch.randn(12, 4, generator=draw) + client / 2
    return x, (x @ torch.randn(4, 3, generator=draw)).argmax(1)


SETS = [data(client) for client in range(CLIENTS)]


def model() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def ran(algorithm: dict, **tables):
    return sketchfed.run({"algorithm": ROUND | algorithm, **tables}, model=model(), clients=SETS, test=SETS[0])


def gradient(weights: torch.Tensor, client: int) -> torch.Tensor:
    module, (x, y) = model(), SETS[client]
    nn.utils.vector_to_parameters(weights, module.parameters())
    parts = torch.autograd.grad(functional.cross_entropy(module(x), y), list(module.parameters()))
    return torch.cat([part.reshape(-1) for part in parts])


def feddyn(rounds: int = 6, count: int = 3) -> torch.Tensor:
    """Acar et al. 2021, Alg. 1, with gradient descent as the local solver."""
    weights = nn.utils.parameters_to_vector(model().parameters()).detach()
    h, own = torch.zeros_like(weights), [torch.zeros_like(weights) for _ in range(CLIENTS)]
    for index in range(rounds):
        ends = []
        for client in cohort(PublicSeed(0), index, population=CLIENTS, count=count):
            local = weights.clone()
            for _ in range(STEPS):
                local = local - RATE * (gradient(local, client) - own[client] + ALPHA * (local - weights))
            own[client] = own[client] - ALPHA * (local - weights)
            ends.append(local)
        h = h - ALPHA / CLIENTS * torch.stack([end - weights for end in ends]).sum(0)
        weights = torch.stack(ends).mean(0) - h / ALPHA
    return weights


@pytest.mark.parametrize("participation", [0.6, 1.0])
def test_it_is_the_papers_algorithm(participation):
    found = ran({"feddyn": ALPHA, "participation": participation}).weights
    torch.testing.assert_close(found, feddyn(count=round(CLIENTS * participation)), rtol=1e-4, atol=1e-5)


WAYS = {
    "dense": ({"name": "fedavg"}, {}),
    "half precision": ({"name": "fedavg"}, {"codec": {"precision": "float16"}}),
    "qsgd": ({"name": "fedavg"}, {"codec": {"name": "qsgd"}}),
    "top_k": ({"name": "fedavg"}, {"codec": {"name": "top_k", "ratio": 0.3}}),
    "rand_k": ({"name": "fedavg"}, {"codec": {"name": "rand_k", "ratio": 0.3}}),
    "a sketch of few bits": ({"name": "fedavg"}, {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.3, "bits": 4}}),
    "sketches both ways": ({"name": "iterative"}, {"sketch": {"ratio": 0.3}}),
    "sketches by layer": ({"name": "iterative"}, {"sketch": {"ratio": 0.3, "blocks": "layer"}}),
    "secure sums": ({"name": "iterative"}, {"sketch": {"ratio": 0.3}, "secure": {"clip": 20.0}}),
    "secure sums that clip": ({"name": "iterative"}, {"sketch": {"ratio": 0.3}, "secure": {"clip": 0.05}}),
}


def looped(config: dict) -> Loop:
    """A finished run, with what its clients and its server keep."""
    objects = Objects(
        model=model(), clients=SETS, test=SETS[0], loss=None, metric=None, task="classification", redraw=None, train=None,
        evaluate=None,
    )  # fmt: skip
    chosen = objects.named_in(load_config(config))
    loop = Loop(chosen, objects.problem(chosen))
    loop.finish()
    return loop


def kept(loop: Loop, name: str) -> torch.Tensor:
    """The mean over all clients of what they keep."""
    memories = loop._host._engine.memories
    return torch.stack([memory.kept[name] for memory in memories.values()]).sum(0) / CLIENTS


@pytest.mark.parametrize("way", WAYS)
def test_the_server_keeps_the_mean_of_what_clients_keep_whatever_the_code_loses(way):
    """The server's h is the mean of the clients' gradients (Acar et al. 2021, Sec. 2.1). Here h = −α·s.

    If it broke, the model would be pulled away from where the clients meet.
    """
    algorithm, tables = WAYS[way]
    loop = looped({"algorithm": ROUND | algorithm | {"feddyn": ALPHA, "local_rate": 0.1}, **tables})
    mean, drift = kept(loop, GRADIENT), loop._server.state.replica.moments[DRIFT]
    assert mean.norm() > 1e-3, "the gradients say something"
    torch.testing.assert_close(mean, -ALPHA * drift, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "iterative"])
@pytest.mark.parametrize("setting", [{"feddyn": ALPHA}, {"scaffold": True}], ids=["feddyn", "scaffold"])
def test_a_client_that_does_not_answer_moves_no_mean(name, setting, monkeypatch, caplog):
    """The server counts the clients whose changes arrived, not those that it asked."""
    from sketchfed.rounds import Participant

    answer = Participant.answer

    def failing(self, replica, examples, memory, client):
        if (replica.round + client) % 3 == 0:
            raise RuntimeError("this client lost its power")
        return answer(self, replica, examples, memory, client)

    monkeypatch.setattr(Participant, "answer", failing)
    with caplog.at_level(logging.ERROR):
        loop = looped({"algorithm": ROUND | setting | {"name": name, "participation": 1.0, "local_rate": 0.1}})
    assert loop._server.tally.replies < 6 * CLIENTS
    replica = loop._server.state.replica
    if "feddyn" in setting:
        torch.testing.assert_close(kept(loop, GRADIENT), -ALPHA * replica.moments[DRIFT], rtol=1e-3, atol=1e-5)
    else:
        first, last = loop._algorithm.segments.control_span
        torch.testing.assert_close(kept(loop, CONTROL), replica.weights[first:last], rtol=1e-3, atol=1e-5)


def test_control_variates_follow_what_secure_sums_clip():
    config = {"algorithm": ROUND | {"name": "iterative", "scaffold": True, "local_rate": 0.1}, "secure": {"clip": 0.3}}
    loop = looped(config)
    first, last = loop._algorithm.segments.control_span
    torch.testing.assert_close(kept(loop, CONTROL), loop._server.state.replica.weights[first:last], rtol=1e-3, atol=1e-5)


UNLIKE = {"partition": "dirichlet", "concentration": 0.1, "clients": 10}


@pytest.mark.parametrize(
    "tables",
    [{}, {"codec": {"name": "sketched"}, "sketch": {"ratio": 0.5}}],
    ids=["dense", "sketched"],
)
def test_it_comes_to_a_lower_training_loss_than_fedavg_on_unlike_clients(tables):
    """As in the paper's Table 1, in the same number of rounds. Ten clients of Dirichlet(0.1), half of them in a round."""
    work = {"rounds": 25, "participation": 0.5, "local_epochs": 5, "batch": 20, "local_rate": 0.1}
    plain, dynamic = (training_loss(work | {"feddyn": alpha}, tables) for alpha in (0.0, 0.1))
    assert dynamic < 0.8 * plain


def training_loss(algorithm: dict, tables: dict) -> float:
    """The mean loss over the training examples of all clients."""
    loop = prepare(load_config({"algorithm": algorithm, "data": UNLIKE, **tables}))
    loop.finish()
    workload, trainer = loop._workload, loop._trainer
    parts = [trainer.score(loop.weights, workload.examples(client)) for client in range(10)]
    return sum(loss for loss, _ in parts) / sum(workload.sizes)


@pytest.mark.parametrize("name", ["fedavg", "iterative"])
def test_it_resumes_to_the_same_bits(name, tmp_path):
    config = {"algorithm": ROUND | {"name": name, "feddyn": ALPHA}, "engine": {"checkpoint_seconds": 0}}
    objects = {"model": model(), "clients": SETS, "test": SETS[0]}

    def stop(line):
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(config, folder=tmp_path / "run", on_round=stop, **objects)
    again = sketchfed.resume(tmp_path / "run", **objects)
    assert torch.equal(sketchfed.run(config, **objects).weights, again.weights)


def test_it_sends_no_more_than_fedavg():
    plain, dynamic = (ran({"feddyn": alpha}).metrics[-1] for alpha in (0.0, ALPHA))
    assert [plain[key] for key in ("uplink_bytes", "downlink_bytes")] == [
        dynamic[key] for key in ("uplink_bytes", "downlink_bytes")
    ]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FedAvg(feddyn=-1.0), "must not be negative"),
        (lambda: FedAvg(feddyn=float("nan")), "must be finite"),
        (lambda: FedAvg(feddyn=0.1, scaffold=True), "exclude each other"),
        (lambda: FedAvg(feddyn=0.1, global_momentum=0.9), "a server step of its own"),
        (lambda: FedAvg(feddyn=0.1, weighting="examples"), "with equal weights"),
        (lambda: FedAvg(feddyn=0.1, prediction=True).resolved(9, 3), "does not go with error_feedback or prediction"),
        (lambda: Iterative(feddyn=0.1, form="projection"), "form = 'projection'"),
        (lambda: Iterative(feddyn=0.1, sketch=SketchSettings(bits_down=4)), "drift away"),
    ],
)
def test_what_does_not_go_with_it_is_refused(make, why):
    with pytest.raises(InputError, match=why):
        make()


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"codec": {"name": "rand_k_spatial", "ratio": 0.5}}, "decodes all packets together"),
        ({"privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}}, "adds up over all rounds"),
        ({"training": {"proximal": 0.1}}, "goes with its own pull only"),
    ],
)
def test_runs_that_do_not_go_with_it_are_refused_before_round_1(tables, why):
    with pytest.raises(InputError, match=why):
        prepare(load_config({"algorithm": {"feddyn": 0.1, "rounds": 2}, "data": {"clients": 4}, **tables}))


def test_other_optimisers_also_look_for_the_minimum():
    """Unlike SCAFFOLD, the paper asks for a minimum and not for steps of a certain kind."""
    found = ran({"feddyn": ALPHA, "local_rate": 0.01}, training={"optimiser": "adam"})
    assert torch.isfinite(found.weights).all()


def test_an_update_that_claims_too_many_clients_is_refused():
    from sketchfed.wire import Packet

    algorithm = Iterative(feddyn=0.1, sketch=SketchSettings(size=4)).resolved(9, 3)
    replica = algorithm.begin(torch.zeros(9)).replica
    update = Packet(kind="mean", arrays={"values": torch.ones(4)}, clients=4)
    with pytest.raises(WireError, match="stands for 4 clients, and the run has 3"):
        algorithm.follow(replica, update, PublicSeed(0))


def test_the_label_names_it():
    assert load_config({"algorithm": {"feddyn": 0.1}}).label == "fedavg feddyn"
