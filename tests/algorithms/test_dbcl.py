"""Double-blind learning: the same as training W through S, with neither W nor a plain gradient on the wire."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from federation import Tap, advanced, federation, weights_of
from problems import SEED, examples
from sketchfed import PublicSeed, run
from sketchfed.algorithms import Dbcl, FedAvg, Replica, RoundContext
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, InputError, WireError
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.training import AutogradTrainer, PerceptronTrainer
from sketchfed.training.base import batches
from sketchfed.vectors import Layout, flatten
from sketchfed.wire import pack, split, unpack

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
        bias = name.removesuffix("weight") + "bias"
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
        form = server.algorithm.map_at(server.seed, index)
        contexts = [RoundContext(round=index, seed=server.seed, client=client) for client in range(clients)]
        work = server.algorithm.work
        each = [trained_through(module, form, weights, data[c.client], work, c.own) for c in contexts]
        weights = torch.stack(each).mean(0).float()
        torch.testing.assert_close(weights_of(server), weights, rtol=0, atol=1e-6)
    assert not torch.equal(weights, flatten(module))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MODULES)
def test_it_trains_the_weights_through_the_sketches(name, family):
    assert_trains_through_sketches(dbcl(family), MODULES[name]())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(
    "options",
    [
        {"vary": 0.4},
        {"biases": "sketched"},
        {"output": "sketched", "biases": "sketched"},
        {"output": "withheld", "biases": "withheld"},
        {"local_momentum": 0.8, "weight_decay": 0.1},
        {"exclude": ["1"]},
        {"ratio": 1.0},
    ],
    ids=str,
)
def test_so_it_does_with_every_option(name, family, options):
    module = MODULES[name]()
    if "exclude" in options and name == "convolutional":
        options = {"exclude": ["4"]}
    assert_trains_through_sketches(dbcl(family, **options), module, rounds=1, clients=2)


def test_one_local_step_is_distributed_sgd():
    """W ← W − η·(1/m)ΣΓᵢ·Sᵀ (Zhang & Wang 2021, Eq. 2): the step of the mean loss over all clients' batches."""
    module = perceptron()
    server = federated(dbcl(local_epochs=None, local_steps=1, batch=None), module=module)
    before, form = weights_of(server).clone().requires_grad_(True), server.algorithm.map_at(server.seed, 0)
    losses = [
        functional.cross_entropy(torch.func.functional_call(module, seen_weights(form, before), (part.x,)), part.y)
        for part in data_of(3)
    ]
    (gradient,) = torch.autograd.grad(sum(losses) / 3, before)
    server.advance()
    torch.testing.assert_close(weights_of(server), before.detach() - 0.1 * gradient, rtol=0, atol=1e-6)


def test_dense_layers_have_the_fast_trainer_where_steps_do_not_mix_buckets():
    server = federated(dbcl())
    trainer, context = server.engine.inner._participant.trainer, RoundContext(round=0, seed=SEED, client=0)
    slow = federated(dbcl("srht")).algorithm.local(trainer, context)
    fast = server.algorithm.local(trainer, context)
    assert (type(fast), type(slow)) == (PerceptronTrainer, AutogradTrainer)
    assert server.algorithm.local(trainer, replace(context, client=2)) is fast  # all clients of a round share one


# --- what is on the wire


def all_bytes(tap: Tap) -> bytes:
    return b"".join(message for exchange in [*tap.tasks, *tap.replies] for message in exchange.values())


def contains_run(haystack: bytes, values: torch.Tensor, *, run: int = 4) -> bool:
    """Whether so many consecutive numbers of a vector, none of them 0, occur anywhere in the bytes, at any offset."""
    numbers = values.detach().to(torch.float32).reshape(-1).numpy().astype("<f4")
    runs = [numbers[start : start + run] for start in range(len(numbers) - run + 1)]
    return any(part.tobytes() in haystack for part in runs if part.all())


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("family", ["balanced", "srht"])
def test_neither_weights_nor_a_plain_gradient_ever_travels(name, family):
    """All bytes of a run, both ways: what is there is R·w and u, and of sketched W and its changes no four numbers in a row."""
    module = MODULES[name]()
    algorithm = dbcl(family, vary=0.3, participation=0.7)
    server = federated(algorithm, module=module, clients=4)
    layout, hidden, steps = Layout.of(module), [], []
    for index in range(3):
        before = weights_of(server).clone()
        server.advance()
        form = server.algorithm.map_at(server.seed, index)
        sketched = [name for name, _ in form.layers]
        for client in server.engine.tasks[-1]:
            context = RoundContext(round=index, seed=server.seed, client=client)
            whole = trained_through(module, form, before, data_of(4)[client], algorithm.work, context.own).float()
            steps += [layout.views(whole - before)[part] for part in sketched]
            steps += [layout.views((whole - before) / -algorithm.local_rate)[part] for part in sketched]
        hidden += [layout.views(weights)[part] for weights in (before, weights_of(server)) for part in sketched]
        steps += [layout.views(weights_of(server) - before)[part] for part in sketched]
    recorded = all_bytes(server.engine)
    assert not any(contains_run(recorded, matrix) for matrix in hidden)
    assert not any(contains_run(recorded, change) for change in steps)
    # The search finds what is there: biases and the output layer travel as they are.
    assert contains_run(recorded, layout.views(weights_of_round(server, 0))[layout.names[-1]])


def weights_of_round(server, index):
    """What a client was sent, where it lies in the whole model."""
    return server.algorithm.map_at(server.seed, index).adjoint(
        unpack(next(iter(server.engine.tasks[index].values()))).arrays["weights"]
    )


def test_a_broadcast_is_the_sketch_its_seed_and_nothing_else():
    server = federated(dbcl())
    start = weights_of(server).clone()
    server.advance()
    form = server.algorithm.map_at(server.seed, 0)
    for task in server.engine.tasks[0].values():
        (part,) = split(task, most=2)
        packet = unpack(part)
        assert dict(packet.scalars) == {"round": 0}
        assert list(packet.arrays) == ["weights"]
        assert torch.equal(packet.arrays["weights"], form.apply(start))
        assert packet.seed == server.seed.child("round", 0).child("sketch")
    for reply in server.engine.replies[0].values():
        packet = unpack(reply)
        assert dict(packet.scalars) == {"round": 0}
        assert {name: tuple(array.shape) for name, array in packet.arrays.items()} == {"values": (form.size,)}


def test_a_sketched_layer_leaves_room_for_many_weights():
    """A broadcast has fewer numbers than W: what is orthogonal to S is not in it at all."""
    server = federated(dbcl())
    form, weights = server.algorithm.map_at(server.seed, 0), weights_of(server)
    sketch = form.sketches["1.weight"]
    other = torch.randn(15, sketch.dim, generator=torch.Generator().manual_seed(4))
    other -= sketch.adjoint(sketch.apply(other) / sketch.loads)  # off the rows of R
    changed = weights.clone()
    form.layout.views(changed)["1.weight"].add_(other)
    torch.testing.assert_close(form.apply(changed), form.apply(weights), rtol=0, atol=1e-5)
    assert float((changed - weights).norm()) > float(weights.norm())


def test_every_round_has_another_sketch_and_may_have_another_size():
    server = advanced(federated(dbcl(vary=0.5)), 6)
    forms = [server.algorithm.map_at(server.seed, index) for index in range(6)]
    assert len({form.layers for form in forms}) == 6
    sizes = {form.size for form in forms}
    assert len(sizes) > 2
    assert max(sizes) <= server.algorithm.code(0, RoundContext(round=0, seed=SEED, client=0)).size
    assert [len(unpack(tasks[0]).arrays["weights"]) for tasks in server.engine.tasks] == [form.size for form in forms]


def test_the_way_down_is_paid_by_each_who_takes_part_in_each_round():
    server = advanced(federated(dbcl(participation=0.5), clients=6), 4)
    sent = [len(task) for tasks in server.engine.tasks for task in tasks.values()]
    assert len(sent) == 4 * 3
    assert server.ledger.downlink_bytes == sum(sent)
    assert server.ledger.broadcast_bytes == sum(len(next(iter(tasks.values()))) for tasks in server.engine.tasks)
    whole = len(pack(FedAvg().snapshot(server.state.replica, server.seed)))
    assert 0.5 < max(sent) / whole < 0.65  # half of the sketched weights, and all of the rest


# --- what else may be sketched or withheld


def test_what_is_withheld_never_travels_and_never_changes():
    module = convolutional()
    server = federated(dbcl(output="withheld", biases="withheld"), module=module)
    start = Layout.of(module).views(weights_of(server).clone())
    form = advanced(server, 3).algorithm.map_at(server.seed, 0)
    end = Layout.of(module).views(weights_of(server))
    assert form.withheld == {"0.bias", "7.bias", "9.weight", "9.bias"}
    assert not form.withheld & set(form.seen.names)
    for name in form.withheld:
        assert torch.equal(start[name], end[name])
        assert bool((end[name] == 0).all()) == name.endswith("bias")
        assert name == "9.weight" or not torch.equal(end["9.weight"], module.get_parameter("9.weight"))
    assert not torch.equal(start["1.weight"], end["1.weight"])  # normalisation travels as it is


def test_with_everything_sketched_no_array_is_plain():
    form = federated(dbcl(output="sketched", biases="sketched")).algorithm.map_at(SEED, 0)
    assert set(form.seen.names) == set(form.sketches) == {"1.weight", "3.weight", "5.weight"}


# --- the first weights

TINY_RUN = {"data": {"clients": 4}, "algorithm": {"name": "dbcl", "rounds": 2}}


def test_the_first_weights_are_a_secret_of_the_server():
    first, second = (run(TINY_RUN) for _ in range(2))
    assert not torch.equal(first.weights, second.weights)
    shared = {**TINY_RUN, "algorithm": {**TINY_RUN["algorithm"], "public_start": True}}
    assert torch.equal(run(shared).weights, run(shared).weights)


def test_even_public_first_weights_travel_as_sketches():
    """Otherwise a client of the first round would train W itself."""
    server = federated(dbcl())
    server.advance()
    assert unpack(server.engine.tasks[0][0]).kind == "snapshot"


def test_an_interrupted_run_keeps_its_secret_start(tmp_path):
    from sketchfed import resume

    done = run({**TINY_RUN, "engine": {"checkpoint_seconds": 0.0}}, folder=tmp_path / "run")
    assert torch.equal(resume(tmp_path / "run").weights, done.weights)


# --- with noise and secure sums


@pytest.mark.parametrize("vary", [0.0, 0.5])
def test_secure_sums_and_noise_compose_with_it(vary):
    algorithm = dbcl(vary=vary, participation=0.6)
    plain = advanced(federated(algorithm, clients=6), 3)
    secure = advanced(federated(algorithm, clients=6, secure=SecureSettings(clip=50.0)), 3)
    torch.testing.assert_close(weights_of(secure), weights_of(plain), rtol=1e-3, atol=1e-4)
    noise = PrivacySettings(name="discrete_gaussian", noise_multiplier=0.5, delta=1e-3, clip=0.5, insecure_noise_seed=1)
    private = advanced(federated(algorithm, clients=6, privacy=noise, secure=SecureSettings()), 2)
    assert 0 < private.epsilon < float("inf")
    assert not any(
        contains_run(all_bytes(private.engine), w) for w in Layout.of(perceptron()).views(weights_of(private)).values()
    )


@pytest.mark.parametrize("placement", ["sent", "steps"])
def test_noise_in_each_local_step_goes_through_the_sketch(placement):
    """With next to no noise and batches that everyone is in, several private steps are several plain ones."""
    work = {"local_epochs": None, "local_steps": 3, "batch": 100, "vary": 0.4}
    noise = PrivacySettings(
        unit="example", placement=placement, noise_multiplier=1e-12, delta=1e-3, clip=1e3, insecure_noise_seed=2
    )
    data = [examples(16, shape=SHAPE) for _ in range(3)]
    settings = {"module": perceptron(), "loss": "cross_entropy"}
    plain = advanced(federation(dbcl(**work), data, **settings), 2)
    # A private step divides by the batch that is expected, not by the one that came.
    private = advanced(federation(dbcl(**work, local_rate=0.1 * 100 / 16), data, privacy=noise, **settings), 2)
    torch.testing.assert_close(weights_of(private), weights_of(plain), rtol=1e-3, atol=1e-4)


def test_noise_is_in_what_clients_say():
    noise = PrivacySettings(noise_multiplier=2.0, delta=1e-3, clip=0.1, insecure_noise_seed=2)
    server = advanced(federated(dbcl(), privacy=noise), 1)
    sent = unpack(server.engine.replies[0][0]).arrays["values"]
    # ‖noise‖² is (2·0.1)²·χ² with as many degrees of freedom as numbers; six deviations: false alarm below 1e-8.
    assert abs(float((sent / 0.2).square().sum()) / len(sent) - 1) < 6 * np.sqrt(2 / len(sent)) + 0.5 / len(sent)


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": 1.0}, "algorithm.vary is a share of a sketch's size, from 0 to below 1, got 1.0"),
        ({"output": "hidden"}, "there is no algorithm.output named 'hidden'"),
        ({"biases": 3}, "algorithm.biases"),
        ({"exclude": "1"}, "algorithm.exclude must be a list"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(InputError) as caught:
        load_config({"algorithm": {"name": "dbcl", **settings}})
    assert message in str(caught.value)


def test_sketches_of_few_bits_are_refused():
    with pytest.raises(InputError, match=r"sends its sketches as float32\. Remove sketch.bits"):
        load_config({"algorithm": {"name": "dbcl"}, "sketch": {"bits": 4}})


def test_the_default_is_half_of_each_layers_inputs():
    config = load_config({"algorithm": {"name": "dbcl"}, "sketch": {"name": "count"}})
    assert (config.algorithm.sketch.ratio, config.label) == (0.5, "dbcl count 1/2")
    assert load_config({"algorithm": {"name": "dbcl"}}).label == "dbcl balanced 1/2"
    form = Dbcl(sketch=SketchSettings(name="balanced", size=20)).fitted(perceptron()).map_at(SEED, 0)
    assert [sketch.size for _, sketch in form.layers] == [20, 15]


def test_a_model_with_nothing_to_sketch_is_refused():
    with pytest.raises(InputError, match="nothing of Sequential would be sketched"):
        Dbcl().fitted(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    with pytest.raises(InputError, match="'seven'"):
        Dbcl(exclude=["seven"]).fitted(perceptron())


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(nn.Conv2d(4, 4, 3, groups=2), "Conv2d"), (nn.Embedding(5, 3), "Embedding"), (nn.Bilinear(2, 3, 4), "Bilinear")],
)
def test_no_layer_travels_as_it_is_unless_that_is_said(layer, kind):
    module = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2))
    with pytest.raises(InputError, match=rf"layer '1' \({kind}\) cannot be sketched, so clients would see its weights"):
        Dbcl().fitted(module)
    form = Dbcl(exclude=["1"]).fitted(module).map_at(SEED, 0)
    assert list(form.sketches) == ["0.weight"]
    assert "1.weight" in form.seen.names


def test_layers_that_share_weights_are_refused_too():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    with pytest.raises(InputError, match="weights of their own"):
        Dbcl().fitted(module)


def test_a_client_refuses_sketches_that_were_not_drawn_from_the_runs_seed():
    server = federated(dbcl())
    participant = server.engine.inner._participant
    honest = server.algorithm.snapshot(server.state.replica, SEED)
    assert participant.receive(None, pack(honest)).round == 0
    for other in (PublicSeed(3), None):
        with pytest.raises(WireError, match="were not drawn from the run's seed"):
            participant.receive(None, pack(replace(honest, seed=other)))
    with pytest.raises(WireError, match="weights"):
        participant.receive(None, pack(replace(honest, arrays={"weights": torch.zeros(7)})))
    whole = FedAvg().snapshot(Replica(round=0, weights=weights_of(server)), SEED)
    with pytest.raises(WireError):
        participant.receive(None, pack(whole))


@pytest.mark.parametrize("values", [torch.zeros(3), torch.zeros(10_000), torch.full((716,), 1e30)], ids=["few", "many", "wild"])
def test_one_bad_reply_does_not_stop_a_round(values):
    def tamper(replies):
        return {**replies, 0: pack(replace(unpack(replies[0]), arrays={"values": values}))}

    server = federated(dbcl(), tamper=tamper)
    server.advance()
    assert (server.ledger.refused, server.ledger.replies) == (1, 2)


def test_steps_that_are_too_long_are_told_apart_from_bad_clients():
    with pytest.raises(DivergedError):
        advanced(federated(dbcl(local_rate=1e30)), 3)
