"""Federated averaging with every codec there is: a new one is tested by being registered."""

from dataclasses import replace

import pytest
import torch

import sketchfed
from federation import SEED, advanced, data_of, federation, weights_of
from problems import dense_model
from sketchfed.algorithms import Change, FedAvg, RoundContext, cohort
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.codecs import CODECS, option_names
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.wire import pack, unpack

DIM = 64
WORK = {"rounds": 8, "local_steps": 5, "local_rate": 0.5}
STATES = {
    "plain": {},
    "error feedback": {"error_feedback": True},
    "prediction": {"prediction": True},
    "both": {"error_feedback": True, "prediction": True},
}

every_codec = pytest.mark.parametrize("name", CODECS)
every_state = pytest.mark.parametrize("state", STATES)


def tables(name: str, **algorithm: object) -> dict:
    return {"algorithm": WORK | algorithm, "codec": {"name": name}, "data": {"clients": 8}}


def carried(name: str, *, dim: int = DIM, clients: int = 3, size: int = 16, **settings: object) -> FedAvg:
    """FedAvg with a codec of that name, ready for a model of `dim` numbers."""
    sized = name not in ("dense", "sketched")
    codec = CodecSettings(name=name, size=size if sized else None)
    sketch = SketchSettings(size=size) if name == "sketched" else None
    return FedAvg(codec=codec, sketch=sketch, **settings).resolved(dim, clients)


def changes(rounds: int, clients: int) -> torch.Tensor:
    """Changes that have something in common, between clients and between rounds."""
    draw = torch.Generator().manual_seed(1)
    common = torch.randn(DIM, generator=draw)
    return common + 0.3 * torch.randn(rounds, clients, DIM, generator=draw)


@every_codec
def test_updates_travel_by_any_codec_named_in_a_configuration(name):
    run = sketchfed.run(tables(name))
    first = run.metrics[0]
    assert run.loss < first["loss"] < 2.35
    assert run.accuracy > 0.5
    assert [line["participants"] for line in run.metrics] == [8] * WORK["rounds"]
    if name != "dense":
        dense = 4 * run.dim * 8
        assert first["uplink_bytes"] < 0.2 * dense, "a tenth of the numbers, or few bits each"


@every_codec
@every_state
def test_rounds_are_those_of_the_codec_itself(name, state):
    """What client and server do, written out with the codec's own functions."""
    algorithm, clients = carried(name, **STATES[state]), 3
    codec = algorithm._codec(DIM)
    assert codec.clients == clients
    server, memories = algorithm.begin(torch.zeros(DIM)), dict.fromkeys(range(clients))
    owed, expected, weights, knowledge = dict(memories), torch.zeros(DIM), torch.zeros(DIM), None
    for index, round_changes in enumerate(changes(4, clients)):
        packets, sent, seed = [], [], SEED.child("round", index)
        for client, change in enumerate(round_changes):
            context = RoundContext(round=index, seed=SEED, client=client, replica=server.replica)
            packet, memories[client] = algorithm.client(Change(change), memories[client], context)
            packets.append(unpack(pack(packet)))
            assert algorithm.check(packets[-1], DIM, context) > 0
            wanted = change - expected
            if algorithm.error_feedback:
                made, owed[client] = encode_with_memory(codec, wanted, owed[client], seed, client)
                assert torch.equal(memories[client], owed[client])
            else:
                made = codec.encode(wanted, seed, client)
                assert memories[client] is None
            sent.append(made)
        new = (codec.shrinkage if algorithm.error_feedback else 1.0) * codec.decode(sent, seed, knowledge)
        knowledge = codec.learn(sent, seed, knowledge)
        server, _ = algorithm.server(server, packets, SEED)
        weights = weights + algorithm.global_rate * (expected + new)
        if algorithm.prediction:
            assert torch.allclose(server.replica.prediction, expected + algorithm._gain(codec) * new, atol=1e-5)
            expected = server.replica.prediction
        assert torch.allclose(server.replica.weights, weights, atol=1e-4)
        kept = server.own.get("knowledge", torch.zeros(0))
        assert torch.equal(kept, knowledge) if knowledge is not None else not kept.numel()


@every_codec
def test_what_clients_owe_stays_bounded(name):
    """The same change for 200 rounds: what is kept of it settles at a few dozen times that change."""
    algorithm, memory, change = carried(name, error_feedback=True), None, changes(1, 1)[0, 0]
    for index in range(200):
        _, memory = algorithm.client(Change(change), memory, RoundContext(round=index, seed=SEED, client=0))
        assert memory.norm() < 40 * change.norm()


@every_codec
def test_predictions_do_not_feed_on_their_own_error(name):
    """The same changes for 60 rounds: the prediction comes near their mean, where the last decoded mean could run away."""
    algorithm, clients = carried(name, clients=4, prediction=True), 4
    same = changes(1, clients)[0]
    server, errors = algorithm.begin(torch.zeros(DIM)), []
    for index in range(60):
        contexts = [RoundContext(round=index, seed=SEED, client=i, replica=server.replica) for i in range(clients)]
        packets = [algorithm.client(Change(same[i]), None, contexts[i])[0] for i in range(clients)]
        server, _ = algorithm.server(server, packets, SEED)
        errors.append(float((server.replica.prediction - same.mean(0)).norm() / same.mean(0).norm()))
    assert max(errors) < 2
    assert sum(errors[40:]) / 20 < 0.6


def test_a_prediction_travels_down_with_the_model_and_is_counted():
    plain, predicting = (
        advanced(federation(FedAvg(prediction=on), data_of(3), module=dense_model("mlp")), 3) for on in (False, True)
    )
    dim = len(weights_of(plain))
    for one, other in zip(plain.engine.tasks[-1].values(), predicting.engine.tasks[-1].values(), strict=True):
        assert 4 * dim <= len(other) - len(one) < 4 * dim + 40
    assert predicting.engine.tasks[0] == plain.engine.tasks[0], "nobody has to be told that nothing is expected yet"
    assert predicting.tally.broadcast_bytes > 1.9 * plain.tally.broadcast_bytes
    assert torch.allclose(weights_of(plain), weights_of(predicting), atol=1e-5)
    apart = advanced(federation(FedAvg(prediction=True), data_of(3), module=dense_model("mlp"), apart=True), 3)
    assert torch.equal(weights_of(apart), weights_of(predicting)), "whoever holds nothing but what was sent gets the same"


def test_a_prediction_without_loss_is_the_last_mean():
    algorithm = carried("dense", prediction=True)
    server = algorithm.begin(torch.zeros(DIM))
    for index, mean in enumerate(torch.randn(3, DIM, generator=torch.Generator().manual_seed(2))):
        context = RoundContext(round=index, seed=SEED, client=0, replica=server.replica)
        server, _ = algorithm.server(server, [algorithm.client(Change(mean), None, context)[0]], SEED)
        assert torch.allclose(server.replica.prediction, mean, atol=1e-5)


RESUMED = {
    "error feedback": ("top_k", {"error_feedback": True, "participation": 0.5}),
    "prediction": ("rand_k", {"prediction": True, "participation": 0.5}),
    "both, with momentum": ("eden", {"error_feedback": True, "prediction": True, "global_momentum": 0.5}),
    "estimated correlation": ("rand_proj_spatial", {}),
    "estimated correlation of few": ("rand_k_spatial", {"participation": 0.5, "prediction": True}),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_resumes_bit_for_bit(kind, tmp_path):
    name, settings = RESUMED[kind]
    base = {"algorithm": {"rounds": 5, "local_steps": 2, **settings}, "codec": {"name": name, "ratio": 0.3}}
    base |= {"data": {"clients": 6}, "model": {"hidden": [5]}, "engine": {"checkpoint_seconds": 0}}

    def stop(line: dict) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    whole = sketchfed.run(base)
    with pytest.raises(KeyboardInterrupt):
        sketchfed.run(base, folder=tmp_path / "run", on_round=stop)
    resumed = sketchfed.resume(tmp_path / "run")
    assert torch.equal(resumed.weights, whole.weights)
    for one, other in zip(resumed.metrics, whole.metrics, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_the_planned_cohort_is_the_share_that_takes_part():
    for participation, clients, planned in ((1.0, 12, 12), (0.25, 12, 3), (0.01, 12, 1)):
        algorithm = FedAvg(codec=CodecSettings(name="rand_k"), participation=participation).resolved(100, clients)
        assert algorithm._codec(100).clients == planned
    told = FedAvg(codec=CodecSettings(name="rand_k", clients=5)).resolved(100, 12)
    assert told._codec(100).clients == 5


def test_global_rates_follow_from_what_a_codec_loses():
    assert carried("rand_k", dim=1_600).global_rate == pytest.approx(0.4)
    assert carried("rand_k", dim=1_600, error_feedback=True).global_rate == 1
    assert carried("top_k", dim=1_600).global_rate == 1
    assert carried("rand_k", dim=1_600, global_momentum=0.5).global_rate == pytest.approx(0.2)
    assert carried("rand_k", dim=1_600, global_rate=0.7).global_rate == 0.7


@pytest.mark.parametrize("name", [name for name in CODECS if "bits" in option_names(name)])
def test_with_the_fewest_bits_what_clients_owe_stays_bounded_too(name):
    """Rounding to one bit loses more than it sends; the shrinkage makes up for it."""
    bits = 2 if name == "qsgd" else 1
    sketch = SketchSettings(size=16, bits=bits) if name == "sketched" else None
    codec = CodecSettings(name=name, **({} if sketch else {"size": 16, "options": {"bits": bits}}))
    algorithm = FedAvg(codec=codec, sketch=sketch, error_feedback=True).resolved(DIM, 3)
    memory, change = None, changes(1, 1)[0, 0]
    for index in range(300):
        _, memory = algorithm.client(Change(change), memory, RoundContext(round=index, seed=SEED, client=0))
        assert memory.norm() < 100 * change.norm()


def test_replies_above_a_norm_bound_are_refused():
    bounded = FedAvg(codec=CodecSettings(options={"norm_bound": 0.5}), local_steps=1)
    server = federation(bounded, data_of(3))
    changed = [float((unpack(reply).arrays["values"]).norm()) for reply in server.engine.ask(server._tasks([0, 1, 2])).values()]
    low, middle, high = sorted(changed)
    server = federation(replace(bounded, codec=CodecSettings(options={"norm_bound": (middle + high) / 2})), data_of(3))
    server.advance()
    assert (server.tally.replies, server.tally.refused) == (2, 1)
    assert server.tally.known == {client: 0 for client, norm in enumerate(changed) if norm < high}
    assert low > 0


def test_clients_that_share_dice_are_numbered_by_their_place_in_the_round():
    """Ten of forty clients with equal changes: with a place each, their rounding errors cancel almost entirely.

    Independent rounding would have about the error of one of them divided by √10.
    """
    settings = CodecSettings(name="correlated", options={"bits": 2})
    algorithm = FedAvg(codec=settings, participation=0.25).resolved(64, 40)
    change = torch.linspace(-1, 1, 64)
    there = cohort(SEED, 3, population=40, count=10)
    errors = {}
    for population in (40, None):
        packets = [
            algorithm.client(Change(change), None, RoundContext(round=3, seed=SEED, client=client, population=population))[0]
            for client in there
        ]
        start = algorithm.begin(torch.zeros(64))
        state = replace(start, replica=replace(start.replica, round=3))
        after, _ = algorithm.server(state, packets, SEED)
        errors[population] = float((after.replica.weights / algorithm.global_rate - change).norm())
    assert errors[40] < errors[None] / 2
