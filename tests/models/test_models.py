"""Models by name: their sizes, their first weights, and what they refuse."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from odds import uniformity
from sketchfed import PublicSeed
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.models import MODELS, build, initialise
from sketchfed.vectors import Layout, flatten

GOLDEN = Path(__file__).parents[1] / "golden" / "models.json"
SEED = PublicSeed(7)
SHAPES = {"lenet": (1, 28, 28), "cnn_mnist": (1, 28, 28), "cnn_cifar": (3, 32, 32)}

every_model = pytest.mark.parametrize("name", MODELS)


def made(name: str, *, seed: PublicSeed = SEED, **options: object) -> nn.Module:
    return build(name, shape=SHAPES.get(name, (20,)), outputs=10, seed=seed, **options)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "options", "dim"),
    [
        ("mlp", (784,), 10, {"hidden": [200, 200]}, 199_210),  # McMahan et al. 2017, Sec. 3
        ("mlp", (1, 28, 28), 10, {"hidden": (200, 200)}, 199_210),
        ("mlp", (64,), 10, {}, 8_970),
        ("logistic", (784,), 10, {}, 7_850),
        ("linear", (5,), 2, {}, 12),
        ("lenet", (1, 28, 28), 10, {}, 61_706),  # LeCun et al. 1998 have 60,000 with their sparse second layer
        ("cnn_mnist", (1, 28, 28), 10, {}, 1_663_370),  # McMahan et al. 2017, Sec. 3
        ("cnn_cifar", (3, 32, 32), 10, {}, 1_899_234),
    ],
)
def test_models_have_the_papers_numbers_of_parameters(name, shape, outputs, options, dim):
    assert Layout.of(build(name, shape=shape, outputs=outputs, seed=SEED, **options)).dim == dim


@every_model
def test_models_turn_examples_into_outputs(name):
    shape = SHAPES.get(name, (20,))
    assert made(name)(torch.zeros(2, *shape)).shape == (2, 10)


@every_model
def test_equal_seeds_give_equal_first_weights_and_the_global_generator_has_no_say(name):
    torch.manual_seed(1)
    first = flatten(made(name))
    torch.manual_seed(2)
    assert torch.equal(flatten(made(name)), first)
    assert torch.equal(flatten(made(name, seed=PublicSeed(8))), first) == (name in ("logistic", "linear"))


@every_model
def test_first_weights_are_frozen_for_all_time(name):
    """A stored digest of their bits, zeros without a sign: clients of another release must start from the same weights.

    To register a new model: delete nothing, run, and add what it prints.
    """
    digest = hashlib.sha256((flatten(made(name)) + 0.0).numpy().astype("<f4").tobytes()).hexdigest()[:32]
    assert json.loads(GOLDEN.read_text()).get(name) == digest, f'"{name}": "{digest}"'


@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn_mnist", "cnn_cifar"])
def test_first_weights_are_uniform_within_one_over_the_root_of_the_inputs(name):
    """U(−a, a) in each layer, a = 1/√inputs. χ² over ten cells, false alarm below 1e-6 a layer."""
    layers = [layer for layer in made(name).modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        assert layer.weight.abs().max() <= bound
        assert layer.bias.abs().max() <= bound
        if layer.weight.numel() > 100:
            assert uniformity(torch.histc(layer.weight.detach() / bound, bins=10, min=-1, max=1).double()) > 1e-6


def test_no_two_layers_start_alike():
    module = build("mlp", shape=(30,), outputs=30, seed=SEED, hidden=[30, 30])
    weights = [layer.weight.detach() for layer in module if isinstance(layer, nn.Linear)]
    assert len({float(weight[0, 0]) for weight in weights}) == 3


@pytest.mark.parametrize("name", ["logistic", "linear"])
def test_convex_models_start_at_zero(name):
    assert torch.equal(flatten(made(name)), torch.zeros(210))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 1, 28, 28), (1, 28, 3), (3, 2, 32)])
def test_convolutions_refuse_what_is_no_image(name, shape):
    with pytest.raises(InputError, match=rf"model '{name}' takes images \(channels, height, width\) of at least .* Use model"):
        build(name, shape=shape, outputs=10, seed=SEED)


@pytest.mark.parametrize("hidden", [[], [0], [200, -1], 200, "200", [2.5], [True], None])
def test_a_perceptron_needs_a_list_of_positive_widths(hidden):
    with pytest.raises(InputError, match=r"'mlp' needs a list of positive widths in hidden, got .* use 'logistic' or 'linear'"):
        made("mlp", hidden=hidden)


def test_unknown_models_and_options_are_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"no model named 'mpl'. Did you mean 'mlp'. Known: .*package.module:function"):
        made("mpl")
    with pytest.raises(InputError, match="model 'mlp' has no option 'width'; it has hidden"):
        made("mlp", width=3)


OWN = """
import torch
from torch import nn

def tiny(*, shape, outputs, width=3):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))

def other(*, shape, outputs):
    return [shape, outputs]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's that can be imported; a name of its own, for imports are remembered."""
    (tmp_path / "own_models_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_models_of_a_user"


def test_a_models_own_function_is_found_and_keeps_its_first_weights(own):
    torch.manual_seed(1)
    module = made(f"{own}:tiny", width=5)
    torch.manual_seed(1)
    assert torch.equal(flatten(module), flatten(nn.Sequential(nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 10))))


def test_own_functions_are_checked_too(own):
    with pytest.raises(InputError, match="has no option 'depth'; it has width"):
        made(f"{own}:tiny", depth=5)
    with pytest.raises(InputError, match=r"returned a list; it must return a torch.nn.Module"):
        made(f"{own}:other")
    with pytest.raises(InputError, match="has no 'missing'"):
        made(f"{own}:missing")


@pytest.mark.parametrize("layer", [nn.LSTM(16, 16), nn.GRU(16, 16, bidirectional=True), nn.MultiheadAttention(16, 2)])
def test_recurrent_layers_and_attention_are_drawn_anew_too(layer):
    """None of 16 × 16 or more uniform numbers is as before, and none is beyond the bound."""
    module = nn.Sequential(layer, nn.Linear(16, 2))
    before = flatten(module)
    first, second = (flatten(initialise(module, PublicSeed(seed))).clone() for seed in (1, 2))
    assert not (first == before).any()
    assert not (first == second).any()
    assert 0.24 < float(first.abs().max()) <= 0.25
    assert torch.equal(flatten(initialise(module, PublicSeed(1))), first)
