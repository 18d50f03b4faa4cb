"""Settings that all algorithms share, the tables [sketch] and [codec], and snapshots."""

from dataclasses import replace

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.algorithms import ALGORITHMS, FedAvg, Iterative, Replica, RoundContext, WholeModel
from sketchfed.algorithms.base import stepped
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.codecs import CODECS, Dense, SketchCodec
from sketchfed.errors import InputError, UnknownNameError, WireError
from sketchfed.training import LocalWork
from sketchfed.wire import Packet, pack, unpack

MOMENTUM = ("velocity",)

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)

REFUSED = [
    ({"rounds": 0}, "rounds must be at least 1, got 0"),
    ({"local_steps": 0}, "local_steps must be at least 1, got 0"),
    ({"local_epochs": -1}, "local_epochs must be at least 1, got -1"),
    ({"batch": 0}, "batch must be at least 1, got 0"),
    ({"local_steps": 2, "local_epochs": 3}, "local_steps = 2 and algorithm.local_epochs = 3 contradict each other"),
    ({"participation": 0.0}, "participation is a share of the clients, so it must be above 0 and at most 1, got 0.0"),
    ({"participation": 1.5}, "participation is a share"),
    ({"participation": float("nan")}, "participation is a share"),
    ({"local_rate": 0.0}, "local_rate must be a positive number, got 0.0"),
    ({"local_rate": float("inf")}, "local_rate must be a positive number, got inf"),
    ({"global_rate": -0.1}, "global_rate must be a positive number, got -0.1"),
    ({"global_rate": float("nan")}, "global_rate must be a positive number, got nan"),
    ({"local_momentum": 1.0}, "local_momentum must be from 0 to below 1, got 1.0"),
    ({"global_momentum": -0.1}, "global_momentum must be from 0 to below 1, got -0.1"),
    ({"weight_decay": -1e-3}, "weight_decay must not be negative, got -0.001"),
    ({"screening": 0.5}, "screening is a multiple of the median norm. It must be at least 1, or 0 for no screening, got 0.5"),
    ({"screening": float("nan")}, "screening is a multiple"),
]


@every_algorithm
@pytest.mark.parametrize(("settings", "complaint"), REFUSED)
def test_settings_that_cannot_work_are_refused(name, settings, complaint):
    with pytest.raises(InputError, match=f"algorithm.{complaint}"):
        ALGORITHMS[name](**settings)


@every_algorithm
def test_resolving_fills_in_what_depends_on_the_model_and_nothing_else(name):
    algorithm = ALGORITHMS[name](rounds=7, local_rate=0.3)
    resolved = algorithm.resolved(1_000)
    assert algorithm.global_rate is None
    assert 0 < resolved.global_rate <= 1
    assert (resolved.rounds, resolved.local_rate) == (7, 0.3)
    assert resolved.resolved(1_000) == resolved


@every_algorithm
def test_algorithms_say_what_they_are(name):
    kind = ALGORITHMS[name]
    assert kind.name == name
    assert kind.summary
    assert kind.source


def test_local_work_is_one_pass_over_all_examples_unless_told_otherwise():
    assert FedAvg().work == LocalWork(rate=0.1, epochs=1)
    told = FedAvg(local_rate=0.2, local_steps=4, batch=8, local_momentum=0.9, weight_decay=0.01)
    assert told.work == LocalWork(rate=0.2, steps=4, batch=8, momentum=0.9, decay=0.01)
    assert FedAvg(local_epochs=3).work == LocalWork(rate=0.1, epochs=3)


def test_the_servers_step_shrinks_linearly_to_its_final_rate():
    """And moves weights by that much, in every algorithm: `stepped` and `rate_at` are shared."""
    algorithm = FedAvg(rounds=5, global_rate=2.0, final_rate=0.5)
    assert [algorithm.rate_at(index) for index in range(7)] == [2.0, 1.75, 1.5, 1.25, 1.0, 1.0, 1.0]
    assert FedAvg(rounds=1, global_rate=2.0, final_rate=0.5).rate_at(0) == 2.0
    replica = replace(algorithm.begin(torch.zeros(3)).replica, round=4)
    assert stepped(algorithm, replica, torch.ones(3)).weights.tolist() == [1.0] * 3


def test_seeds_of_rounds_and_clients_are_all_different():
    contexts = [RoundContext(round=r, seed=PublicSeed(s), client=c) for r in (0, 1) for s in (0, 1) for c in (0, 1)]
    assert len({context.own for context in contexts}) == 8
    assert len({context.shared for context in contexts}) == 4


def test_a_sketch_says_its_size_once():
    assert SketchSettings().size_for(1_000) == 100
    assert SketchSettings(ratio=0.25).size_for(1_000) == 250
    assert SketchSettings(ratio=1e-6).size_for(1_000) == 1
    assert SketchSettings(size=7).size_for(1_000) == 7
    with pytest.raises(InputError, match=r"sketch.ratio = 0.1 and sketch.size = 5 both set the size. Remove one"):
        SketchSettings(ratio=0.1, size=5)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ratio": 0.0}, "ratio is size/dim, so it must be above 0 and at most 1, got 0.0"),
        ({"ratio": 1.1}, "ratio is size/dim"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"options": {"block": [3]}}, r"sketch.block must be a number or text, got \[3\]"),
        ({"name": "shrt"}, "no sketch named 'shrt'. Did you mean 'srht'"),
    ],
)
def test_sketches_that_cannot_work_are_refused(settings, complaint):
    with pytest.raises(InputError, match=complaint):
        SketchSettings(**settings)


def test_labels_are_short():
    assert SketchSettings().label == "srht 1/10"
    assert SketchSettings(name="count", ratio=0.003).label == "count 1/333.3"
    assert SketchSettings(size=12_345, bits=4).label == "srht 12,345 4 bits"
    assert SketchSettings(ratio=1.0, bits=8, bits_down=2).label == "srht 1 8/2 bits"


def test_a_codec_is_made_for_the_models_size():
    assert CodecSettings().codec(50, None) == Dense(dim=50)
    made = CodecSettings(name="sketched").codec(50, SketchSettings(size=5, bits=4, options={"block": 25}))
    assert made == SketchCodec(dim=50, size=5, bits=4, options=(("block", 25),))
    with pytest.raises(UnknownNameError, match=r"no codec named 'dens'. Did you mean 'dense'"):
        CodecSettings(name="dens")


def test_options_that_no_codec_has_are_refused_and_not_forgotten():
    with pytest.raises(InputError, match=r"codec 'sketched' has no option 'bits'. Set its sketch in \[sketch\]"):
        CodecSettings(name="sketched", options={"bits": 4})
    for option in ("level", "dim"):
        with pytest.raises(InputError, match=f"codec 'dense' has no option '{option}'. It has .*precision"):
            CodecSettings(options={option: 3})
    with pytest.raises(InputError, match=r"codec 'top_k' has no option 'levels'. It has ratio, size, .*bits"):
        CodecSettings(name="top_k", options={"levels": 3})
    for size in ({"ratio": 0.5}, {"size": 3}):
        with pytest.raises(InputError, match=f"codec 'dense' has no option '{next(iter(size))}'"):
            CodecSettings(**size)


def test_a_codec_says_its_size_once_and_sends_a_tenth_or_all_if_it_says_nothing():
    assert CodecSettings(name="top_k").codec(1_000, None).size == 100
    assert CodecSettings(name="top_k", ratio=0.25).codec(1_000, None).size == 250
    assert CodecSettings(name="top_k", size=7).codec(1_000, None).size == 7
    assert CodecSettings(name="qsgd").codec(1_000, None).size is None
    assert CodecSettings(name="qsgd", ratio=0.1).codec(1_000, None).size == 100
    with pytest.raises(InputError, match=r"codec.ratio = 0.1 and codec.size = 5 both set the size. Remove one"):
        CodecSettings(name="top_k", ratio=0.1, size=5)
    for settings, complaint in (({"ratio": 1.5}, "ratio is size/dim"), ({"size": 0}, "size must be at least 1, got 0")):
        with pytest.raises(InputError, match=f"codec.{complaint}"):
            CodecSettings(name="top_k", **settings)


def test_options_of_a_codec_have_its_types():
    made = CodecSettings(name="rand_proj_spatial", size=4, clients=3, options={"ensemble": "balanced", "correlation": 1})
    assert made.codec(50, None) == CODECS["rand_proj_spatial"](dim=50, size=4, clients=3, ensemble="balanced", correlation=1)
    sketched = CodecSettings(name="sketched", clients=3, options={"norm_bound": 2.0})
    assert sketched.codec(50, SketchSettings(size=5)) == SketchCodec(dim=50, size=5, clients=3, norm_bound=2.0)
    for name, option, value, complaint in (
        ("top_k", "bits", "4", "codec.bits must be an integer, got '4'"),
        ("top_k", "bits", 4.5, "codec.bits must be an integer, got 4.5"),
        ("rand_k_spatial", "correlation", [1], r"codec.correlation must be a number or text in quotes, got \[1\]"),
        ("qsgd", "norm_bound", "far", "codec.norm_bound must be a number, got 'far'"),
        ("correlated", "rotate", 1, "codec.rotate must be true or false, got 1"),
    ):
        with pytest.raises(InputError, match=complaint):
            CodecSettings(name=name, options={option: value})
    with pytest.raises(InputError, match="got bits = 5"):
        FedAvg(codec=CodecSettings(name="top_k", options={"bits": 5})).resolved(100)


def test_a_snapshot_brings_back_the_replica_bit_for_bit():
    replica = Iterative(global_momentum=0.5).resolved(30).begin(torch.randn(30)).replica
    for extras in (("velocity",), ()):
        read = WholeModel(extras).replica(unpack(pack(WholeModel(extras).packet(replica))), 30)
        assert torch.equal(read.weights, replica.weights)
        assert (read.velocity is not None) == bool(extras)


def test_snapshots_that_do_not_fit_are_refused():
    replica = Replica(round=3, weights=torch.ones(30), velocity=torch.ones(30))
    whole = WholeModel(MOMENTUM).packet(replica)
    assert WholeModel(MOMENTUM).replica(whole, 30).round == 3
    for bad, dim, extras in (
        (whole, 31, MOMENTUM),
        (WholeModel().packet(replica), 30, MOMENTUM),
        (Packet(kind="mean", arrays=whole.arrays, scalars={"round": 3}), 30, MOMENTUM),
        (Packet(kind="snapshot", arrays=whole.arrays), 30, MOMENTUM),
        (Packet(kind="snapshot", arrays=whole.arrays, scalars={"round": -1}), 30, MOMENTUM),
        (Packet(kind="snapshot", arrays=whole.arrays, scalars={"round": "3"}), 30, MOMENTUM),
    ):
        with pytest.raises(WireError):
            WholeModel(extras).replica(bad, dim)


@pytest.mark.parametrize("algorithm", [FedAvg(), Iterative()])
def test_a_step_before_the_settings_are_resolved_is_refused(algorithm):
    with pytest.raises(InputError, match=r"global_rate has no value yet. Set it, or call resolved\(dim\) first"):
        algorithm.rate_at(0)
