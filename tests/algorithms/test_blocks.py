"""Plain parameters, and a sketch for each layer: what is sent, how weights move, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from federation import SEED, advanced, data_of, federation, weights_of
from problems import dense_model
from sketchfed.algorithms import Change, Dbcl, FedAvg, FetchSgd, Iterative, PrivateIterative, RoundContext, default_global_rate
from sketchfed.algorithms.blocks import shared
from sketchfed.algorithms.chosen import CombineSettings
from sketchfed.algorithms.settings import CodecSettings, SketchSettings
from sketchfed.codecs import BlockedSketchCodec, Codec, JoinedCodec, SketchCodec
from sketchfed.config import Config, load_config
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.flower.mod import check_app
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.sketches import dense
from sketchfed.training import Examples
from sketchfed.vectors import Layout, flatten
from sketchfed.wire import pack, unpack

DIM = 137
WORK = {"local_steps": 3, "local_rate": 0.1, "global_rate": 0.5}


class Net(nn.Module):
    """Two layers, a norm, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.first, self.norm, self.head = nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 4)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x)))) * self.scale.mean()


def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net()


def codec(module: nn.Module | None = None, **sketch) -> SketchCodec:
    module = module or net()
    return SketchSettings(**sketch).completed(module).codec(Layout.of(module).dim)


def described(**sketch) -> list[tuple[tuple[tuple[int, int], ...], int, bool]]:
    made = codec(**sketch)
    return [(block.spans, block.size, block.plain) for block in made.blocks] if isinstance(made, BlockedSketchCodec) else []


# Which coordinates make a block ---------------------------------------------------------------------------------------
# scale 0:3 · first 3:63 (weight), 63:73 (bias) · norm 73:83, 83:93 · head 93:133, 133:137


def test_each_layer_has_a_block_of_its_share_and_one_coefficient_at_least():
    assert described(blocks="layer") == [
        (((0, 3),), 1, False),
        (((3, 73),), 7, False),
        (((73, 93),), 2, False),
        (((93, 137),), 4, False),
    ]


def test_plain_parameters_are_one_block_at_the_end_beside_one_sketch():
    beside = (((63, 93), (133, 137)), 34, True)
    assert described(plain=["*.bias", "norm*"]) == [(((0, 63), (93, 133)), 10, False), beside]


def test_groups_take_parameters_in_their_order_and_the_rest_is_one_more():
    assert described(blocks=["head.*", "*.weight"], plain=["scale"], ratio=0.5) == [
        (((93, 137),), 22, False),
        (((3, 63), (73, 83)), 35, False),
        (((63, 73), (83, 93)), 10, False),
        (((0, 3),), 3, True),
    ]


def test_a_size_counts_what_is_sketched_and_is_shared_in_proportion():
    sizes = [size for _, size, _ in described(blocks="layer", plain=["scale"], size=27)]
    assert sizes == [14, 4, 9, 3]
    assert shared(27, [70, 20, 44]) == [14, 4, 9]
    assert shared(3, [1000, 1, 1]) == [1, 1, 1]
    assert shared(12, [1000, 1, 1]) == [10, 1, 1]
    assert shared(134, [70, 20, 44]) == [70, 20, 44]
    for size in range(5, 200):
        sizes = shared(size, [120, 40, 30, 7, 3])
        assert sum(sizes) == size
        assert all(1 <= own <= dim for own, dim in zip(sizes, [120, 40, 30, 7, 3], strict=True))


@pytest.mark.parametrize(
    ("sketch", "reason"),
    [
        (
            {"plain": ["*.biass"]},
            r"sketch.plain: '\*.biass' matches no parameter. There are scale, first.weight, .* whole names",
        ),
        ({"plain": ["*.bias", "bias"]}, "sketch.plain: 'bias' matches no parameter"),
        ({"plain": ["*"]}, "matches all 137 numbers of the model, so nothing is left to compress. .*codec 'dense'"),
        (
            {"plain": ["first*"]},
            r"matches 70 of the model's 137 numbers, more than are left to compress: 'first.weight' alone has 60. .*narrower",
        ),
        ({"blocks": ["conv*"]}, r"sketch.blocks: 'conv\*' matches no parameter that is not plain"),
        ({"blocks": ["*.bias"], "plain": ["*.bias"]}, r"sketch.blocks: '\*.bias' matches no parameter that is not plain"),
        ({"blocks": ["head*", "head.bias"]}, "every parameter that 'head.bias' matches belongs to an earlier block"),
        ({"blocks": "layer", "size": 3}, "sketch.size = 3 gives some of the 4 blocks no coefficient. Use sketch.size = 4"),
        ({"plain": ["scale"], "size": 135}, "sketch.size = 135 exceeds the 134 numbers that are compressed"),
        ({"blocks": "layers"}, r'sketch.blocks is "layer" or a list of patterns of names, such as .* got .layers.'),
        ({"blocks": [3]}, 'sketch.blocks is "layer" or a list of patterns'),
        ({"plain": "*.bias"}, "sketch.plain is a list of patterns"),
        ({"blocks": "layer", "options": {"block": 2}}, "cuts dim"),
    ],
)
def test_patterns_and_sizes_that_do_not_fit_the_model_are_refused_in_words(sketch, reason):
    with pytest.raises((InputError, UnknownNameError), match=reason):
        codec(**sketch)


@pytest.mark.parametrize("sketch", [{"plain": ["*.bias"]}, {"blocks": "layer"}])
def test_without_the_model_or_with_another_one_nothing_is_guessed(sketch):
    with pytest.raises(InputError, match=r"go by the names of parameters, so the model must be known"):
        Iterative(sketch=SketchSettings(**sketch)).resolved(137)
    known = Iterative(sketch=SketchSettings(**sketch)).resolved(137, module=net())
    with pytest.raises(InputError, match="resolved for a model of 137 parameters, but this one has 28"):
        known.resolved(28)


@pytest.mark.parametrize("setting", [{"plain": ["*.bias"]}, {"blocks": "layer"}])
@pytest.mark.parametrize(("kind", "name"), [(FetchSgd, "count"), (Dbcl, "balanced")])
def test_algorithms_that_sketch_in_their_own_way_refuse_both(kind, name, setting):
    with pytest.raises(InputError, match=r"sketch\.\w+ has no effect with algorithm '(fetchsgd|dbcl)'.*use 'iterative'"):
        kind(sketch=SketchSettings(name=name, **setting))


def test_an_app_on_flower_of_which_only_arrays_are_known_is_refused():
    check_app(Config(algorithm=Iterative()))
    with pytest.raises(InputError, match=r"of an app's model only arrays are known.* without sketch.plain and sketch.blocks"):
        check_app(Config(algorithm=Iterative(sketch=SketchSettings(blocks="layer"))))
    with pytest.raises(InputError, match="only arrays are known"):
        check_app(Config(algorithm=FedAvg(codec=CodecSettings(name="sketched"), sketch=SketchSettings(plain=["*.bias"]))))


def test_settings_are_kept_in_tables_and_absent_ones_leave_no_key():
    config = load_config({"algorithm": {"name": "iterative"}, "sketch": {"plain": ["*.bias"], "blocks": "layer", "ratio": 0.2}})
    full = config.completed(dim=137, sizes=[5, 5], module=net()).to_tables()["sketch"]
    assert full == {"name": "srht", "ratio": 0.2, "bits": 32, "plain": ["*.bias"], "blocks": "layer"}
    assert config.label == "iterative srht 1/5 by layer + plain *.bias"
    assert set(load_config({"algorithm": {"name": "iterative"}}).to_tables()["sketch"]) == {"name", "bits"}


def test_the_default_step_follows_the_block_with_the_smallest_share():
    blocks = {"blocks": "layer", "ratio": 0.01, "plain": ["scale"]}
    algorithm = Iterative(sketch=SketchSettings(**blocks)).resolved(137, module=net())
    assert algorithm.global_rate == default_global_rate(1 / 70)
    sketched = FedAvg(codec=CodecSettings(name="sketched"), sketch=SketchSettings(**blocks)).resolved(137, module=net())
    assert sketched.global_rate == pytest.approx(default_global_rate(1 / 70))
    assert Iterative(form="projection", sketch=SketchSettings(**blocks)).resolved(137, module=net()).global_rate == 1


# Rounds ---------------------------------------------------------------------------------------------------------------


def played(algorithm, rounds=3, *, module=None, data=None, **protection) -> torch.Tensor:
    module = module or net()
    return weights_of(advanced(federation(algorithm, data or data_of(4), module=module, **protection), rounds))


def sent(algorithm, module: nn.Module) -> bytes:
    dim = Layout.of(module).dim
    change = Change(torch.linspace(-1, 1, dim))
    context = RoundContext(round=0, seed=SEED, client=2)
    return pack(algorithm.resolved(dim, 4, module).client(change, None, context)[0])


@pytest.mark.parametrize("sketch", [{}, {"bits": 4}, {"bits": 8, "bits_down": 3}, {"name": "count", "size": 31}])
@pytest.mark.parametrize("form", ["unbiased", "projection"])
def test_one_block_for_everything_is_one_sketch_to_the_last_bit(form, sketch):
    usual = Iterative(form=form, sketch=SketchSettings(**sketch), **WORK)
    one = replace(usual, sketch=SketchSettings(blocks=["*"], plain=[], **sketch))
    assert sent(one, net()) == sent(usual, net())
    assert torch.equal(played(one), played(usual))


@pytest.mark.parametrize("bits", [32, 4])
def test_a_model_of_one_layer_has_one_sketch(bits):
    settings = {"ratio": 0.5, "bits": bits}
    layer, usual = (Iterative(sketch=SketchSettings(**settings, **own), **WORK) for own in ({"blocks": "layer"}, {}))
    assert torch.equal(*(played(each, module=dense_model("linear")) for each in (layer, usual)))


def test_rounds_are_those_of_algorithm_1_with_one_matrix_of_blocks():
    """Song et al. 2023, Alg. 1, with R_t = R_1 ⊕ R_2 ⊕ … ⊕ I, in float64."""
    sketch = SketchSettings(ratio=0.4, blocks="layer", plain=["*.bias", "scale"])
    algorithm = Iterative(sketch=sketch, global_momentum=0.5, local_steps=1, local_rate=0.1, global_rate=0.5)
    module, data = net(), data_of(4)
    w, velocity = flatten(module).double(), torch.zeros(137, dtype=torch.float64)
    for index in range(3):
        r = dense(codec(ratio=0.4, blocks="layer", plain=["*.bias", "scale"]).sketch(SEED.child("round", index)))
        assert r.count_nonzero() < r.numel() / 2
        changes = []
        for own in data:
            flat = w.clone().requires_grad_(True)
            outputs = torch.func.functional_call(module, Layout.of(module).views(flat), (own.x.double(),))
            loss = (outputs - own.y.double()).square().sum(1).mean() / 2
            changes.append(-0.1 * torch.autograd.grad(loss, flat)[0])
        velocity = 0.5 * velocity + r.T @ (r @ torch.stack(changes).mean(0))
        w = w + 0.5 * velocity
    found = played(algorithm, 3)
    assert (found - flatten(net())).norm() > 0.05
    assert torch.allclose(found.double(), w, atol=1e-5)


PLAIN = {"plain": ["*.bias", "norm*"]}


def plain_coordinates() -> torch.Tensor:
    return torch.cat([torch.arange(63, 93), torch.arange(133, 137)])


def sketched(sketch: SketchSettings, **settings) -> FedAvg:
    return FedAvg(codec=CodecSettings(name="sketched"), sketch=sketch, **WORK, **settings)


@pytest.mark.parametrize("sketch", [{}, {"blocks": "layer"}, {"bits": 4}, {"bits": 2, "blocks": "layer", "name": "count"}])
@pytest.mark.parametrize(
    "make",
    [
        lambda sketch: Iterative(sketch=sketch, **WORK),
        lambda sketch: Iterative(sketch=replace(sketch, bits_down=1), **WORK),
        lambda sketch: Iterative(form="projection", sketch=sketch, **WORK),
        sketched,
        lambda sketch: sketched(sketch, error_feedback=True),
    ],
    ids=["iterative", "1 bit down", "projection", "fedavg", "error feedback"],
)
def test_plain_parameters_move_exactly_as_fedavg_moves_them(make, sketch):
    """After a round from the same weights. Later rounds start from other weights, because the others moved differently."""
    one, other = played(make(SketchSettings(**PLAIN, **sketch)), 1), played(FedAvg(**WORK), 1)
    assert torch.equal(one[plain_coordinates()], other[plain_coordinates()])
    assert not torch.equal(one, other)


@pytest.mark.parametrize("form", ["unbiased", "projection"])
def test_where_only_plain_parameters_move_all_rounds_are_those_of_fedavg(form):
    """Inputs of zeros leave the weights of a linear model alone, and its biases move."""
    data = [Examples(torch.zeros(5, 6), own.y[:5]) for own in data_of(4)]
    settings = WORK | {"global_momentum": 0.5, "local_momentum": 0.5, "participation": 0.75}
    algorithm = Iterative(form=form, sketch=SketchSettings(plain=["*bias"], blocks="layer", bits=8), **settings)
    module = dense_model("linear")
    found = played(algorithm, 6, module=module, data=data)
    assert torch.equal(found, played(FedAvg(**settings), 6, module=module, data=data))
    assert not torch.equal(found, flatten(module))


def test_packets_hold_sketch_and_plain_numbers_and_next_to_nothing_else():
    for bits in (32, 8):
        one, blocked = SketchSettings(size=40, bits=bits), SketchSettings(size=40, bits=bits, blocks="layer", **PLAIN)
        servers = [advanced(federation(Iterative(sketch=each, **WORK), data_of(3), module=net()), 2) for each in (one, blocked)]
        for name in ("replies", "tasks"):
            usual, found = (len(getattr(server.engine, name)[-1][0]) for server in servers)
            assert found - usual <= 34 * 4 + (2 if bits == 32 else 3 * 4 + 16)


def test_combine_rules_work_on_blocks_of_few_bits():
    sketch = SketchSettings(ratio=0.5, bits=8, blocks="layer", **PLAIN)
    algorithm = Iterative(sketch=sketch, combine=CombineSettings(name="median"), **WORK)
    one = played(algorithm, 1)
    other = played(FedAvg(combine=CombineSettings(name="median"), **WORK), 1)
    assert torch.equal(one[plain_coordinates()], other[plain_coordinates()])


# Noise and secure sums ------------------------------------------------------------------------------------------------

NOISE = {"delta": 1e-3, "insecure_noise_seed": 5}
BLOCKED = SketchSettings(ratio=0.5, blocks="layer", **PLAIN)


@pytest.mark.parametrize("unit", ["client", "example"])
def test_sketches_and_plain_numbers_are_clipped_together_after_encoding(unit):
    """With a trusted server, no noise is on what arrives: its norm is the clip norm, plain numbers included."""
    work = WORK | ({"local_steps": 1, "batch": 100} if unit == "example" else {})
    noise = PrivacySettings(observer="public", unit=unit, clip=0.001, noise_multiplier=1.0, **NOISE)
    server = advanced(federation(Iterative(sketch=BLOCKED, **work), data_of(4), module=net(), privacy=noise), 1)
    for reply in server.engine.replies[0].values():
        values = unpack(reply).arrays["values"]
        if unit == "client":
            assert float(values.norm()) == pytest.approx(0.001, rel=1e-5)
        else:
            assert 0 < float(values.norm()) <= 0.1 * 0.001 * 12 / 100
        assert values[-34:].count_nonzero() > 20


def test_noise_has_the_same_deviation_in_sketches_and_plain_numbers():
    """χ² is close to normal here: each of two mean squares of 32 packets is off by 6 standard errors with odds below 1e-8."""
    noise = PrivacySettings(clip=1e-6, noise_multiplier=1e6, **NOISE)
    server = advanced(federation(Iterative(sketch=BLOCKED, **WORK), data_of(8), module=net(), privacy=noise), 4)
    packets = [unpack(reply).arrays["values"] for replies in server.engine.replies for reply in replies.values()]
    for numbers in (torch.stack(packets)[:, -34:], torch.stack(packets)[:, :-34]):
        assert float(numbers.square().mean()) == pytest.approx(1.0, abs=6 * (2 / numbers.numel()) ** 0.5)


@pytest.mark.parametrize("noisy", [False, True])
def test_secure_sums_add_integers_for_plain_numbers_too(noisy):
    """Without clipping, they come to the plain run but for the rounding to integers, and for noise of hardly any length."""
    privacy = PrivacySettings(name="discrete_gaussian", clip=10.0, noise_multiplier=1e-5, **NOISE) if noisy else None
    secure = SecureSettings() if noisy else SecureSettings(clip=10.0)
    algorithm = Iterative(sketch=BLOCKED, **WORK)
    found = played(algorithm, 1, privacy=privacy, secure=secure)
    assert torch.allclose(found, played(algorithm, 1), atol=1e-3)


def test_few_bits_cannot_be_summed_with_blocks_either():
    rounded = replace(BLOCKED, bits=8)
    with pytest.raises(InputError, match=r"sketch.bits = 8 cannot be summed.*rounded to its own levels.*sketch.bits = 32"):
        federation(Iterative(sketch=rounded), data_of(4), module=net(), secure=SecureSettings(clip=1.0))


def test_private_iterative_sketching_takes_both():
    noise = PrivacySettings(unit="example", placement="steps", clip=1.0, noise_multiplier=1.0, **NOISE)
    algorithm = PrivateIterative(sketch=BLOCKED, **WORK | {"batch": 4})
    assert torch.isfinite(played(algorithm, 2, privacy=noise)).all()


# Other codecs ---------------------------------------------------------------------------------------------------------


def joined(name: str, **options) -> Codec:
    algorithm = FedAvg(codec=CodecSettings(name=name, **options)).resolved(DIM, 4, net())
    return algorithm._codec(DIM)


def test_plain_parameters_arrive_exactly_through_any_codec():
    made, x = joined("qsgd", plain=["*.bias", "norm*"], options={"bits": 2}), torch.randn(DIM)
    decoded = made.decode([made.encode(x, SEED)], SEED)
    exact = torch.zeros(DIM, dtype=torch.bool)
    exact[63:93] = exact[133:137] = True
    assert torch.equal(decoded[exact], x[exact])
    assert not torch.equal(decoded[~exact], x[~exact])


def test_a_codec_by_layer_is_one_codec_for_each_layer():
    made = joined("top_k", blocks="layer", ratio=0.2)
    assert isinstance(made, JoinedCodec)
    assert [(part.name, part.dim, part.size) for part in made.parts] == [
        ("top_k", 3, 1),
        ("top_k", 70, 14),
        ("top_k", 20, 4),
        ("top_k", 44, 9),
    ]
    x = torch.zeros(DIM)
    x[:3] = 1e-6  # the largest number of a layer arrives, however small it is
    assert made.decode([made.encode(x, SEED)], SEED)[:3].any()


@pytest.mark.parametrize("name", ["dense", "qsgd", "top_k", "rand_k", "rand_proj_spatial", "correlated"])
def test_rounds_of_a_codec_by_layer_beside_plain_parameters_change_all_parameters(name):
    settings = CodecSettings(name=name, plain=["*.bias"], blocks="layer")
    server = federation(FedAvg(codec=settings, **WORK), data_of(4), module=net())
    start = weights_of(server)
    advanced(server, 4)
    moved = (weights_of(server) - start)[3:]  # the scale's gradient may be too small for top_k
    assert (moved != 0).float().mean() > 0.3  # top_k sends a tenth of 104 numbers and 30 plain ones in each round
    assert torch.isfinite(moved).all()


def test_each_part_of_a_joined_codec_learns_for_itself():
    made = joined("rand_proj_spatial", blocks="layer", ratio=0.5)
    x = torch.randn(4, DIM)
    x[:, 93:] = x[0, 93:]  # the last layer's changes are the same for all clients
    packets = [made.encode(row, SEED, client) for client, row in enumerate(x)]
    learnt = made.learn(packets, SEED)
    assert learnt.shape == (4,)
    assert learnt[3] == learnt.max()
    assert torch.isfinite(made.decode(packets, SEED, learnt)).all()


def test_the_codec_sketched_has_its_patterns_in_the_table_sketch():
    with pytest.raises(InputError, match=r"Move them there"):
        CodecSettings(name="sketched", plain=["*.bias"])


def test_a_configuration_names_the_plain_parameters_of_a_codec():
    tables = {"algorithm": {"name": "fedavg"}, "codec": {"name": "qsgd", "plain": ["*.bias"], "bits": 4}}
    assert load_config(tables).label == "fedavg qsgd 4 bits + plain *.bias"
    with pytest.raises(InputError, match=r"codec\.plain must be text"):
        load_config({"codec": {"name": "qsgd", "plain": [1]}})
    with pytest.raises(InputError, match=r"codec\.plain: 'nothing' matches no parameter"):
        joined("qsgd", plain=["nothing"])
