"""What blind clients are sent and send, and what is refused on either side."""

from dataclasses import replace

import pytest
import torch
from blind_federation import (
    MODULES,
    all_bytes,
    contains_run,
    data_of,
    dbcl,
    federated,
    perceptron,
    trained_through,
)
from torch import nn

from federation import advanced, snapshot, weights_of
from problems import SEED
from sketchfed import PublicSeed
from sketchfed.algorithms import Dbcl, FedAvg, Replica, RoundContext
from sketchfed.algorithms.settings import SketchSettings
from sketchfed.config import load_config
from sketchfed.errors import DivergedError, InputError, WireError
from sketchfed.vectors import Layout
from sketchfed.wire import pack, split, unpack


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
        form = server.algorithm.given(server.seed, index).sketch
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
    return server.algorithm.given(server.seed, index).sketch.adjoint(
        unpack(next(iter(server.engine.tasks[index].values()))).arrays["weights"]
    )


def test_a_broadcast_is_the_sketch_its_seed_and_nothing_else():
    server = federated(dbcl())
    start = weights_of(server).clone()
    server.advance()
    form = server.algorithm.given(server.seed, 0).sketch
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
    form, weights = server.algorithm.given(server.seed, 0).sketch, weights_of(server)
    sketch = form.sketches["1.weight"]
    other = torch.randn(15, sketch.dim, generator=torch.Generator().manual_seed(4))
    other -= sketch.adjoint(sketch.apply(other) / sketch.loads)  # off the rows of R
    changed = weights.clone()
    form.layout.views(changed)["1.weight"].add_(other)
    torch.testing.assert_close(form.apply(changed), form.apply(weights), rtol=0, atol=1e-5)
    assert float((changed - weights).norm()) > float(weights.norm())


def test_every_round_has_another_sketch_and_may_have_another_size():
    server = advanced(federated(dbcl(vary=0.5)), 6)
    forms = [server.algorithm.given(server.seed, index).sketch for index in range(6)]
    assert len({form.layers for form in forms}) == 6
    sizes = {form.size for form in forms}
    assert len(sizes) > 2
    assert max(sizes) <= server.algorithm.code(0, RoundContext(round=0, seed=SEED, client=0)).size
    assert [len(unpack(tasks[0]).arrays["weights"]) for tasks in server.engine.tasks] == [form.size for form in forms]


def test_the_way_down_is_paid_by_each_who_takes_part_in_each_round():
    server = advanced(federated(dbcl(participation=0.5), clients=6), 4)
    sent = [len(task) for tasks in server.engine.tasks for task in tasks.values()]
    assert len(sent) == 4 * 3
    assert server.tally.downlink_bytes == sum(sent)
    assert server.tally.broadcast_bytes == sum(len(next(iter(tasks.values()))) for tasks in server.engine.tasks)
    whole = len(pack(snapshot(FedAvg(), server.state.replica)))
    assert 0.5 < max(sent) / whole < 0.65  # half of the sketched weights, and all of the rest


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": 1.0}, "algorithm.vary is a share of a sketch's size, so it must be from 0 to below 1, got 1.0"),
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
    form = Dbcl(sketch=SketchSettings(name="balanced", size=20)).resolved(1, module=perceptron()).given(SEED, 0).sketch
    assert [sketch.size for _, sketch in form.layers] == [20, 15]


def test_a_model_with_nothing_to_sketch_is_refused():
    with pytest.raises(InputError, match="nothing of Sequential would be sketched"):
        Dbcl().resolved(1, module=nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    with pytest.raises(InputError, match="'seven'"):
        Dbcl(exclude=["seven"]).resolved(1, module=perceptron())


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(nn.Conv2d(4, 4, 3, groups=2), "Conv2d"), (nn.Embedding(5, 3), "Embedding"), (nn.Bilinear(2, 3, 4), "Bilinear")],
)
def test_no_layer_travels_as_it_is_unless_that_is_said(layer, kind):
    module = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2))
    with pytest.raises(InputError, match=rf"layer '1' \({kind}\) cannot be sketched, so clients would see its weights"):
        Dbcl().resolved(1, module=module)
    form = Dbcl(exclude=["1"]).resolved(1, module=module).given(SEED, 0).sketch
    assert list(form.sketches) == ["0.weight"]
    assert "1.weight" in form.seen.names


def test_layers_that_share_weights_are_refused_too():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    with pytest.raises(InputError, match="weights of their own"):
        Dbcl().resolved(1, module=module)


def test_a_client_refuses_sketches_that_were_not_drawn_from_the_runs_seed():
    server = federated(dbcl())
    participant = server.engine.inner._participant
    honest = snapshot(server.algorithm, server.state.replica)
    assert participant.receive(None, pack(honest)).round == 0
    for other in (PublicSeed(3), None):
        with pytest.raises(WireError, match="were not drawn from the run's seed"):
            participant.receive(None, pack(replace(honest, seed=other)))
    with pytest.raises(WireError, match="weights"):
        participant.receive(None, pack(replace(honest, arrays={"weights": torch.zeros(7)})))
    whole = snapshot(FedAvg(), Replica(round=0, weights=weights_of(server)))
    with pytest.raises(WireError):
        participant.receive(None, pack(whole))


@pytest.mark.parametrize("values", [torch.zeros(3), torch.zeros(10_000), torch.full((716,), 1e30)], ids=["few", "many", "wild"])
def test_one_bad_reply_does_not_stop_a_round(values):
    def tamper(replies):
        return {**replies, 0: pack(replace(unpack(replies[0]), arrays={"values": values}))}

    server = federated(dbcl(), tamper=tamper)
    server.advance()
    assert (server.tally.refused, server.tally.replies) == (1, 2)


def test_steps_that_are_too_long_are_told_apart_from_bad_clients():
    with pytest.raises(DivergedError):
        advanced(federated(dbcl(local_rate=1e30)), 3)
